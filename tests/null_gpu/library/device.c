/* CUDA runtime: devices, streams and events. Nothing ever runs, so every stream is always idle. */
#include "counting.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

/* An A100's numbers, whatever the capability: torch sizes its launches by them. */
enum { MULTIPROCESSORS = 108, THREADS_PER_BLOCK = 1024, THREADS_PER_MULTIPROCESSOR = 2048, WARP = 32, REGISTERS = 65536,
       SHARED_PER_BLOCK = 49152, SHARED_OPT_IN = 166912, SHARED_PER_MULTIPROCESSOR = 167936, GRID_X = 2147483647, GRID_YZ = 65535 };

static __thread int current;

cudaError_t cudaGetDeviceCount(int *num) { *num = nullgpu_num_devices(); return *num ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= nullgpu_num_devices()) return cudaErrorInvalidDevice;
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Null GPU");
  memset(p->uuid.bytes, device + 1, sizeof p->uuid.bytes);
  p->major = nullgpu_capability() / 10;
  p->minor = nullgpu_capability() % 10;
  p->totalGlobalMem = nullgpu_memory();
  p->multiProcessorCount = MULTIPROCESSORS;
  p->warpSize = WARP;
  p->maxThreadsPerBlock = THREADS_PER_BLOCK;
  p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = THREADS_PER_BLOCK;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = GRID_X;
  p->maxGridSize[1] = p->maxGridSize[2] = GRID_YZ;
  p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
  p->sharedMemPerBlock = SHARED_PER_BLOCK;
  p->sharedMemPerBlockOptin = SHARED_OPT_IN;
  p->sharedMemPerMultiprocessor = SHARED_PER_MULTIPROCESSOR;
  p->l2CacheSize = 40 << 20;
  p->memoryBusWidth = 5120;
  p->textureAlignment = 512;
  p->concurrentKernels = p->unifiedAddressing = p->cooperativeLaunch = 1;
  p->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = nullgpu_capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = nullgpu_capability() % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = THREADS_PER_BLOCK; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = THREADS_PER_MULTIPROCESSOR; break;
    case cudaDevAttrWarpSize: *value = WARP; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_PER_BLOCK; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPT_IN; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = SHARED_PER_MULTIPROCESSOR; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = REGISTERS; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = THREADS_PER_BLOCK; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = GRID_X; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = GRID_YZ; break;
    default: *value = 1; /* most of the others ask whether something is supported */
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the null GPU"; }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "nullGpuError"; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  *function = NULL; /* torch then does without */
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return CREATE(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return CREATE(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { return CREATE(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges, size_t *num) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (num) *num = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { nullgpu_count(STREAM_SYNC, "", 0); return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { nullgpu_count(DEVICE_SYNC, "", 0); return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { nullgpu_count(EVENT_SYNC, "", 0); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return CREATE(event); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return CREATE(event); }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) { *milliseconds = 1; return cudaSuccess; }
