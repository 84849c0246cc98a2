// Kernels: registered by the compiler's start-up code, asked about, launched into nothing.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

// The compiler's start-up code registers each translation unit's kernels; the handles only need to be there.
void **__cudaRegisterFatBinary(void *binary) {
  (void)binary;
  static void *handle[4];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *a,
                            void *b, void *c, void *d, int *warps) {
  (void)handle, (void)host, (void)device, (void)name, (void)threads, (void)a, (void)b, (void)c, (void)d, (void)warps;
}
void __cudaRegisterVar(void **handle, char *variable, char *device, const char *name, int external, size_t bytes,
                       int constant, int global) {
  (void)handle, (void)variable, (void)device, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}

// kernel<<<grid, block, bytes, stream>>> pushes its configuration, and the stub that it calls pops it.
static _Thread_local struct {
  dim3 grid, block;
  size_t bytes;
  cudaStream_t stream;
} pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, struct CUstream_st *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.bytes = bytes;
  pushed.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *bytes = pushed.bytes;
  *(cudaStream_t *)stream = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = (cudaKernel_t)host;
  return cudaSuccess;
}

static cudaError_t launch(void) { return zb_current() < 0 ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess; }

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t bytes,
                               cudaStream_t stream) {
  (void)kernel, (void)grid, (void)block, (void)arguments, (void)bytes, (void)stream;
  return launch();
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                             cudaStream_t stream) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)bytes, (void)stream;
  return launch();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  (void)config, (void)function, (void)arguments;
  return launch();
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                                        cudaStream_t stream) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)bytes, (void)stream;
  return launch();
}

// A kernel that nobody compiled for this GPU has no facts; these let any launch pass.
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  (void)function;
  const zb_gpu_t *gpu = zb_gpu();
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 10 * gpu->major + gpu->minor;
  attributes->maxDynamicSharedSizeBytes = gpu->shared_per_block;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value,
                                            int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return cudaSuccess;
}

// Blocks of that many threads that fit an SM by its threads alone. Some reductions take their workspace by it.
static cudaError_t occupancy(int *blocks, int threads) {
  const zb_gpu_t *gpu = zb_gpu();
  *blocks = threads > 0 ? gpu->threads_per_sm / threads : 0;
  if (*blocks > gpu->blocks_per_sm) *blocks = gpu->blocks_per_sm;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t bytes) {
  (void)function, (void)bytes;
  return occupancy(blocks, threads);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t bytes, unsigned flags) {
  (void)function, (void)bytes, (void)flags;
  return occupancy(blocks, threads);
}

// Device variables: random states and tables of torch's kernels. One page serves for all.
static char symbols[1 << 16];
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  (void)symbol;
  *address = symbols;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
  (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind, (void)stream;
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned count, enum cudaLibraryOption *more, void **more_values, unsigned more_count) {
  (void)code, (void)options, (void)values, (void)count, (void)more, (void)more_values, (void)more_count;
  *library = malloc(1);
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  (void)name;
  *kernel = (cudaKernel_t)library;
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  free(library);
  return cudaSuccess;
}
