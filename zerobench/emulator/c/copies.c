// Memory of the runtime: cudaMalloc and pinned memory by the account, copies that are real as long as they are small.
//
// Small copies carry what steers a program: counts, flags, norms, indices. Larger ones would only make address space
// into memory, so they move nothing.
#include <string.h>

#include "runtime.h"

static cudaError_t allocate(void **out, size_t bytes, int kind) {
  int physical = zb_current();
  if (physical < 0) return zb_fail(cudaErrorMemoryAllocation);
  *out = NULL;
  if (!bytes) return cudaSuccess;
  return zb_allocate(out, bytes, kind, physical) ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(out, bytes, ZB_DEVICE); }
cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(out, bytes, ZB_MANAGED);
}

// Where pages of managed memory should be: the account has them on the device as far as it has room (gpu.h).
static cudaError_t managed(const void *start) {
  return zb_find(start).kind == ZB_MANAGED ? cudaSuccess : zb_fail(cudaErrorInvalidValue);
}
#if CUDART_VERSION >= 13000
#define LOCATION struct cudaMemLocation where
#define FLAGS , unsigned flags
#else
#define LOCATION int where
#define FLAGS
#endif
cudaError_t cudaMemPrefetchAsync(const void *start, size_t bytes, LOCATION FLAGS, cudaStream_t stream) {
  return managed(start);
}
cudaError_t cudaMemAdvise(const void *start, size_t bytes, enum cudaMemoryAdvise advice, LOCATION) {
  return managed(start);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return allocate(out, bytes, ZB_HOST); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  return allocate(out, bytes, ZB_HOST);
}

cudaError_t cudaFree(void *start) {
  if (!start) return zb_current() < 0 ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
  return zb_release(start) ? zb_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaFreeHost(void *start) { return cudaFree(start); }

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  (void)flags;
  *device = host;
  return cudaSuccess;
}

// Memory that the process has itself: counted as pinned, never unmapped.
cudaError_t cudaHostRegister(void *start, size_t bytes, unsigned flags) {
  (void)flags;
  zb_remember((zb_block_t){start, bytes, ZB_HOST, zb_current(), NULL});
  zb_pinned((int64_t)bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *start) {
  zb_block_t block = zb_forget(start);
  if (block.kind != ZB_HOST) return zb_fail(cudaErrorInvalidValue);
  zb_pinned(-(int64_t)block.bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  int physical = zb_current();
  if (physical < 0) return zb_fail(cudaErrorMemoryAllocation);
  uint64_t used = zb_used(physical);
  *total = zb_gpu()->memory_bytes;
  *free_bytes = used < *total ? *total - used : 0;
  return cudaSuccess;
}

// torch asks of each pointer whether it is pinned and whose device it is.
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  zb_block_t block = zb_find(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = block.kind == ZB_HOST      ? cudaMemoryTypeHost
                     : block.kind == ZB_MANAGED ? cudaMemoryTypeManaged
                     : block.kind               ? cudaMemoryTypeDevice
                                                : cudaMemoryTypeUnregistered;
  attributes->device = block.kind ? zb_ordinal(block.physical) : -2;
  attributes->devicePointer = block.kind ? (void *)pointer : NULL;
  attributes->hostPointer = attributes->type == cudaMemoryTypeDevice ? NULL : (void *)pointer;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, NULL);
  return cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)kind, (void)stream;
  if (bytes <= zb_copy_bytes()) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeer(void *to, int device, const void *from, int source, size_t bytes) {
  (void)device, (void)source;
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int source, size_t bytes, cudaStream_t stream) {
  (void)device, (void)source;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)kind, (void)stream;
  if (width * height <= zb_copy_bytes())
    for (size_t row = 0; row < height; row++)
      memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  if (bytes <= zb_copy_bytes()) memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  (void)stream;
  return cudaMemset(to, value, bytes);
}
