/* NCCL for one rank of a group whose other ranks hold what this one holds: sums stay as they are, gathers repeat.
 * A pointer to host memory ends the process, as it would crash or corrupt on a GPU. */
#include "counting.h"
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than this is only counted: images that move take the time that a GPU would not, and no kernel wrote them. */
enum { LARGEST_MOVE = 16 << 20 };

typedef struct { int size, rank; } Group;

static size_t bytes_of(size_t num, ncclDataType_t type) {
  switch (type) {
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4 * num;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8 * num;
    case ncclFloat16: case ncclBfloat16: return 2 * num;
    default: return num;
  }
}

static void check_device(const void *address, size_t bytes, const char *what) {
  if (!bytes || nullgpu_place_of(address) == DEVICE) return;
  fprintf(stderr, "null GPU: %s must get memory of the device, got a host pointer\n", what);
  abort();
}

static void move(void *to, const void *from, size_t bytes) {
  if (to != from && bytes <= LARGEST_MOVE) memmove(to, from, bytes);
}

ncclResult_t ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { memset(id, 7, sizeof *id); return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t result) { return "an error of the null NCCL"; }
const char *ncclGetLastError(ncclComm_t group) { return ""; }

static ncclResult_t join(ncclComm_t *group, int size, int rank) {
  Group *made = malloc(sizeof *made);
  *made = (Group){size, rank};
  *group = (ncclComm_t)made;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *group, int size, ncclUniqueId id, int rank) { return join(group, size, rank); }
ncclResult_t ncclCommInitRankConfig(ncclComm_t *group, int size, ncclUniqueId id, int rank, ncclConfig_t *config) { return join(group, size, rank); }
ncclResult_t ncclCommInitRankScalable(ncclComm_t *group, int size, int rank, int num_ids, ncclUniqueId *ids, ncclConfig_t *config) {
  return join(group, size, rank);
}
/* Only groups of all ranks are split off: one for each purpose. */
ncclResult_t ncclCommSplit(ncclComm_t group, int colour, int key, ncclComm_t *part, ncclConfig_t *config) {
  return join(part, ((Group *)group)->size, ((Group *)group)->rank);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t group, ncclResult_t *error) { *error = ncclSuccess; return ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t group, int *size) { *size = ((Group *)group)->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t group, int *rank) { *rank = ((Group *)group)->rank; return ncclSuccess; }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t num, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  check_device(from, bytes, "all_reduce");
  nullgpu_count(ALL_REDUCE, "", bytes);
  move(to, from, bytes);
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t num, ncclDataType_t type, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  int size = ((Group *)group)->size;
  check_device(from, bytes, "all_gather");
  check_device(to, bytes, "all_gather");
  nullgpu_count(ALL_GATHER, "", bytes * size);
  for (int rank = 0; rank < size; rank++) move((char *)to + rank * bytes, from, bytes);
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t num, ncclDataType_t type, int root, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  check_device(to, bytes, "broadcast");
  nullgpu_count(BROADCAST, "", bytes);
  if (root == ((Group *)group)->rank) move(to, from, bytes);
  return ncclSuccess;
}
ncclResult_t ncclBcast(void *data, size_t num, ncclDataType_t type, int root, ncclComm_t group, cudaStream_t stream) {
  return ncclBroadcast(data, data, num, type, root, group, stream);
}
ncclResult_t ncclReduce(const void *from, void *to, size_t num, ncclDataType_t type, ncclRedOp_t operation, int root, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  check_device(from, bytes, "reduce");
  nullgpu_count(OTHER_COLLECTIVE, "reduce", bytes);
  if (root == ((Group *)group)->rank) move(to, from, bytes);
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t num, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  Group *mine = (Group *)group;
  check_device(from, bytes, "reduce_scatter");
  nullgpu_count(REDUCE_SCATTER, "", bytes * mine->size);
  move(to, (const char *)from + mine->rank * bytes, bytes);
  return ncclSuccess;
}
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t num, ncclDataType_t type, ncclComm_t group, cudaStream_t stream) {
  size_t bytes = bytes_of(num, type);
  Group *mine = (Group *)group;
  check_device(from, bytes, "all_to_all");
  check_device(to, bytes, "all_to_all");
  nullgpu_count(ALL_TO_ALL, "", bytes * mine->size);
  for (int rank = 0; rank < mine->size; rank++) move((char *)to + rank * bytes, (const char *)from + mine->rank * bytes, bytes);
  return ncclSuccess;
}
ncclResult_t ncclSend(const void *from, size_t num, ncclDataType_t type, int peer, ncclComm_t group, cudaStream_t stream) {
  check_device(from, num, "send");
  nullgpu_count(SEND, "", bytes_of(num, type));
  return ncclSuccess;
}
ncclResult_t ncclRecv(void *to, size_t num, ncclDataType_t type, int peer, ncclComm_t group, cudaStream_t stream) {
  check_device(to, num, "receive");
  nullgpu_count(RECEIVE, "", bytes_of(num, type));
  return ncclSuccess;
}
