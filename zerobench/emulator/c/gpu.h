// What all stand-ins share: the emulated GPU's facts, its memory, and the account that processes of one node keep.
#ifndef ZEROBENCH_GPU_H
#define ZEROBENCH_GPU_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_MAX_DEVICES 16
#define ZB_MAX_STEPS 16
#define ZB_MAX_PROCESSES 128

// The device as ZEROBENCH_EMULATED_GPU describes it ("name=NVIDIA H200;memory_bytes=...;gpus=8;...").
typedef struct {
  char name[128];
  uint64_t memory_bytes;   // what CUDA hands out
  uint64_t nvml_bytes;     // NVML's total, which includes what the driver keeps
  uint64_t context_bytes;  // what a process's CUDA context takes of each device that it uses
  uint64_t l2_bytes;
  int gpus;  // of this node
  int sm_count, major, minor;
  int shared_per_sm, shared_per_block, threads_per_sm, blocks_per_sm;
  int clock_khz, memory_clock_khz, bus_width;
  // NCCL's buffers of a process's first communicator, and of another: the last entry whose ranks are not more than it
  // has.
  int num_nccl;
  struct {
    int ranks;
    uint64_t bytes, another_bytes;
  } nccl[ZB_MAX_STEPS];
  int num_visible, visible[ZB_MAX_DEVICES];  // CUDA_VISIBLE_DEVICES: the node's device behind each ordinal
} zb_gpu_t;

const zb_gpu_t *zb_gpu(void);
// The node's index of the device that a process calls `ordinal`; -1: there is none.
int zb_physical(int ordinal);
int zb_ordinal(int physical);
// The thread's current device, as the process counts it.
extern _Thread_local int zb_current_ordinal;
// The same as the node counts it, with a context on it; -1: none can be had.
int zb_current(void);
// What cudaDeviceGetAttribute and cuDeviceGetAttribute say, which number their attributes alike; -1: no such device.
int zb_attribute(int *value, int attribute, int ordinal);
void zb_uuid(int physical, unsigned char bytes[16]);
// The largest copy whose bytes are really copied.
size_t zb_copy_bytes(void);

// The account: one file that all processes of an emulated node map; without a file, one for this process alone.
// Managed memory (ZB_PAGED) is on the device as far as there is room beside all else, the rest of it on the host: the
// driver moves its pages, so it is never refused and takes the room of nothing that is not managed.
enum { ZB_MEMORY, ZB_CONTEXT, ZB_NCCL, ZB_PAGED, ZB_USES };
typedef struct {
  _Atomic uint64_t pid;      // 0: free
  _Atomic uint64_t started;  // the process's start time in clock ticks: a pid is given out again
  struct {
    _Atomic uint64_t bytes[ZB_USES];
    _Atomic uint64_t peak_bytes;  // of all uses together
  } device[ZB_MAX_DEVICES];
  _Atomic uint64_t pinned_bytes, pinned_peak_bytes;
} zb_process_t;
typedef struct {
  _Atomic uint64_t magic;
  zb_process_t process[ZB_MAX_PROCESSES];
} zb_account_t;
#define ZB_MAGIC 0x327562656f72657aull

zb_account_t *zb_account(void);
// Whether the process of this slot still runs; a slot whose process has ended is freed.
int zb_alive(zb_process_t *slot);
uint64_t zb_device_bytes(const zb_process_t *slot, int physical);
// All processes' bytes on a device of the node.
uint64_t zb_used(int physical);
// Take bytes of a device; -1: the device has not so much left, nothing is taken.
int zb_take(int physical, int use, uint64_t bytes);
void zb_give(int physical, int use, uint64_t bytes);
void zb_pinned(int64_t bytes);
// What this process has of managed memory, wherever its pages are.
uint64_t zb_managed_bytes(void);
// What its contexts have, and its communicators.
uint64_t zb_context_bytes(void);
uint64_t zb_collectives_bytes(void);
// What all processes have on the thread's current device without managed memory.
uint64_t zb_unmanaged_bytes(void);
// This process asked cuDNN for what takes a workspace that is not counted; the kinds it asked for, together.
enum { ZB_CONVOLUTION = 1, ZB_RECURRENT = 2 };
void zb_hide(int kind);
int zb_hidden(void);
// This process has a context on the device from now on (cudaSetDevice, the first call that needs one).
int zb_make_context(int physical);
int zb_has_context(int physical);

// Memory: address ranges that this process was given. None of it is touched here.
enum { ZB_NOTHING, ZB_DEVICE, ZB_HOST, ZB_MANAGED, ZB_MAPPED };
typedef struct {
  char *start;
  size_t bytes;
  int kind, physical;
  void *physical_memory;  // of a mapping: the handle of what is mapped there
} zb_block_t;
void *zb_map(size_t bytes, size_t alignment);
void zb_unmap(void *start, size_t bytes);
void zb_remember(zb_block_t block);
// The block that holds the address; kind ZB_NOTHING: none does.
zb_block_t zb_find(const void *address);
// Takes the block that begins at the address out of the table; kind ZB_NOTHING: none does.
zb_block_t zb_forget(const void *start);
// Device memory, as cudaMalloc gives it: 0, or -1 where the device is full.
int zb_allocate(void **out, size_t bytes, int kind, int physical);
int zb_release(void *start);
#endif
