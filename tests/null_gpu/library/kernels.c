/* CUDA runtime: kernels, which are counted under their names and not run. */
#include "counting.h"
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

/* The kernels that libtorch registers when it is loaded: a hash table with open addressing. */
typedef struct { const void *stub; const char *name; } Kernel;
static Kernel *table;
static size_t size, num;

static Kernel *slot(const void *stub) {
  size_t at = ((uintptr_t)stub >> 2) * 2654435761u % size;
  while (table[at].stub && table[at].stub != stub) at = (at + 1) % size;
  return &table[at];
}

static void grow(void) {
  Kernel *old = table;
  size_t before = size;
  size = size ? 2 * size : 1 << 16;
  table = calloc(size, sizeof *table);
  for (size_t i = 0; i < before; i++)
    if (old[i].stub) *slot(old[i].stub) = old[i];
  free(old);
}

void __cudaRegisterFunction(
    void **binary, const char *stub, char *device, const char *name, int limit, void *a, void *b, void *c, void *d, int *e) {
  if (2 * num >= size) grow();
  Kernel *found = slot(stub);
  num += !found->stub;
  *found = (Kernel){stub, name};
}

static cudaError_t launched(const void *stub) {
  nullgpu_count(LAUNCH, table && slot(stub)->name ? slot(stub)->name : "?", 0);
  return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *image) { static void *binary[1]; return binary; }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global) {}

/* What `kernel<<<grid, block, shared, stream>>>` leaves for the stub that launches. */
static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } pending[8];
static __thread int depth;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  if (depth == 8) return 1;
  pending[depth].grid = grid;
  pending[depth].block = block;
  pending[depth].shared = shared;
  pending[depth++].stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  depth--;
  *grid = pending[depth].grid;
  *block = pending[depth].block;
  *shared = pending[depth].shared;
  *(cudaStream_t *)stream = pending[depth].stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) { *kernel = (cudaKernel_t)stub; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return launched(kernel);
}
cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return launched(stub);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **arguments) { return launched(stub); }
cudaError_t cudaLaunchCooperativeKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return launched(stub);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = nullgpu_capability();
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *num_blocks, const void *stub, int threads, size_t shared) {
  *num_blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *num_blocks, const void *stub, int threads, size_t shared, unsigned flags) {
  *num_blocks = 2;
  return cudaSuccess;
}
