// Small values that were really copied to the device, and are gone when a kernel would have written over them.
//
// torch's allocator gives the place of a small tensor to the next one. A norm or a flag that a kernel would have
// written would then be read back as what somebody else had copied there before, and could be anything. So the places
// of real copies are remembered, in parts of 512 bytes (the allocator's blocks begin at such), and a part that a kernel
// is launched to write reads as zero.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define PART 512

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t *parts;  // open addressing: a part's number, 0 where free, 1 where one was taken out
static size_t capacity, used;

static size_t place(uintptr_t part) {
  size_t at = part * 0x9e3779b97f4a7c15ull >> 20 & (capacity - 1);
  while (parts[at] && parts[at] != part) at = (at + 1) & (capacity - 1);
  return at;
}

static void grow(void) {
  uintptr_t *old = parts;
  size_t size = capacity;
  capacity = capacity ? 2 * capacity : 1 << 12;
  parts = calloc(capacity, sizeof *parts);
  if (!parts) abort();
  used = 0;
  for (size_t i = 0; i < size; i++)
    if (old[i] > 1) {
      parts[place(old[i])] = old[i];
      used++;
    }
  free(old);
}

void zb_wrote(const void *start, size_t bytes) {
  int kind = bytes ? zb_find(start).kind : ZB_NOTHING;
  if (kind != ZB_DEVICE && kind != ZB_MAPPED) return;
  pthread_mutex_lock(&lock);
  for (uintptr_t part = (uintptr_t)start / PART; part <= ((uintptr_t)start + bytes - 1) / PART; part++) {
    if (2 * used >= capacity) grow();
    size_t at = place(part);
    if (!parts[at]) used++;
    parts[at] = part;
  }
  pthread_mutex_unlock(&lock);
}

void zb_overwritten(void *start, size_t bytes) {
  uintptr_t end = ((uintptr_t)start + (bytes ? bytes : 1) + PART - 1) / PART * PART;
  pthread_mutex_lock(&lock);
  for (uintptr_t part = (uintptr_t)start / PART; capacity && part < end / PART; part++) {
    size_t at = place(part);
    if (parts[at] != part) continue;
    char *from = (char *)(part * PART < (uintptr_t)start ? (uintptr_t)start : part * PART);
    memset(from, 0, (size_t)((char *)((part + 1) * PART) - from));
    if (from == (char *)(part * PART)) parts[at] = 1;
  }
  pthread_mutex_unlock(&lock);
}
