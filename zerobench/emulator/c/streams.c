// Streams and events. Nothing is ever under way, so everything asked for is done: queries say ready, times are zero.
// NCCL's watchdog alone is told otherwise (waits.c).
#include <stdlib.h>

#include "runtime.h"
#include "waits.h"

// 1 and 2 are the legacy and the per-thread default stream, as 0 is.
static zb_stream_t *of(cudaStream_t stream) {
  static zb_stream_t usual;
  return (uintptr_t)stream > 2 ? (zb_stream_t *)stream : &usual;
}

static cudaError_t create(cudaStream_t *out, int priority) {
  if (zb_current() < 0) return zb_fail(cudaErrorMemoryAllocation);
  zb_stream_t *stream = calloc(1, sizeof *stream);
  stream->priority = priority;
  *out = (cudaStream_t)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return create(out, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  (void)flags;
  return create(out, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  (void)flags;
  return create(out, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if ((uintptr_t)stream > 2) free(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = of(stream)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  *flags = (uintptr_t)stream > 2 ? cudaStreamNonBlocking : cudaStreamDefault;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  zb_wait(NULL, &of(stream)->clock);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  zb_wait(&of(stream)->clock, &((zb_event_t *)event)->clock);
  return cudaSuccess;
}

// What waits for the stream is called at once.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  (void)stream;
  function(data);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  (void)flags;
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  if (zb_current() < 0) return zb_fail(cudaErrorMemoryAllocation);
  *event = calloc(1, sizeof(zb_event_t));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  zb_record((zb_event_t *)event, of(stream));
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return zb_is_done((zb_event_t *)event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  zb_wait(NULL, &((zb_event_t *)event)->clock);
  return cudaSuccess;
}

// Kernels take no time here: between any two events lie 0 ms, which nobody can take for a measurement.
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  (void)from, (void)to;
  *milliseconds = 0;
  return cudaSuccess;
}

// CUDA graphs would hold launches that were never made, and their pools' memory would be counted by nobody: a capture
// is refused, which torch says with the error's text.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)stream, (void)mode;
  return zb_fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  (void)stream;
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  (void)stream, (void)graph, (void)nodes, (void)edges;
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (count) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  static _Thread_local enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  enum cudaStreamCaptureMode before = current;
  current = *mode;
  *mode = before;
  return cudaSuccess;
}
