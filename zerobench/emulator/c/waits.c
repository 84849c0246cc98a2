// How far the host has waited for the device, as NCCL's watchdog is told: it lets go of what a collective works on once
// it sees it done, and looks each 100 ms. Where nothing takes time that would be at an instant of the machine's load,
// and peaks would differ from run to run. A host that issues a step runs ahead of its GPU; so a collective is done once
// the host has waited for it: for its event, for a stream that waits for it, or for the device.
#include "waits.h"

#include <pthread.h>
#include <string.h>

#define WATCHDOG "pt_nccl_watchdg"  // as ProcessGroupNCCL.cpp names its thread
#define MOST_REFUSALS 600           // a minute of its looks: a script that never waits ends all the same

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static zb_clock_t host;
static uint64_t num_recorded;
static int num_streams;

static void join(zb_clock_t *clock, const zb_clock_t *other) {
  for (int i = 0; i < ZB_CLOCKS; i++)
    if (other->reached[i] > clock->reached[i]) clock->reached[i] = other->reached[i];
}

void zb_record(zb_event_t *event, zb_stream_t *stream) {
  pthread_mutex_lock(&mutex);
  if (!stream->number) stream->number = 1 + num_streams++ % ZB_CLOCKS;
  stream->clock.reached[stream->number - 1] = ++num_recorded;
  *event = (zb_event_t){stream->clock, num_recorded, stream->number - 1, 0};
  pthread_mutex_unlock(&mutex);
}

void zb_wait(zb_clock_t *clock, const zb_clock_t *other) {
  pthread_mutex_lock(&mutex);
  join(clock ? clock : &host, other);
  pthread_mutex_unlock(&mutex);
}

void zb_wait_for_device(void) {
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < ZB_CLOCKS; i++) host.reached[i] = num_recorded;
  pthread_mutex_unlock(&mutex);
}

static int is_watchdog(void) {
  static _Thread_local int known = -1;
  if (known < 0) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    known = !strcmp(name, WATCHDOG);
  }
  return known;
}

int zb_is_done(zb_event_t *event) {
  if (!is_watchdog()) return 1;
  pthread_mutex_lock(&mutex);
  int is_done = event->number <= host.reached[event->stream] || ++event->refusals > MOST_REFUSALS;
  pthread_mutex_unlock(&mutex);
  return is_done;
}
