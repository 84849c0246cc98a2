// Memory of the emulated device: address space without pages behind it, and a table of who has what.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu.h"

#define GRANULE ((size_t)2 << 20)  // cudaMalloc takes whole pages of 2 MiB from the device

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static zb_block_t *blocks;  // by address
static size_t count, capacity;

// Ranges lie at falling addresses, of which none is used twice, down from where nothing else is. Of free blocks of one
// size torch's allocator takes the lowest: on an H100 that was the latest, and where the kernel chose the addresses,
// which shift from run to run, so did peaks.
#define HIGHEST ((char *)0x400000000000)
static char *_Atomic lowest = HIGHEST;

static char *falling(size_t bytes, size_t alignment, int flags) {
  char *seen = lowest, *start;
  do start = (char *)(((uintptr_t)seen - bytes) / alignment * alignment);
  while (!atomic_compare_exchange_weak(&lowest, &seen, start));
  char *given = mmap(start, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
  if (given == start) return start;
  if (given != MAP_FAILED) munmap(given, bytes);  // a kernel before 4.17
  return NULL;
}

static char *anywhere(size_t bytes, size_t alignment, int flags) {
  char *start = mmap(NULL, bytes + alignment, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (start == MAP_FAILED) return NULL;
  char *aligned = (char *)(((uintptr_t)start + alignment - 1) / alignment * alignment);
  if (aligned > start) munmap(start, (size_t)(aligned - start));
  size_t after = (size_t)(start + alignment - aligned);
  if (after) munmap(aligned + bytes, after);
  return aligned;
}

void *zb_map(size_t bytes, size_t alignment) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *start = falling(bytes, alignment, flags);
  if (!start) start = anywhere(bytes, alignment, flags);
  // A page of 2 MiB for the first small copy would cost as much as 512 of them.
  if (start) madvise(start, bytes, MADV_NOHUGEPAGE);
  return start;
}

void zb_unmap(void *start, size_t bytes) { munmap(start, bytes); }

// The first block that begins after the address.
static size_t after(const void *address) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].start <= (const char *)address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void zb_remember(zb_block_t block) {
  pthread_mutex_lock(&lock);
  if (count == capacity) {
    capacity = capacity ? 2 * capacity : 1024;
    blocks = realloc(blocks, capacity * sizeof *blocks);
    if (!blocks) abort();
  }
  size_t at = after(block.start);
  memmove(blocks + at + 1, blocks + at, (count++ - at) * sizeof *blocks);
  blocks[at] = block;
  pthread_mutex_unlock(&lock);
}

zb_block_t zb_find(const void *address) {
  zb_block_t found = {0};
  pthread_mutex_lock(&lock);
  size_t at = after(address);
  if (at && (const char *)address < blocks[at - 1].start + blocks[at - 1].bytes) found = blocks[at - 1];
  pthread_mutex_unlock(&lock);
  return found;
}

zb_block_t zb_forget(const void *start) {
  zb_block_t found = {0};
  pthread_mutex_lock(&lock);
  size_t at = after(start);
  if (at && blocks[at - 1].start == start) {
    found = blocks[at - 1];
    memmove(blocks + at - 1, blocks + at, (count-- - at) * sizeof *blocks);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int zb_allocate(void **out, size_t bytes, int kind, int physical) {
  size_t granule = kind == ZB_HOST ? 4096 : GRANULE;
  size_t whole = (bytes + granule - 1) / granule * granule;
  int use = kind == ZB_MANAGED ? ZB_PAGED : ZB_MEMORY;
  if (kind != ZB_HOST && zb_take(physical, use, whole)) return -1;
  void *start = zb_map(whole, granule);
  if (!start) {
    if (kind != ZB_HOST) zb_give(physical, use, whole);
    return -1;
  }
  if (kind == ZB_HOST) zb_pinned((int64_t)whole);
  zb_remember((zb_block_t){start, whole, kind, physical, NULL});
  *out = start;
  return 0;
}

int zb_release(void *start) {
  zb_block_t block = zb_forget(start);
  if (block.kind == ZB_NOTHING) return -1;
  zb_unmap(block.start, block.bytes);
  if (block.kind == ZB_HOST)
    zb_pinned(-(int64_t)block.bytes);
  else
    zb_give(block.physical, block.kind == ZB_MANAGED ? ZB_PAGED : ZB_MEMORY, block.bytes);
  return 0;
}
