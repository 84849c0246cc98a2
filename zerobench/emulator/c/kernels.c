// Kernels: registered by the compiler's start-up code, asked about, launched into nothing.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

// What a translation unit was compiled for, as nvcc writes it (fatbinary_section.h; the parts' layout as cuobjdump
// reads it): a head, then parts, each with a head of its own and the architecture of its code, 86 for sm_86.
typedef struct {
  uint32_t magic, version;
  const uint8_t *head;
} wrapper_t;
typedef struct {
  uint32_t magic;
  uint16_t version, head_bytes;
  uint64_t parts_bytes;
} head_t;
typedef struct {
  uint16_t kind, version;
  uint32_t head_bytes;
  uint64_t code_bytes;
  uint32_t compressed_bytes, options;
  uint16_t minor, major;
  uint32_t architecture;
} part_t;
enum { WRAPPER = 0x466243b1, HEAD = (int)0xba55ed50, MACHINE_CODE = 2 };

// All of torch's units are compiled for one list: a few of them tell it, and the others' pages are not read.
enum { ASKED = 16 };
static const uint8_t *binaries[ASKED];
static int num_binaries;

// The compiler's start-up code registers each translation unit's kernels; the handles only need to be there.
void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[4];
  const wrapper_t *wrapper = binary;
  if (wrapper && wrapper->magic == WRAPPER && wrapper->head && num_binaries < ASKED)
    binaries[num_binaries++] = wrapper->head;
  return handle;
}

// The architecture whose code this GPU runs: of its generation the newest that was compiled, none newer than itself.
// CUB dispatches by it, and knows none that nobody compiled for (89 in a build for 86).
static int code_architecture(void) {
  const zb_gpu_t *gpu = zb_gpu();
  int own = 10 * gpu->major + gpu->minor, found = 0;
  for (int i = 0; i < num_binaries; i++) {
    head_t head;
    memcpy(&head, binaries[i], sizeof head);
    if (head.magic != (uint32_t)HEAD) continue;
    const uint8_t *at = binaries[i] + head.head_bytes, *end = at + head.parts_bytes;
    while (at + sizeof(part_t) <= end) {
      part_t part;
      memcpy(&part, at, sizeof part);
      int of = (int)part.architecture;
      if (part.kind == MACHINE_CODE && of / 10 == gpu->major && of <= own && of > found) found = of;
      if (part.head_bytes == 0) break;
      at += part.head_bytes + part.code_bytes;
    }
  }
  return found ? found : own;
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

// A grid that no GPU takes is refused, as flash attention's of more than 65,535 sequences.
static cudaError_t launch(dim3 grid, dim3 block) {
  if (grid.y > 0xffff || grid.z > 0xffff || (size_t)block.x * block.y * block.z > 1024)
    return zb_fail(cudaErrorInvalidConfiguration);
  return zb_current() < 0 ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t bytes,
                               cudaStream_t stream) {
  (void)kernel, (void)arguments, (void)bytes, (void)stream;
  return launch(grid, block);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                             cudaStream_t stream) {
  (void)function, (void)arguments, (void)bytes, (void)stream;
  return launch(grid, block);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  (void)function, (void)arguments;
  return launch(config->gridDim, config->blockDim);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                                        cudaStream_t stream) {
  (void)function, (void)arguments, (void)bytes, (void)stream;
  return launch(grid, block);
}

// A kernel that nobody compiled for this GPU has no facts; these let any launch pass.
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  (void)function;
  const zb_gpu_t *gpu = zb_gpu();
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = code_architecture();
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
