// The emulated GPU as its variables describe it.
#include "gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static zb_gpu_t gpu;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_nccl(char *text) {
  char *state = NULL;
  for (char *one = strtok_r(text, ",", &state); one && gpu.num_nccl < ZB_MAX_STEPS; one = strtok_r(NULL, ",", &state)) {
    int ranks;
    unsigned long long bytes, another;
    if (sscanf(one, "%d:%llu:%llu", &ranks, &bytes, &another) != 3) continue;
    gpu.nccl[gpu.num_nccl].ranks = ranks;
    gpu.nccl[gpu.num_nccl].bytes = bytes;
    gpu.nccl[gpu.num_nccl++].another_bytes = another;
  }
}

static void set(const char *key, char *value) {
  const struct {
    const char *key;
    int *value;
  } numbers[] = {
      {"gpus", &gpu.gpus},
      {"sm_count", &gpu.sm_count},
      {"major", &gpu.major},
      {"minor", &gpu.minor},
      {"shared_per_sm", &gpu.shared_per_sm},
      {"shared_per_block", &gpu.shared_per_block},
      {"threads_per_sm", &gpu.threads_per_sm},
      {"blocks_per_sm", &gpu.blocks_per_sm},
      {"clock_khz", &gpu.clock_khz},
      {"memory_clock_khz", &gpu.memory_clock_khz},
      {"bus_width", &gpu.bus_width},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(key, numbers[i].key)) *numbers[i].value = atoi(value);
  if (!strcmp(key, "name")) snprintf(gpu.name, sizeof gpu.name, "%s", value);
  if (!strcmp(key, "memory_bytes")) gpu.memory_bytes = strtoull(value, NULL, 10);
  if (!strcmp(key, "nvml_bytes")) gpu.nvml_bytes = strtoull(value, NULL, 10);
  if (!strcmp(key, "context_bytes")) gpu.context_bytes = strtoull(value, NULL, 10);
  if (!strcmp(key, "l2_bytes")) gpu.l2_bytes = strtoull(value, NULL, 10);
  if (!strcmp(key, "nccl")) read_nccl(value);
}

// As the driver reads it: a list of ordinals, or UUIDs, that ends at the first one that is not there.
static void read_visible(void) {
  const char *named = getenv("CUDA_VISIBLE_DEVICES");
  if (!named) {
    for (int i = 0; i < gpu.gpus; i++) gpu.visible[gpu.num_visible++] = i;
    return;
  }
  char *text = strdup(named), *state = NULL;
  for (char *one = strtok_r(text, ", ", &state); one && gpu.num_visible < ZB_MAX_DEVICES;
       one = strtok_r(NULL, ", ", &state)) {
    char *end;
    long device = strtol(one, &end, 10);
    // A UUID of ours ends in its device's number (zb_uuid).
    if (!strncmp(one, "GPU-", 4) && strlen(one) == 40) device = strtol(one + 38, &end, 16);
    if (*end || end == one || device < 0 || device >= gpu.gpus) break;
    gpu.visible[gpu.num_visible++] = (int)device;
  }
  free(text);
}

// A fork may have been given another GPU, or another one of them, before it first uses one.
static void forget_after_fork(void) {
  once = (pthread_once_t)PTHREAD_ONCE_INIT;
  memset(&gpu, 0, sizeof gpu);
}

static void read_variables(void) {
  static int told;
  if (!told++) pthread_atfork(NULL, NULL, forget_after_fork);
  const char *named = getenv("ZEROBENCH_EMULATED_GPU");
  if (!named) return;  // no device: cudaGetDeviceCount says so
  char *text = strdup(named), *state = NULL;
  for (char *one = strtok_r(text, ";", &state); one; one = strtok_r(NULL, ";", &state)) {
    char *equals = strchr(one, '=');
    if (!equals) continue;
    *equals = 0;
    set(one, equals + 1);
  }
  free(text);
  if (gpu.gpus > ZB_MAX_DEVICES) gpu.gpus = ZB_MAX_DEVICES;
  read_visible();
}

const zb_gpu_t *zb_gpu(void) {
  pthread_once(&once, read_variables);
  return &gpu;
}

int zb_physical(int ordinal) {
  const zb_gpu_t *g = zb_gpu();
  return ordinal >= 0 && ordinal < g->num_visible ? g->visible[ordinal] : -1;
}

int zb_ordinal(int physical) {
  const zb_gpu_t *g = zb_gpu();
  for (int i = 0; i < g->num_visible; i++)
    if (g->visible[i] == physical) return i;
  return -1;
}

_Thread_local int zb_current_ordinal;

int zb_current(void) {
  int physical = zb_physical(zb_current_ordinal);
  return physical < 0 || zb_make_context(physical) ? -1 : physical;
}

void zb_uuid(int physical, unsigned char bytes[16]) {
  memcpy(bytes, "zeroemulated000", 15);
  bytes[15] = (unsigned char)physical;
}

size_t zb_copy_bytes(void) {
  static size_t bytes;
  if (!bytes) {
    const char *named = getenv("ZEROBENCH_EMULATED_COPY_BYTES");
    bytes = named ? strtoull(named, NULL, 10) : 1 << 16;
  }
  return bytes;
}
