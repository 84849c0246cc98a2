// The driver (libcuda): what torch's expandable segments, Triton's launcher and cudart's users call by name.
//
// Virtual memory is real about addresses and sizes: a reserved range is address space, what cuMemCreate makes is taken
// from the device, and it goes back when it is neither mapped nor held any more.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu.h"
#include "waits.h"

#define GRANULE ((size_t)2 << 20)

CUresult cuInit(unsigned flags) { return flags || !zb_gpu()->num_visible ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

static const struct {
  CUresult error;
  const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported on the emulated GPU"},
};

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "an error of the emulated GPU";
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) *text = errors[i].text;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = "CUDA_ERROR_UNKNOWN";
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) *name = errors[i].name;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *result) {
  (void)version, (void)flags;
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Devices and their contexts. A context's handle is its device's number and 1.
CUresult cuDeviceGetCount(int *count) {
  *count = zb_gpu()->num_visible;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return zb_physical(ordinal) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  if (zb_physical(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  strncpy(name, zb_gpu()->name, (size_t)bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  int physical = zb_physical(device);
  if (physical < 0) return CUDA_ERROR_INVALID_DEVICE;
  zb_uuid(physical, (unsigned char *)uuid->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  *bytes = zb_gpu()->memory_bytes;
  return zb_physical(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return zb_attribute(value, (int)attribute, device) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  int physical = zb_physical(device);
  if (physical < 0) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = zb_has_context(physical);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  int physical = zb_physical(device);
  if (physical < 0) return CUDA_ERROR_INVALID_DEVICE;
  *context = (CUcontext)(intptr_t)(device + 1);
  return zb_make_context(physical) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  (void)device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  int physical = zb_physical(zb_current_ordinal);
  int has = physical >= 0 && zb_has_context(physical);
  *context = has ? (CUcontext)(intptr_t)(zb_current_ordinal + 1) : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (!context) return CUDA_SUCCESS;
  zb_current_ordinal = (int)(intptr_t)context - 1;
  return zb_current() < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static _Thread_local int pushed[16], depth;
CUresult cuCtxPushCurrent(CUcontext context) {
  if (depth == 16) return CUDA_ERROR_INVALID_VALUE;
  pushed[depth++] = zb_current_ordinal;
  return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  if (!depth) return CUDA_ERROR_INVALID_VALUE;
  if (context) *context = (CUcontext)(intptr_t)(zb_current_ordinal + 1);
  zb_current_ordinal = pushed[--depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = zb_current_ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *bytes, CUlimit limit) {
  (void)limit;
  *bytes = 1024;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t bytes) {
  (void)limit, (void)bytes;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) {
  zb_wait_for_device();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  (void)stream;
  return cuCtxGetCurrent(context);
}
CUresult cuStreamSynchronize(CUstream stream) {
  (void)stream;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  (void)event, (void)stream;
  return CUDA_SUCCESS;
}

// Virtual memory.
typedef struct {
  size_t bytes;
  int physical, held;  // by cuMemCreate's caller and by each mapping
} zb_physical_memory_t;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void let_go(zb_physical_memory_t *memory) {
  pthread_mutex_lock(&lock);
  int held = --memory->held;
  pthread_mutex_unlock(&lock);
  if (held) return;
  zb_give(memory->physical, ZB_MEMORY, memory->bytes);
  free(memory);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags which) {
  (void)properties, (void)which;
  *bytes = GRANULE;
  return CUDA_SUCCESS;
}

// Reserved ranges, few per process: torch reserves one for each stream and pool.
typedef struct zb_range {
  struct zb_range *next;
  char *start;
  size_t bytes;
} zb_range_t;
static zb_range_t *ranges;

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  (void)wanted, (void)flags;  // where the range is to lie is a wish
  if (!bytes || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
  char *start = zb_map(bytes, alignment > GRANULE ? alignment : GRANULE);
  if (!start) return CUDA_ERROR_OUT_OF_MEMORY;
  zb_range_t *range = malloc(sizeof *range);
  pthread_mutex_lock(&lock);
  *range = (zb_range_t){ranges, start, bytes};
  ranges = range;
  pthread_mutex_unlock(&lock);
  *out = (CUdeviceptr)start;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes) {
  zb_range_t *found = NULL;
  pthread_mutex_lock(&lock);
  for (zb_range_t **at = &ranges; *at && !found; at = &(*at)->next) {
    if ((*at)->start != (char *)start || (*at)->bytes != bytes) continue;
    found = *at;
    *at = found->next;
    break;
  }
  pthread_mutex_unlock(&lock);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  zb_unmap(found->start, found->bytes);
  free(found);
  return CUDA_SUCCESS;
}

static int is_reserved(const char *start, size_t bytes) {
  int inside = 0;
  pthread_mutex_lock(&lock);
  for (zb_range_t *range = ranges; range && !inside; range = range->next)
    inside = start >= range->start && start + bytes <= range->start + range->bytes;
  pthread_mutex_unlock(&lock);
  return inside;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
  (void)flags;
  int physical = zb_physical(properties->location.id);
  if (physical < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (!bytes || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
  if (zb_make_context(physical) || zb_take(physical, ZB_MEMORY, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  zb_physical_memory_t *memory = malloc(sizeof *memory);
  *memory = (zb_physical_memory_t){bytes, physical, 1};
  *handle = (CUmemGenericAllocationHandle)memory;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  let_go((zb_physical_memory_t *)handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  (void)flags;
  zb_physical_memory_t *memory = (zb_physical_memory_t *)handle;
  if (offset || bytes != memory->bytes || !is_reserved((char *)start, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (zb_find((char *)start).kind) return CUDA_ERROR_ALREADY_MAPPED;
  pthread_mutex_lock(&lock);
  memory->held++;
  pthread_mutex_unlock(&lock);
  zb_remember((zb_block_t){(char *)start, bytes, ZB_MAPPED, memory->physical, memory});
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr start, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    zb_block_t block = zb_find((char *)start + done);
    if (block.kind != ZB_MAPPED || block.start != (char *)start + done || done + block.bytes > bytes)
      return CUDA_ERROR_INVALID_VALUE;
    zb_forget(block.start);
    madvise(block.start, block.bytes, MADV_DONTNEED);  // small copies may have touched it
    let_go(block.physical_memory);
    done += block.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  (void)bytes, (void)access, (void)count;
  return zb_find((void *)start).kind == ZB_MAPPED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Plain memory, as the runtime's.
CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
  int physical = zb_current();
  void *start;
  if (physical < 0 || zb_allocate(&start, bytes, ZB_DEVICE, physical)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = (CUdeviceptr)start;
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr start) { return zb_release((void *)start) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
  int physical = zb_current();
  if (physical < 0) return CUDA_ERROR_INVALID_DEVICE;
  uint64_t used = zb_used(physical);
  *total = zb_gpu()->memory_bytes;
  *free_bytes = used < *total ? *total - used : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer) {
  zb_block_t block = zb_find((void *)pointer);
  if (!block.kind) return CUDA_ERROR_NOT_FOUND;
  if (start) *start = (CUdeviceptr)block.start;
  if (bytes) *bytes = block.bytes;
  return CUDA_SUCCESS;
}

static CUresult copy(void *to, const void *from, size_t bytes) {
  if (bytes <= zb_copy_bytes()) memmove(to, from, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) { return copy((void *)to, from, bytes); }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) { return copy(to, (void *)from, bytes); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  (void)stream;
  return copy((void *)to, from, bytes);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  return copy(to, (void *)from, bytes);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  (void)stream;
  for (size_t i = 0; count * 4 <= zb_copy_bytes() && i < count; i++) ((unsigned *)to)[i] = value;
  return CUDA_SUCCESS;
}

// Triton's launcher asks of each tensor whether the device can reach it.
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  zb_block_t block = zb_find((void *)pointer);
  if (!block.kind) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(CUmemorytype *)value = block.kind == ZB_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = zb_ordinal(block.physical); break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// Modules and kernels that were compiled while the program ran: taken, asked about, launched into nothing.
CUresult cuModuleLoad(CUmodule *module, const char *path) {
  (void)path;
  *module = malloc(1);
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return cuModuleLoad(module, image); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoad(module, image);
}
CUresult cuModuleUnload(CUmodule module) {
  free(module);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)name;
  *function = (CUfunction)module;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function, (void)config;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned bytes, CUstream stream, void **arguments, void **extra) {
  (void)function, (void)x, (void)y, (void)z, (void)block_x, (void)block_y, (void)block_z, (void)bytes, (void)stream;
  (void)arguments, (void)extra;
  return CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned bytes, CUstream stream,
                                   void **arguments) {
  return cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, bytes, stream, arguments, NULL);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  (void)config, (void)function, (void)arguments, (void)extra;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t bytes) {
  (void)function, (void)bytes;
  *blocks = threads > 0 ? zb_gpu()->threads_per_sm / threads : 0;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
  (void)function, (void)config;
  *clusters = zb_gpu()->sm_count / 16;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)box, (void)element_strides;
  (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}
