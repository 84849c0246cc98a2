/* Preloaded into a process: counts what torch's CPU allocator takes from the C library, and nothing else.
 *
 * That allocator asks posix_memalign(3) and gives back with free(3) (c10/core/impl/alloc_cpu.cpp); whether it is the one
 * that asks is read from the return address, which lies in libc10.so. It shares nothing with what it is a check of.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SLOTS = 1 << 20 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t first, last; /* of libc10.so */
static uintptr_t addresses[SLOTS];
static int64_t sizes[SLOTS];
static int64_t total, peak;
static int (*take)(void **, size_t, size_t);
static void (*give_back)(void *);

static int note_libc10(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  if (strstr(info->dlpi_name, "/libc10.so") == NULL) return 0;
  for (int at = 0; at < info->dlpi_phnum; at++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[at];
    if (part->p_type != PT_LOAD) continue;
    uintptr_t start = info->dlpi_addr + part->p_vaddr;
    if (first == 0 || start < first) first = start;
    if (start + part->p_memsz > last) last = start + part->p_memsz;
  }
  return 1;
}

/* Where an address is, or would be; a slot that was given back keeps its address and has size 0. */
static size_t slot(uintptr_t address) {
  size_t at = (address >> 6) * 11400714819323198485ull % SLOTS;
  while (addresses[at] != 0 && addresses[at] != address) at = (at + 1) % SLOTS;
  return at;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (take == NULL) take = dlsym(RTLD_NEXT, "posix_memalign");
  if (last == 0) dl_iterate_phdr(note_libc10, NULL);
  uintptr_t caller = (uintptr_t)__builtin_return_address(0);
  int error = take(out, alignment, size);
  if (error != 0 || caller < first || caller >= last) return error;
  pthread_mutex_lock(&mutex);
  size_t at = slot((uintptr_t)*out);
  addresses[at] = (uintptr_t)*out;
  sizes[at] = (int64_t)size;
  total += (int64_t)size;
  if (total > peak) peak = total;
  pthread_mutex_unlock(&mutex);
  return 0;
}

void free(void *address) {
  if (give_back == NULL) give_back = dlsym(RTLD_NEXT, "free");
  if (total != 0 && address != NULL && ((uintptr_t)address & 63) == 0) {
    pthread_mutex_lock(&mutex);
    size_t at = slot((uintptr_t)address);
    if (addresses[at] != 0) {
      total -= sizes[at];
      sizes[at] = 0;
    }
    pthread_mutex_unlock(&mutex);
  }
  give_back(address);
}

int64_t counted_total(void) { return total; }

int64_t counted_peak(void) { return peak; }

void counted_reset_peak(void) {
  pthread_mutex_lock(&mutex);
  peak = total;
  pthread_mutex_unlock(&mutex);
}
