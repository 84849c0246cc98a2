// Streams and events as far as somebody waits for them: each keeps how far every stream has come once it is done itself
// (a vector clock).
#ifndef ZEROBENCH_WAITS_H
#define ZEROBENCH_WAITS_H
#include <stdint.h>

#define ZB_CLOCKS 64  // of streams that events are recorded on; more of them share

typedef struct {
  uint64_t reached[ZB_CLOCKS];  // the last of each stream's events
} zb_clock_t;
typedef struct {
  zb_clock_t clock;
  int priority, number;  // from 1 in the order of their first events
} zb_stream_t;
typedef struct {
  zb_clock_t clock;
  uint64_t number;
  int stream, refusals;
} zb_event_t;

void zb_record(zb_event_t *event, zb_stream_t *stream);
// A stream waits for what `other` knows to be done; NULL: the host.
void zb_wait(zb_clock_t *clock, const zb_clock_t *other);
void zb_wait_for_device(void);
// Whether an event's work is done: it always is, but for NCCL's watchdog only where the host has waited for it.
int zb_is_done(zb_event_t *event);
#endif
