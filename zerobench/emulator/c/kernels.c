// Kernels: registered by the compiler's start-up code, asked about, launched into nothing.
#include <pthread.h>
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

// torch's kernels of which the place of the output among the arguments is known, by what their names begin with.
enum { UNKNOWN, DATA, CLOSURE, REDUCTION, SECOND };
static const struct {
  const char *prefix;
  int family;
} families[] = {
    // (int count, function, pointers with the output first, ...)
    {"_ZN2at6native29vectorized_elementwise_kernel", DATA},
    {"_ZN2at6native27unrolled_elementwise_kernel", DATA},
    // (int count, closure that holds offsets and pointers with the output first)
    {"_ZN2at6native18elementwise_kernel", CLOSURE},
    // (closure with the input, then the output)
    {"_ZN2at6native13reduce_kernel", REDUCTION},
    // (input, output, ...): how many elements nonzero() has found
    {"_ZN14at_cuda_detail3cub6detail6reduceL28DeviceReduceSingleTileKernel", SECOND},
    {"_ZN14at_cuda_detail3cub6detail6reduce28DeviceReduceSingleTileKernel", SECOND},
};
typedef struct {
  const void *host;
  int family;
} known_t;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known_t *known;  // open addressing by the host's pointer
static size_t capacity, used;

static known_t *slot(const void *host) {
  size_t at = (uintptr_t)host * 0x9e3779b97f4a7c15ull >> 20 & (capacity - 1);
  while (known[at].host && known[at].host != host) at = (at + 1) & (capacity - 1);
  return &known[at];
}

static void grow(void) {
  known_t *old = known;
  size_t size = capacity;
  capacity = capacity ? 2 * capacity : 1 << 14;
  known = calloc(capacity, sizeof *known);
  if (!known) abort();
  for (size_t i = 0; i < size; i++)
    if (old[i].host) *slot(old[i].host) = old[i];
  free(old);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *a,
                            void *b, void *c, void *d, int *warps) {
  (void)handle, (void)device, (void)threads, (void)a, (void)b, (void)c, (void)d, (void)warps;
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    if (strncmp(name, families[i].prefix, strlen(families[i].prefix))) continue;
    pthread_mutex_lock(&lock);
    if (2 * used++ >= capacity) grow();
    *slot(host) = (known_t){host, families[i].family};
    pthread_mutex_unlock(&lock);
  }
}

static int on_device(uintptr_t word) {
  if (word < 1 << 20 || word >> 47) return 0;  // no address
  int kind = zb_find((void *)word).kind;
  return kind == ZB_DEVICE || kind == ZB_MAPPED;
}

// A closure holds what turns an index into offsets of its n tensors, 25 dimensions at most: their count, a divisor of
// 12 bytes for each and n strides of 4 bytes for each; much of it is not set. Then come the n pointers.
#define OFFSETS_WORDS(n) (size_t)((4 + 25 * 12 + 25 * 4 * (n) + 7) / 8)
static void *closure_output(const uintptr_t *words) {
  for (int n = 4; n; n--) {
    int all = 1;
    for (int i = 0; i < n; i++) all = all && on_device(words[OFFSETS_WORDS(n) + i]);
    if (all) return (void *)words[OFFSETS_WORDS(n)];
  }
  return NULL;
}

// A reduction's closure has two such parts, of one tensor and of two, and some words of its own before them; then the
// input, the output and a second output, which may be none.
static void *reduction_output(const uintptr_t *words) {
  size_t first = OFFSETS_WORDS(1) + OFFSETS_WORDS(2);
  for (size_t i = first; i < first + 24; i++)
    if (on_device(words[i]) && on_device(words[i + 1]) && (!words[i + 2] || on_device(words[i + 2])))
      return (void *)words[i + 1];
  return NULL;
}

// What a known kernel would have written is no longer what was copied there.
static void forget_output(const void *host, void **arguments) {
  pthread_mutex_lock(&lock);
  int family = capacity ? slot(host)->family : UNKNOWN;
  pthread_mutex_unlock(&lock);
  void *output = family == DATA        ? *(void **)arguments[2]
                 : family == CLOSURE   ? closure_output(arguments[1])
                 : family == REDUCTION ? reduction_output(arguments[0])
                 : family == SECOND    ? *(void **)arguments[1]
                                       : NULL;
  if (!on_device((uintptr_t)output)) return;
  // The size of an element is not known: of more than 64 elements as many bytes are forgotten as there are elements.
  zb_overwritten(output, family == DATA || family == CLOSURE ? (size_t)*(int *)arguments[0] : 1);
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

static cudaError_t launch(const void *host, void **arguments) {
  forget_output(host, arguments);
  return zb_current() < 0 ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t bytes,
                               cudaStream_t stream) {
  (void)grid, (void)block, (void)bytes, (void)stream;
  return launch(kernel, arguments);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                             cudaStream_t stream) {
  (void)grid, (void)block, (void)bytes, (void)stream;
  return launch(function, arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  (void)config;
  return launch(function, arguments);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t bytes,
                                        cudaStream_t stream) {
  (void)grid, (void)block, (void)bytes, (void)stream;
  return launch(function, arguments);
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
