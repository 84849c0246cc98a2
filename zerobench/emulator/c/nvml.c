// NVML (libnvidia-ml): the emulated node as a monitor sees it. Memory comes from the account that the node's processes
// keep, so that every process reads the same; what only silicon has (power, temperature, clocks) is not supported.
//
// A device here is one of the node, whatever CUDA_VISIBLE_DEVICES hides from CUDA.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

typedef struct {
  int index;
} *nvmlDevice_t;
enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, BAD_VERSION = 25 };

static struct {
  int index;
} devices[ZB_MAX_DEVICES];
static _Atomic int users;

static int check(const void *device) {
  if (!users) return UNINITIALIZED;
  for (int i = 0; i < zb_gpu()->gpus; i++)
    if (device == &devices[i]) return OK;
  return INVALID;
}
static int text(char *out, unsigned bytes, const char *said) {
  if (!users) return UNINITIALIZED;
  if (strlen(said) >= bytes) return TOO_SMALL;
  strcpy(out, said);
  return OK;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (!zb_gpu()->gpus) return NO_DRIVER;
  for (int i = 0; i < ZB_MAX_DEVICES; i++) devices[i].index = i;
  users++;
  return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
  if (!users) return UNINITIALIZED;
  users--;
  return OK;
}

const char *nvmlErrorString(int error) {
  switch (error) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case NO_DRIVER: return "Driver Not Loaded";
    default: return "Unknown Error";
  }
}

// No version that a driver of NVIDIA's has: a record of it cannot be taken for one of silicon.
int nvmlSystemGetDriverVersion(char *out, unsigned bytes) { return text(out, bytes, "emulated"); }
int nvmlSystemGetNVMLVersion(char *out, unsigned bytes) { return text(out, bytes, "13.emulated"); }
int nvmlSystemGetCudaDriverVersion(int *version) {
  *version = 13000;
  return users ? OK : UNINITIALIZED;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned bytes) {
  char path[64], name[4096];
  snprintf(path, sizeof path, "/proc/%u/exe", pid);
  ssize_t length = readlink(path, name, sizeof name - 1);
  if (length < 0) return NOT_FOUND;
  name[length] = 0;
  return text(out, bytes, name);
}

// Who a device is: the same UUID and PCI address as CUDA says (device.c).
int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)zb_gpu()->gpus;
  return users ? OK : UNINITIALIZED;
}
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  if (!users) return UNINITIALIZED;
  if (index >= (unsigned)zb_gpu()->gpus) return INVALID;
  *device = (nvmlDevice_t)&devices[index];
  return OK;
}
int nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static void uuid_text(int physical, char out[48]) {
  unsigned char b[16];
  zb_uuid(physical, b);
  int at = sprintf(out, "GPU-");
  for (int i = 0; i < 16; i++)
    at += sprintf(out + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}
int nvmlDeviceGetHandleByUUID(const char *wanted, nvmlDevice_t *device) {
  if (!users) return UNINITIALIZED;
  for (int i = 0; i < zb_gpu()->gpus; i++) {
    char uuid[48];
    uuid_text(i, uuid);
    if (!strcmp(uuid, wanted)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
  }
  return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, nvmlDevice_t *device) {
  unsigned domain, bus;
  if (!users) return UNINITIALIZED;
  if (sscanf(wanted, "%x:%x:", &domain, &bus) != 2 || domain || !bus || bus > (unsigned)zb_gpu()->gpus)
    return NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
int nvmlDeviceGetHandleByPciBusId(const char *wanted, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByPciBusId_v2(wanted, device);
}

int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
  int error = check(device);
  if (!error) *index = (unsigned)device->index;
  return error;
}
int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *number) { return nvmlDeviceGetIndex(device, number); }
int nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned bytes) {
  int error = check(device);
  return error ? error : text(out, bytes, zb_gpu()->name);
}
int nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned bytes) {
  int error = check(device);
  if (error) return error;
  char uuid[48];
  uuid_text(device->index, uuid);
  return text(out, bytes, uuid);
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, pci_t *pci) {
  int error = check(device);
  if (error) return error;
  memset(pci, 0, sizeof *pci);
  pci->bus = (unsigned)device->index + 1;
  snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
  snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", pci->bus);
  return OK;
}
int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  *major = zb_gpu()->major;
  *minor = zb_gpu()->minor;
  return check(device);
}

// Memory: what NVML counts and CUDA does not hand out is the driver's, which version 1 reports as used.
typedef struct {
  unsigned long long total, free, used;
} memory_t;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} memory_v2_t;
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, memory_t *memory) {
  int error = check(device);
  if (error) return error;
  memory->total = zb_gpu()->nvml_bytes;
  memory->used = zb_used(device->index) + zb_gpu()->nvml_bytes - zb_gpu()->memory_bytes;
  memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
  return OK;
}
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2_t *memory) {
  int error = check(device);
  if (error) return error;
  if (memory->version != (sizeof *memory | 2u << 24)) return BAD_VERSION;
  memory_t plain = {0};
  nvmlDeviceGetMemoryInfo(device, &plain);
  memory->total = plain.total;
  memory->reserved = zb_gpu()->nvml_bytes - zb_gpu()->memory_bytes;
  memory->free = plain.free;
  memory->used = plain.used - memory->reserved;
  return OK;
}

typedef struct {
  unsigned pid;
  unsigned long long used;
} process_v1_t;
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} process_t;
static int processes(nvmlDevice_t device, unsigned *count, void *out, int version) {
  int error = check(device);
  if (error) return error;
  unsigned room = *count, found = 0;
  zb_account_t *account = zb_account();
  for (int i = 0; i < ZB_MAX_PROCESSES; i++) {
    zb_process_t *slot = &account->process[i];
    uint64_t bytes = slot->pid ? zb_device_bytes(slot, device->index) : 0;
    if (!bytes || !zb_alive(slot)) continue;
    if (found < room && version == 1)
      ((process_v1_t *)out)[found] = (process_v1_t){(unsigned)slot->pid, bytes};
    else if (found < room)
      ((process_t *)out)[found] = (process_t){(unsigned)slot->pid, bytes, ~0u, ~0u};
    found++;
  }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, void *out) {
  return processes(device, count, out, 1);
}
int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, void *out) {
  return processes(device, count, out, 2);
}
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *out) {
  return processes(device, count, out, 3);
}
static int no_processes(nvmlDevice_t device, unsigned *count) {
  *count = 0;
  return check(device);
}
int nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, void *out) {
  (void)out;
  return no_processes(device, count);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, void *out) {
  (void)out;
  return no_processes(device, count);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *out) {
  (void)out;
  return no_processes(device, count);
}

// Nothing is computed.
typedef struct {
  unsigned gpu, memory;
} utilization_t;
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilization_t *rates) {
  *rates = (utilization_t){0, 0};
  return check(device);
}

// torch's expandable segments ask whether memory can be shared over a fabric (state 0: the GPU has none).
typedef struct {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
} fabric_t;
int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, fabric_t *fabric) {
  fabric->status = 0;
  fabric->state = 0;
  return check(device);
}
// Devices of the node reach each other.
int nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, int which, int *status) {
  (void)which;
  *status = 0;
  int error = check(device);
  return error ? error : check(peer);
}
int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
  *current = *pending = 0;
  int error = check(device);
  return error ? error : NOT_SUPPORTED;
}

#define NOT_ON_AN_EMULATED_GPU(name)      \
  int name(nvmlDevice_t device) {         \
    int error = check(device);            \
    return error ? error : NOT_SUPPORTED; \
  }
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetPowerUsage)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetEnforcedPowerLimit)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetPowerManagementLimit)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetTotalEnergyConsumption)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetTemperature)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetClockInfo)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetMaxClockInfo)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetFanSpeed)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetFieldValues)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetProcessUtilization)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetEncoderUtilization)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetDecoderUtilization)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetNvLinkState)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetTopologyCommonAncestor)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetPcieThroughput)
NOT_ON_AN_EMULATED_GPU(nvmlDeviceGetTotalEccErrors)
