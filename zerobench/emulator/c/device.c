// Devices: how many, which one, what it can do. torch asks for the properties once and decides by them which kernels
// it takes, how large cuBLAS's workspaces are and how many blocks it launches.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"
#include "waits.h"

static _Thread_local cudaError_t last = cudaSuccess;

cudaError_t zb_fail(cudaError_t error) { return last = error; }

cudaError_t cudaGetDeviceCount(int *count) {
  *count = zb_gpu()->num_visible;
  return *count ? cudaSuccess : zb_fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
  *device = zb_current_ordinal;
  return cudaSuccess;
}

// Makes the device's context, as the runtime does since CUDA 12.
cudaError_t cudaSetDevice(int device) {
  int physical = zb_physical(device);
  if (physical < 0) return zb_fail(cudaErrorInvalidDevice);
  zb_current_ordinal = device;
  return zb_make_context(physical) ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned flags, unsigned more) {
  (void)flags, (void)more;
  int physical = zb_physical(device);
  if (physical < 0) return zb_fail(cudaErrorInvalidDevice);
  return zb_make_context(physical) ? zb_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaDeviceReset(void) { return zb_fail(cudaErrorNotSupported); }
cudaError_t cudaDeviceSynchronize(void) {
  zb_wait_for_device();
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  (void)flags;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  const zb_gpu_t *gpu = zb_gpu();
  int physical = zb_physical(device);
  if (physical < 0) return zb_fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", gpu->name);
  zb_uuid(physical, (unsigned char *)p->uuid.bytes);
  p->totalGlobalMem = gpu->memory_bytes;
  p->major = gpu->major;
  p->minor = gpu->minor;
  p->multiProcessorCount = gpu->sm_count;
  p->l2CacheSize = (int)gpu->l2_bytes;
  p->persistingL2CacheMaxSize = (int)(gpu->l2_bytes * 5 / 8);
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = (size_t)gpu->shared_per_block;
  p->sharedMemPerMultiprocessor = (size_t)gpu->shared_per_sm;
  p->reservedSharedMemPerBlock = 1 << 10;
  p->maxThreadsPerMultiProcessor = gpu->threads_per_sm;
  p->maxBlocksPerMultiProcessor = gpu->blocks_per_sm;
  p->memoryBusWidth = gpu->bus_width;
  p->pciBusID = 1 + physical;
  // What every GPU since Volta has.
  p->warpSize = 32;
  p->regsPerBlock = p->regsPerMultiprocessor = 1 << 16;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 0xffff;
  p->memPitch = 0x7fffffff;
  p->totalConstMem = 1 << 16;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = p->managedMemory = 1;
  p->concurrentManagedAccess = p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->cooperativeLaunch = p->memoryPoolsSupported = p->ECCEnabled = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  return zb_attribute(value, (int)attribute, device) ? zb_fail(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  int physical = zb_physical(device);
  if (physical < 0) return zb_fail(cudaErrorInvalidDevice);
  snprintf(text, (size_t)bytes, "0000:%02X:00.0", 1 + physical);
  return cudaSuccess;
}

// Devices of a node reach each other, as over NVLink: torch asks before it copies from one to the other.
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return zb_physical(peer) < 0 ? zb_fail(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

static const struct {
  cudaError_t error;
  const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported on the emulated GPU"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "CUDA graphs cannot be captured on the emulated GPU"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
};

const char *cudaGetErrorString(cudaError_t error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].text;
  return "an error of the emulated GPU";
}

const char *cudaGetErrorName(cudaError_t error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return errors[i].name;
  return "cudaErrorUnknown";
}

// torch gets the driver's functions by name through the runtime. The stand-in of the driver lies beside this library:
// it is opened by its path, so that a driver which the machine has is never the one that answers.
static void *driver(const char *symbol) {
  static void *library;
  if (!library) {
    Dl_info here;
    char path[4096];
    if (!dladdr((void *)driver, &here)) return NULL;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibcuda.so.1", slash ? (int)(slash + 1 - here.dli_fname) : 0, here.dli_fname);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  return library ? dlsym(library, symbol) : NULL;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  (void)version, (void)flags;
  char later[256];
  snprintf(later, sizeof later, "%s_v2", symbol);  // cuMemGetAddressRange and the like exist as _v2 alone
  *function = driver(symbol);
  if (!*function) *function = driver(later);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : zb_fail(cudaErrorSymbolNotFound);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, result);
}

cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
