/* What the null GPU counts, and what its files share. */
#ifndef NULLGPU_COUNTING_H
#define NULLGPU_COUNTING_H
#include <stddef.h>
#include <stdint.h>

/* The order is that of the names in counting.c. */
enum nullgpu_kind {
  LAUNCH, CUBLAS, CUDNN, CUSOLVER, TRITON, MEMSET, COPY_ON_DEVICE,           /* operations of the device */
  TO_DEVICE_PAGEABLE, TO_DEVICE_PINNED, TO_HOST_PAGEABLE, TO_HOST_PINNED,    /* copies between host and device */
  STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC,                                      /* the host waits for the device */
  MALLOC, FREE, HOST_MALLOC,                                                 /* past torch's caching allocator */
  ALL_REDUCE, ALL_GATHER, BROADCAST, REDUCE_SCATTER, ALL_TO_ALL, SEND, RECEIVE, OTHER_COLLECTIVE,
  NUM_KINDS
};

/* Add one event. `detail` says more to a listener: the name of a kernel, the way of a copy. */
void nullgpu_count(int kind, const char *detail, long bytes);

/* The kind of memory that an address lies in. */
enum nullgpu_place { PAGEABLE, DEVICE, PINNED };
enum nullgpu_place nullgpu_place_of(const void *address);

/* Settings of the environment: NULLGPU_DEVICES, NULLGPU_MEMORY_GIB, NULLGPU_CAPABILITY. */
int nullgpu_num_devices(void);
size_t nullgpu_memory(void);
int nullgpu_capability(void);

/* A new handle, unequal to all others and to NULL, for what callers create and only pass back. */
void *nullgpu_handle(void);
#define CREATE(pointer) (*(void **)(pointer) = nullgpu_handle(), 0)
#endif
