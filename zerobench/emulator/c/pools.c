// Memory pools, which torch's backend cudaMallocAsync allocates from: one pool per device, whose memory goes back to
// the device when nobody uses it, up to the release threshold that torch sets.
#include <string.h>

#include "runtime.h"

static uint64_t reserved_peak[ZB_MAX_DEVICES], used[ZB_MAX_DEVICES], used_peak[ZB_MAX_DEVICES];
static char pool[ZB_MAX_DEVICES];

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  (void)stream;
  cudaError_t error = cudaMalloc(out, bytes);
  if (error != cudaSuccess || !bytes) return error;
  zb_block_t block = zb_find(*out);
  used[block.physical] += block.bytes;
  if (used[block.physical] > used_peak[block.physical]) used_peak[block.physical] = used[block.physical];
  reserved_peak[block.physical] = used_peak[block.physical];
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *start, cudaStream_t stream) {
  (void)stream;
  zb_block_t block = zb_find(start);
  if (block.kind) used[block.physical] -= block.bytes;
  return cudaFree(start);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device) {
  int physical = zb_physical(device);
  if (physical < 0) return zb_fail(cudaErrorInvalidDevice);
  *out = (cudaMemPool_t)&pool[physical];
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t which, enum cudaMemPoolAttr attribute, void *value) {
  long physical = (char *)which - pool;
  if (physical < 0 || physical >= ZB_MAX_DEVICES) return zb_fail(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent: *(uint64_t *)value = used[physical]; break;
    case cudaMemPoolAttrReservedMemHigh: *(uint64_t *)value = reserved_peak[physical]; break;
    case cudaMemPoolAttrUsedMemHigh: *(uint64_t *)value = used_peak[physical]; break;
    case cudaMemPoolAttrReleaseThreshold: *(uint64_t *)value = 0; break;
    default: *(int *)value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t which, enum cudaMemPoolAttr attribute, void *value) {
  (void)value;
  long physical = (char *)which - pool;
  if (physical < 0 || physical >= ZB_MAX_DEVICES) return zb_fail(cudaErrorInvalidValue);
  if (attribute == cudaMemPoolAttrReservedMemHigh) reserved_peak[physical] = used[physical];
  if (attribute == cudaMemPoolAttrUsedMemHigh) used_peak[physical] = used[physical];
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t which, const struct cudaMemAccessDesc *access, size_t count) {
  (void)which, (void)access, (void)count;
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t which, size_t keep) {
  (void)which, (void)keep;
  return cudaSuccess;
}
