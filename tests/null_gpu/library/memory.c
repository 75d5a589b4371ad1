/* CUDA runtime: memory. The device's memory is the host's, pages of zeros until something is written. */
#define _GNU_SOURCE
#include "counting.h"
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct { uintptr_t start; size_t size; enum nullgpu_place place; int device; } Block;
static Block *blocks; /* in the order of their addresses */
static int num_blocks, room;
static size_t used[64]; /* bytes by device */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The number of blocks that start at or before an address. */
static int position(uintptr_t address) {
  int low = 0, high = num_blocks;
  while (low < high) {
    int middle = (low + high) / 2;
    if (blocks[middle].start <= address) low = middle + 1; else high = middle;
  }
  return low;
}

static void remember(void *start, size_t size, enum nullgpu_place place, int device) {
  pthread_mutex_lock(&lock);
  if (num_blocks == room) blocks = realloc(blocks, (room = room ? 2 * room : 1024) * sizeof *blocks);
  int at = position((uintptr_t)start);
  memmove(blocks + at + 1, blocks + at, (num_blocks++ - at) * sizeof *blocks);
  blocks[at] = (Block){(uintptr_t)start, size, place, device};
  if (place == DEVICE) used[device] += size;
  pthread_mutex_unlock(&lock);
}

static size_t forget(void *start) {
  pthread_mutex_lock(&lock);
  int at = position((uintptr_t)start) - 1;
  size_t size = 0;
  if (at >= 0 && blocks[at].start == (uintptr_t)start) {
    size = blocks[at].size;
    if (blocks[at].place == DEVICE) used[blocks[at].device] -= size;
    memmove(blocks + at, blocks + at + 1, (--num_blocks - at) * sizeof *blocks);
  }
  pthread_mutex_unlock(&lock);
  return size;
}

static Block block_of(const void *address) {
  Block found = {0, 0, PAGEABLE, 0};
  pthread_mutex_lock(&lock);
  int at = position((uintptr_t)address) - 1;
  if (at >= 0 && (uintptr_t)address < blocks[at].start + blocks[at].size) found = blocks[at];
  pthread_mutex_unlock(&lock);
  return found;
}

enum nullgpu_place nullgpu_place_of(const void *address) { return block_of(address).place; }

static void *pages(size_t size) {
  void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? NULL : start;
}
static size_t rounded(size_t size) { return (size + 4095) & ~(size_t)4095; }

cudaError_t cudaMalloc(void **start, size_t size) {
  int device;
  cudaGetDevice(&device);
  size = rounded(size ? size : 1);
  *start = used[device] + size > nullgpu_memory() ? NULL : pages(size);
  if (!*start) return cudaErrorMemoryAllocation;
  remember(*start, size, DEVICE, device);
  nullgpu_count(MALLOC, "", size);
  return cudaSuccess;
}
cudaError_t cudaFree(void *start) {
  size_t size = start ? forget(start) : 0;
  if (size) { munmap(start, size); nullgpu_count(FREE, "", size); }
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **start, size_t size, cudaStream_t stream) { return cudaMalloc(start, size); }
cudaError_t cudaFreeAsync(void *start, cudaStream_t stream) { return cudaFree(start); }
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) { return cudaMalloc(address, 1 << 16); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { return CREATE(pool); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  int device;
  cudaGetDevice(&device);
  *total = nullgpu_memory();
  *free = *total - used[device];
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **start, size_t size, unsigned flags) {
  *start = pages(rounded(size));
  if (!*start) return cudaErrorMemoryAllocation;
  remember(*start, rounded(size), PINNED, 0);
  nullgpu_count(HOST_MALLOC, "", size);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void **start, size_t size) { return cudaHostAlloc(start, size, 0); }
cudaError_t cudaFreeHost(void *start) {
  size_t size = forget(start);
  if (size) munmap(start, size);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void *start, size_t size, unsigned flags) { remember(start, size, PINNED, 0); return cudaSuccess; }
cudaError_t cudaHostUnregister(void *start) { forget(start); return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeDevice, cudaMemoryTypeHost};
  Block block = block_of(address);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = types[block.place];
  attributes->device = block.device;
  attributes->devicePointer = block.place == PAGEABLE ? NULL : (void *)address;
  attributes->hostPointer = block.place == PINNED ? (void *)address : NULL;
  return cudaSuccess;
}

/* What the host gets from the device in a copy of up to `most` bytes: this byte and zeros. No kernel has written what it
 * asks for (`.item()`, the number of non-zeros, features), yet it decides by it. With -1, what happens to lie there. */
static int answer = -1;
static size_t most;
void nullgpu_answer(int value, long up_to) { answer = value; most = up_to; }

static void copy(void *to, const void *from, size_t size, const char *how) {
  enum nullgpu_place target = nullgpu_place_of(to), source = nullgpu_place_of(from);
  if (target == DEVICE && source == DEVICE) nullgpu_count(COPY_ON_DEVICE, how, size);
  else if (target == DEVICE) nullgpu_count(source == PINNED ? TO_DEVICE_PINNED : TO_DEVICE_PAGEABLE, how, size);
  else if (source == DEVICE) nullgpu_count(target == PINNED ? TO_HOST_PINNED : TO_HOST_PAGEABLE, how, size);
  memmove(to, from, size);
  if (answer >= 0 && size && size <= most && source == DEVICE && target != DEVICE) {
    memset(to, 0, size);
    *(unsigned char *)to = answer;
  }
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  copy(to, from, size, "sync");
  return cudaStreamSynchronize(0);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  copy(to, from, size, "async");
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int target, const void *from, int source, size_t size, cudaStream_t stream) {
  copy(to, from, size, "peer");
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(
    void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++) memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  nullgpu_count(COPY_ON_DEVICE, "2d", width * height);
  return cudaSuccess;
}

/* A small tensor may be read back; a large one would only cost the time and the pages. */
cudaError_t cudaMemsetAsync(void *start, int value, size_t size, cudaStream_t stream) {
  if (size <= 4096) memset(start, value, size);
  nullgpu_count(MEMSET, "", size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void *start, int value, size_t size) { return cudaMemsetAsync(start, value, size, 0); }
