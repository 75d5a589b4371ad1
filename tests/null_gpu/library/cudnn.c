/* cuDNN: what hands something back, of the interface before version 8, which torch uses when
 * TORCH_CUDNN_V8_API_DISABLED=1. Its convolutions and norms are counted by stubs that build.py writes. */
#include "counting.h"
#include <cudnn.h>
#include <string.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return "an error of the null cuDNN"; }
void cudnnGetLastErrorString(char *message, size_t size) { if (size) *message = 0; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { return CREATE(handle); }
#define DESCRIPTOR(NAME) cudnnStatus_t cudnnCreate##NAME(cudnn##NAME##_t *descriptor) { return CREATE(descriptor); }
DESCRIPTOR(ActivationDescriptor)
DESCRIPTOR(ConvolutionDescriptor)
DESCRIPTOR(DropoutDescriptor)
DESCRIPTOR(FilterDescriptor)
DESCRIPTOR(PoolingDescriptor)
DESCRIPTOR(SpatialTransformerDescriptor)
DESCRIPTOR(TensorDescriptor)

/* One algorithm for all convolutions, deterministic and without a workspace: a real one may need some memory. */
#define CHOOSE(RESULTS, NUM) do { memset(RESULTS, 0, sizeof *(RESULTS)); (RESULTS)->algo = 1; (RESULTS)->determinism = CUDNN_DETERMINISTIC; \
                                  *(NUM) = 1; return CUDNN_STATUS_SUCCESS; } while (0)
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t convolution,
    const cudnnTensorDescriptor_t y, const int wanted, int *num, cudnnConvolutionFwdAlgoPerf_t *results) { CHOOSE(results, num); }
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t convolution,
    const cudnnTensorDescriptor_t dx, const int wanted, int *num, cudnnConvolutionBwdDataAlgoPerf_t *results) { CHOOSE(results, num); }
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t convolution,
    const cudnnFilterDescriptor_t dw, const int wanted, int *num, cudnnConvolutionBwdFilterAlgoPerf_t *results) { CHOOSE(results, num); }
/* With cudnn.benchmark the algorithms are tried. */
cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *xs, const cudnnFilterDescriptor_t w, const void *ws,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y, void *ys, const int wanted, int *num,
    cudnnConvolutionFwdAlgoPerf_t *results, void *workspace, size_t size) { CHOOSE(results, num); }
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const void *ws, const cudnnTensorDescriptor_t dy, const void *dys,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t dx, void *dxs, const int wanted, int *num,
    cudnnConvolutionBwdDataAlgoPerf_t *results, void *workspace, size_t size) { CHOOSE(results, num); }
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *xs, const cudnnTensorDescriptor_t dy, const void *dys,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t dw, void *dws, const int wanted, int *num,
    cudnnConvolutionBwdFilterAlgoPerf_t *results, void *workspace, size_t size) { CHOOSE(results, num); }

#define NO_WORKSPACE { *size = 0; return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t convolution,
    const cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t algorithm, size_t *size) NO_WORKSPACE
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t convolution,
    const cudnnTensorDescriptor_t dx, cudnnConvolutionBwdDataAlgo_t algorithm, size_t *size) NO_WORKSPACE
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t convolution,
    const cudnnFilterDescriptor_t dw, cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *size) NO_WORKSPACE
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t z,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t scale, const cudnnActivationDescriptor_t activation, size_t *size) NO_WORKSPACE
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz, const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *size) NO_WORKSPACE
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t x, size_t *size) NO_WORKSPACE
