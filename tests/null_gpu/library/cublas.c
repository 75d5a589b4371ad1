/* cuBLAS: what hands something back. Its matrix products are counted by stubs that build.py writes. */
#include "counting.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <string.h>

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { return CREATE(handle); }
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { return CREATE(handle); }
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) { *mode = CUBLAS_DEFAULT_MATH; return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
  *mode = CUBLAS_POINTER_MODE_HOST;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute, cudaDataType_t scale) {
  return CREATE(description);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) { return CREATE(preference); }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t stride) {
  return CREATE(layout);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t *results, int *num) {
  memset(results, 0, sizeof *results);
  *num = 1;
  return CUBLAS_STATUS_SUCCESS;
}
