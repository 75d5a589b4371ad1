/* The counters, read and reset by tests/null_gpu/counters.py through ctypes, and the settings of the environment. */
#include "counting.h"
#include <stdlib.h>
#include <string.h>

static const char *const names[NUM_KINDS] = {
  "launch", "cublas", "cudnn", "cusolver", "triton", "memset", "copy_on_device",
  "to_device_pageable", "to_device_pinned", "to_host_pageable", "to_host_pinned",
  "stream_sync", "event_sync", "device_sync",
  "malloc", "free", "host_malloc",
  "all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all", "send", "receive", "other_collective",
};

typedef void (*listener_t)(const char *kind, const char *detail, long bytes);
static long counts[NUM_KINDS], sums[NUM_KINDS]; /* changed by the threads of autograd and of NCCL's watchdog, too */
static listener_t listener;

void nullgpu_count(int kind, const char *detail, long bytes) {
  __sync_fetch_and_add(&counts[kind], 1);
  __sync_fetch_and_add(&sums[kind], bytes);
  if (listener) listener(names[kind], detail, bytes);
}

int nullgpu_num_kinds(void) { return NUM_KINDS; }
const char *nullgpu_name(int kind) { return names[kind]; }
long nullgpu_count_of(int kind) { return counts[kind]; }
long nullgpu_bytes_of(int kind) { return sums[kind]; }
void nullgpu_listen(listener_t new_listener) { listener = new_listener; }

static double setting(const char *name, double otherwise) {
  const char *text = getenv(name);
  return text && *text ? atof(text) : otherwise;
}

/* Ray, torchrun's users and others hand out GPUs by this list; "" and "-1" mean none. */
static int num_visible(const char *list) {
  int num = *list && *list != '-';
  for (; *list; list++) num += *list == ',';
  return num;
}

int nullgpu_num_devices(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible ? num_visible(visible) : (int)setting("NULLGPU_DEVICES", 8);
}

size_t nullgpu_memory(void) { return (size_t)(setting("NULLGPU_MEMORY_GIB", 80) * (1ul << 30)); }
int nullgpu_capability(void) { return (int)setting("NULLGPU_CAPABILITY", 80); }

void *nullgpu_handle(void) {
  static uintptr_t last = 0x10000;
  return (void *)__sync_add_and_fetch(&last, 16);
}
