/* A stub libcuda.so.1: as much of CUDA's driver as Triton's launcher asks for. Its launches are counted by the
 * preloaded library, with the kernel's name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "counting.h"

static char context[1];

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetCount(int *num) { *num = nullgpu_num_devices(); return 0; }
int cuCtxGetCurrent(void **current) { *current = context; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **primary, int device) { *primary = context; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "an error of the null GPU"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "NULL_GPU_ERROR"; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) { /* numbers of CUdevice_attribute */
    case 1: *value = 1024; break;                        /* threads per block */
    case 8: *value = 49152; break;                       /* shared memory per block */
    case 10: *value = 32; break;                         /* warp */
    case 12: case 82: *value = 65536; break;             /* registers per block, per multiprocessor */
    case 13: case 36: *value = 1215000; break;           /* clocks in kHz */
    case 16: *value = 108; break;                        /* multiprocessors */
    case 37: *value = 5120; break;                       /* bus width */
    case 75: *value = nullgpu_capability() / 10; break;
    case 76: *value = nullgpu_capability() % 10; break;
    case 97: *value = 166912; break;                     /* shared memory per block, on demand */
    default: *value = 0;
  }
  return 0;
}

/* A module is a handle, a function its name. */
int cuModuleLoadData(void **module, const void *image) { return CREATE(module); }
int cuLibraryLoadData(void **library, const void *image) { return CREATE(library); }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads per block, registers; no spills */
  return 0;
}
int cuOccupancyMaxActiveClusters(int *num, void *function, void *config) { *num = 1; return 0; }

int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) { nullgpu_count(TRITON, function, 0); return 0; }
int cuLaunchKernel(
    void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
    void **arguments, void **extra) { nullgpu_count(TRITON, function, 0); return 0; }

/* Triton refuses pointers of the host by asking for the device's pointer. */
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  enum { DEVICE_POINTER = 3, DEVICE_ORDINAL = 9, INVALID_VALUE = 1 };
  if (nullgpu_place_of((void *)address) == PAGEABLE) return INVALID_VALUE;
  if (attribute == DEVICE_POINTER) *(uint64_t *)value = address;
  else if (attribute == DEVICE_ORDINAL) *(int *)value = 0;
  else *(uint64_t *)value = 0;
  return 0;
}

/* Functions by name, the newest version first. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *found) {
  static const char *const endings[] = {"_v3", "_v2", ""};
  void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = NULL;
  for (int i = 0; i < 3 && !*function; i++) {
    char name[200];
    snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
    *function = dlsym(self ? self : RTLD_DEFAULT, name);
  }
  if (found) *found = !*function;
  return *function ? 0 : 500; /* CUDA_ERROR_NOT_FOUND */
}
int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
