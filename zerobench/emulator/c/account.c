// The account of an emulated node: what each process holds on each device, in one file that all of them map.
//
// Only a process writes in its own slot. A device is full when the slots together would pass its memory: bytes are
// added first and taken back where the sum is too large, so that two processes never get what only one can have.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

static zb_account_t *account;
static zb_process_t *mine;
static int left;  // the process is ending: what it still gives back has been given back already
static _Atomic int contexts[ZB_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t start_time(uint64_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t bytes = read(file, text, sizeof text - 1);
  close(file);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  char *field = strrchr(text, ')');  // the name before it may hold spaces; the state is field 3, the start time 22
  for (int i = 2; field && i < 22; i++) field = strchr(field + 1, ' ');
  return field ? strtoull(field, NULL, 10) : 0;
}

static void clear(zb_process_t *slot) {
  for (int d = 0; d < ZB_MAX_DEVICES; d++) {
    for (int use = 0; use < ZB_USES; use++) slot->device[d].bytes[use] = 0;
    slot->device[d].peak_bytes = 0;
  }
  slot->pinned_bytes = slot->pinned_peak_bytes = 0;
}

int zb_alive(zb_process_t *slot) {
  uint64_t pid = slot->pid;
  if (!pid) return 0;
  uint64_t since = start_time(pid);
  if (since && (!slot->started || since == slot->started)) return 1;
  if (atomic_compare_exchange_strong(&slot->pid, &pid, ~0ull)) {  // nobody else clears it
    clear(slot);
    slot->started = 0;
    slot->pid = 0;
  }
  return 0;
}

// A fork of a process that has used no GPU may be one of another node.
static void leave_node(void) { account = NULL; }

static zb_account_t *map(void) {
  static int told;
  if (!told++) pthread_atfork(NULL, NULL, leave_node);
  const char *path = getenv("ZEROBENCH_EMULATED_ACCOUNT");
  int file = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (path && *path && (file < 0 || ftruncate(file, sizeof(zb_account_t)))) {
    fprintf(stderr, "zerobench: the emulated GPU's account %s: %s\n", path, strerror(errno));
    _exit(2);
  }
  void *mapped = mmap(NULL, sizeof(zb_account_t), PROT_READ | PROT_WRITE,
                      file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (mapped == MAP_FAILED) abort();
  ((zb_account_t *)mapped)->magic = ZB_MAGIC;
  return mapped;
}

zb_account_t *zb_account(void) {
  pthread_mutex_lock(&lock);
  if (!account) account = map();
  pthread_mutex_unlock(&lock);
  return account;
}

static void leave(void) {
  if (!mine || mine->pid != (uint64_t)getpid()) return;
  left = 1;
  clear(mine);
  mine->started = 0;
  mine->pid = 0;
}

// A fork has neither its parent's memory nor its contexts.
static void forget_after_fork(void) {
  mine = NULL;
  for (int i = 0; i < ZB_MAX_DEVICES; i++) contexts[i] = 0;
}

static zb_process_t *own_slot(void) {
  zb_account_t *all = zb_account();
  pthread_mutex_lock(&lock);
  for (int i = 0; !mine && i < ZB_MAX_PROCESSES; i++) {
    zb_process_t *slot = &all->process[i];
    uint64_t none = 0;
    if (slot->pid) zb_alive(slot);
    if (!atomic_compare_exchange_strong(&slot->pid, &none, (uint64_t)getpid())) continue;
    slot->started = start_time((uint64_t)getpid());
    mine = slot;
    pthread_atfork(NULL, NULL, forget_after_fork);
    atexit(leave);
  }
  pthread_mutex_unlock(&lock);
  if (!mine) {
    fprintf(stderr, "zerobench: more than %d processes use the emulated GPUs of one node\n", ZB_MAX_PROCESSES);
    _exit(2);
  }
  return mine;
}

uint64_t zb_device_bytes(const zb_process_t *slot, int physical) {
  uint64_t sum = 0;
  for (int use = 0; use < ZB_USES; use++) sum += slot->device[physical].bytes[use];
  return sum;
}

// What all processes hold there: with managed memory, or without it.
static uint64_t held(int physical, int with_managed) {
  zb_account_t *all = zb_account();
  uint64_t sum = 0;
  for (int i = 0; i < ZB_MAX_PROCESSES; i++) {
    zb_process_t *slot = &all->process[i];
    uint64_t bytes = slot->pid ? zb_device_bytes(slot, physical) : 0;
    if (!bytes || (slot != mine && !zb_alive(slot))) continue;
    sum += with_managed ? bytes : bytes - slot->device[physical].bytes[ZB_PAGED];
  }
  return sum;
}

uint64_t zb_used(int physical) {
  uint64_t bytes = held(physical, 1), has = zb_gpu()->memory_bytes;
  return bytes < has ? bytes : has;
}

uint64_t zb_unmanaged_bytes(void) {
  int physical = zb_current();
  return physical < 0 ? 0 : held(physical, 0);
}

static _Atomic int hidden;
void zb_hide(int kind) { hidden |= kind; }
int zb_hidden(void) { return hidden; }

static uint64_t own(int use) {
  uint64_t sum = 0;
  for (int d = 0; mine && d < ZB_MAX_DEVICES; d++) sum += mine->device[d].bytes[use];
  return sum;
}
uint64_t zb_managed_bytes(void) { return own(ZB_PAGED); }
uint64_t zb_context_bytes(void) { return own(ZB_CONTEXT); }
uint64_t zb_collectives_bytes(void) { return own(ZB_NCCL); }

static void raise_peak(_Atomic uint64_t *peak, uint64_t bytes) {
  uint64_t seen = *peak;
  while (seen < bytes && !atomic_compare_exchange_weak(peak, &seen, bytes));
}

int zb_take(int physical, int use, uint64_t bytes) {
  zb_process_t *slot = own_slot();
  slot->device[physical].bytes[use] += bytes;
  if (use != ZB_PAGED && held(physical, 0) > zb_gpu()->memory_bytes) {
    slot->device[physical].bytes[use] -= bytes;
    return -1;
  }
  raise_peak(&slot->device[physical].peak_bytes, zb_device_bytes(slot, physical));
  return 0;
}

void zb_give(int physical, int use, uint64_t bytes) {
  if (!left) own_slot()->device[physical].bytes[use] -= bytes;
}

void zb_pinned(int64_t bytes) {
  if (left) return;
  zb_process_t *slot = own_slot();
  raise_peak(&slot->pinned_peak_bytes, slot->pinned_bytes += (uint64_t)bytes);
}

int zb_make_context(int physical) {
  own_slot();
  if (atomic_exchange(&contexts[physical], 1)) return 0;
  if (zb_take(physical, ZB_CONTEXT, zb_gpu()->context_bytes) == 0) return 0;
  contexts[physical] = 0;
  return -1;
}

int zb_has_context(int physical) { return contexts[physical]; }
