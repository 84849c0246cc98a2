// NCCL: collectives of one rank that answer as if all ranks were alike. ProcessGroupNCCL makes communicators, checks
// them for errors and launches; DDP compares parameter counts by an all-gather, DeepSpeed adds up norms and flags.
//
// Messages up to the size at which copies are real are computed: an all-gather repeats one's own part, a sum of n
// ranks is n times one's own, an average, a minimum, a maximum (and a product) are one's own. Larger ones move nothing,
// and what another rank alone would know, a message or a broadcast from it, leaves the buffer as it is.
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "waits.h"

typedef struct {
  char bytes[128];
} ncclUniqueId;
typedef struct {
  int ranks, rank, physical, charged;
  uint64_t buffers;
} *ncclComm_t;
enum { ncclSuccess, ncclUnhandledCudaError };
enum { SUM, PROD, MAX, MIN, AVG, FIRST_SCALED };
#define GATHERED 64  // an all-gather may write so many times the bytes of the largest real copy

#ifndef ZB_NCCL_VERSION
#define ZB_NCCL_VERSION 22907  // what torch names where it says so (build.py)
#endif

int ncclGetVersion(int *version) {
  *version = ZB_NCCL_VERSION;
  return ncclSuccess;
}
const char *ncclGetErrorString(int error) { return error ? "unhandled cuda error" : "no error"; }
const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return "";
}

int ncclGetUniqueId(ncclUniqueId *id) {
  static _Atomic int made;
  memset(id, 0, sizeof *id);
  int number = ++made;
  memcpy(id->bytes, &number, sizeof number);
  return ncclSuccess;
}

static int create(ncclComm_t *out, int ranks, int rank) {
  int physical = zb_current();
  if (physical < 0) return ncclUnhandledCudaError;
  ncclComm_t comm = calloc(1, sizeof *comm);
  comm->ranks = ranks;
  comm->rank = rank;
  comm->physical = physical;
  *out = comm;
  return ncclSuccess;
}

int ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank) {
  (void)id;
  return create(out, ranks, rank);
}
int ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, void *config) {
  (void)id, (void)config;
  return create(out, ranks, rank);
}
int ncclCommInitRankScalable(ncclComm_t *out, int ranks, int rank, int count, ncclUniqueId *ids, void *config) {
  (void)count, (void)ids, (void)config;
  return create(out, ranks, rank);
}

// How many ranks have the same colour is known to the ranks together alone: such a communicator answers as if it had
// one, at the place of its key.
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, void *config) {
  (void)comm, (void)config;
  *out = NULL;
  if (color < 0) return ncclSuccess;  // NCCL_SPLIT_NOCOLOR: this rank is in none
  int error = create(out, 1, 0);
  if (!error) (*out)->rank = key;
  return error;
}

int ncclCommDestroy(ncclComm_t comm) {
  zb_wait_for_device();  // the watchdog ends when it has seen all done
  if (comm && comm->charged) zb_give(comm->physical, ZB_NCCL, comm->buffers);
  free(comm);
  return ncclSuccess;
}
int ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
int ncclCommFinalize(ncclComm_t comm) {
  (void)comm;
  return ncclSuccess;
}
int ncclCommGetAsyncError(ncclComm_t comm, int *error) {
  (void)comm;
  *error = ncclSuccess;
  return ncclSuccess;
}
int ncclCommCount(ncclComm_t comm, int *count) {
  *count = comm->ranks;
  return ncclSuccess;
}
int ncclCommUserRank(ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
int ncclCommCuDevice(ncclComm_t comm, int *device) {
  *device = zb_ordinal(comm->physical);
  return ncclSuccess;
}
int ncclMemAlloc(void **out, size_t bytes) {
  int physical = zb_current();
  return physical < 0 || zb_allocate(out, bytes, ZB_DEVICE, physical) ? ncclUnhandledCudaError : ncclSuccess;
}
int ncclMemFree(void *start) { return zb_release(start) ? ncclUnhandledCudaError : ncclSuccess; }

// Buffers are made when a communicator first connects, at its first collective; the process's first loads kernels too.
static int connect(ncclComm_t comm) {
  if (comm->charged) return ncclSuccess;
  const zb_gpu_t *gpu = zb_gpu();
  int first = !zb_collectives_bytes();
  for (int i = 0; i < gpu->num_nccl && gpu->nccl[i].ranks <= comm->ranks; i++)
    comm->buffers = first ? gpu->nccl[i].bytes : gpu->nccl[i].another_bytes;
  if (zb_take(comm->physical, ZB_NCCL, comm->buffers)) return ncclUnhandledCudaError;
  comm->charged = 1;
  return ncclSuccess;
}

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? sizes[type] : 1;
}

static float from_half(uint16_t half) {
  _Float16 value;
  memcpy(&value, &half, sizeof value);
  return (float)value;
}
static uint16_t to_half(float value) {
  _Float16 narrow = (_Float16)value;
  uint16_t half;
  memcpy(&half, &narrow, sizeof half);
  return half;
}
static float from_bfloat16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);  // NaN stays NaN
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);                 // to the nearest, ties to even
}

#define EACH(T, N)                                                                   \
  for (size_t i = 0; i < count; i++) ((T *)values)[i] = (T)(((T *)values)[i] * (N)); \
  break
static void times(void *values, size_t count, int type, double n) {
  uint16_t *halves = values;
  uint64_t whole = (uint64_t)n;  // integers are scaled by numbers of ranks alone, and wrap as they do on the device
  switch (type) {
    case 0: EACH(int8_t, whole);
    case 1: EACH(uint8_t, whole);
    case 2: EACH(int32_t, whole);
    case 3: EACH(uint32_t, whole);
    case 4:
    case 5: EACH(uint64_t, whole);
    case 7: EACH(float, n);
    case 8: EACH(double, n);
    case 6:
      for (size_t i = 0; i < count; i++) halves[i] = to_half((float)(from_half(halves[i]) * n));
      break;
    case 9:
      for (size_t i = 0; i < count; i++) halves[i] = to_bfloat16((float)(from_bfloat16(halves[i]) * n));
      break;
    default: break;  // 8-bit floats are never summed
  }
}

// Operators that scale before they add: torch makes one for gradients that are divided by a factor of their own.
static double factors[256];
static _Atomic unsigned made;
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, ncclComm_t comm) {
  (void)where, (void)comm;
  unsigned slot = made++ % 256;
  factors[slot] = type == 6   ? from_half(*(uint16_t *)scalar)
                  : type == 9 ? from_bfloat16(*(uint16_t *)scalar)
                  : type == 7 ? *(float *)scalar
                              : *(double *)scalar;
  *op = FIRST_SCALED + (int)slot;
  return ncclSuccess;
}
int ncclRedOpDestroy(int op, ncclComm_t comm) {
  (void)op, (void)comm;
  return ncclSuccess;
}

static int reduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm) {
  size_t bytes = count * size_of(type);
  if (bytes <= zb_copy_bytes()) {
    memmove(to, from, bytes);
    if (op == SUM) times(to, count, type, comm->ranks);
    if (op >= FIRST_SCALED) times(to, count, type, comm->ranks * factors[(op - FIRST_SCALED) % 256]);
  }
  return connect(comm);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream) {
  (void)stream;
  return reduce(from, to, count, type, op, comm);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, ncclComm_t comm, void *stream) {
  (void)stream;
  return root == comm->rank ? reduce(from, to, count, type, op, comm) : connect(comm);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream) {
  (void)stream;
  return reduce((const char *)from + (size_t)comm->rank * count * size_of(type), to, count, type, op, comm);
}

static int copy(const void *from, void *to, size_t bytes, ncclComm_t comm) {
  if (bytes <= zb_copy_bytes()) memmove(to, from, bytes);
  return connect(comm);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, void *stream) {
  (void)stream;
  size_t bytes = count * size_of(type);
  if (comm->ranks == 1) return copy(from, (char *)to + (size_t)comm->rank * bytes, bytes, comm);
  if (bytes <= zb_copy_bytes() && bytes * (size_t)comm->ranks <= GATHERED * zb_copy_bytes()) {
    char *own = malloc(bytes);  // `from` may be a part of `to`
    memcpy(own, from, bytes);
    for (int i = 0; i < comm->ranks; i++) memcpy((char *)to + (size_t)i * bytes, own, bytes);
    free(own);
  }
  return connect(comm);
}
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, void *stream) {
  (void)stream;
  // As alike as ranks are, what the root has is what one has oneself: for others it stays.
  return root == comm->rank ? copy(from, to, count * size_of(type), comm) : connect(comm);
}
int ncclBcast(void *buffer, size_t count, int type, int root, ncclComm_t comm, void *stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
// What each rank sends to this one is what this one would send to itself.
int ncclAlltoAll(const void *from, void *to, size_t count, int type, ncclComm_t comm, void *stream) {
  (void)stream;
  size_t bytes = count * size_of(type);
  if (bytes * (size_t)comm->ranks <= zb_copy_bytes())
    for (int i = 0; i < comm->ranks; i++)
      memmove((char *)to + (size_t)i * bytes, (const char *)from + (size_t)comm->rank * bytes, bytes);
  return connect(comm);
}
// A message from another rank has no bytes: the buffer stays as it is.
int ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm, void *stream) {
  (void)from, (void)count, (void)type, (void)peer, (void)stream;
  return connect(comm);
}
int ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, void *stream) {
  (void)to, (void)count, (void)type, (void)peer, (void)stream;
  return connect(comm);
}
