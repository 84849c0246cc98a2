// cuDNN. torch's attention and convolutions go through cudnn-frontend, which builds a graph of backend descriptors,
// asks the heuristics for engines, makes a plan of the first one that is finalized, and asks it for its workspace.
// Every graph is supported here, by one engine without knobs and notes. How much workspace a real plan wants is known
// to cuDNN alone, and no document of NVIDIA's gives a rule: it is counted as 0, and where there were convolutions,
// whose workspace may be large (pytorch/pytorch 31500: 48 GiB for one), the account says so. What grows with the
// sequence in the backward pass of attention is the frontend's own workspace and real here, since it is compiled into
// torch: dQ in fp32, the row sums, dK and dV of every head where heads are grouped, and dP where the result must be
// deterministic (scaled_dot_product_flash_attention.h, get_fe_workspace_size_node).
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "gpu.h"

#ifndef ZB_CUDNN_VERSION
#define ZB_CUDNN_VERSION 92000  // what torch names where it says so (build.py)
#endif

size_t cudnnGetVersion(void) { return ZB_CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return 13000; }
// torch compares it with the version that it was compiled with: 0 is the major one, 1 the minor one, 2 the patch.
int cudnnGetProperty(int which, int *value) {
  *value = which == 0 ? ZB_CUDNN_VERSION / 10000 : which == 1 ? ZB_CUDNN_VERSION / 100 % 100 : ZB_CUDNN_VERSION % 100;
  return 0;
}
const char *cudnnGetErrorString(int error) {
  return error ? "not supported on the emulated GPU" : "CUDNN_STATUS_SUCCESS";
}
void cudnnGetLastErrorString(char *text, size_t bytes) {
  if (bytes) *text = 0;
}
int cudnnCreate(void **handle) {
  *handle = malloc(1);
  return 0;
}
int cudnnDestroy(void *handle) {
  free(handle);
  return 0;
}
int cudnnGetStream(void *handle, void **stream) {
  (void)handle;
  *stream = NULL;
  return 0;
}

// Backend descriptors: what is set is not kept, because nothing is computed from it.
enum { CONVOLUTION_DESCRIPTOR = 1 };  // as cudnn_graph.h numbers them
int cudnnBackendCreateDescriptor(int type, void **descriptor) {
  if (type == CONVOLUTION_DESCRIPTOR) zb_hide(ZB_CONVOLUTION);
  *descriptor = malloc(1);
  return 0;
}
int cudnnBackendDestroyDescriptor(void *descriptor) {
  free(descriptor);
  return 0;
}

// By attribute and type, as cudnn_graph.h numbers them. Numbers are 0 (the workspace, the engine's index, the shared
// memory that it uses), but there is one engine; of everything else, knobs and notes, there is nothing. Descriptors
// that the frontend hands in to be filled are its own already.
enum { HEURISTICS_RESULTS = 202, GRAPH_ENGINE_COUNT = 802, INT64 = 3, INT32 = 23 };
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *values) {
  (void)descriptor, (void)wanted;
  int is_number = type == INT64 || type == INT32;
  int64_t value = attribute == GRAPH_ENGINE_COUNT;
  if (values && type == INT64) *(int64_t *)values = value;
  if (values && type == INT32) *(int32_t *)values = (int32_t)value;
  if (count) *count = is_number || attribute == HEURISTICS_RESULTS;
  return 0;
}

// Sizes that the older functions hand out: no workspace either.
int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  (void)handle;
  *bytes = 0;
  return 0;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, void *x, void *w, void *convolution, void *y, int algorithm,
                                            size_t *bytes) {
  (void)handle, (void)x, (void)w, (void)convolution, (void)y, (void)algorithm;
  zb_hide(ZB_CONVOLUTION);
  *bytes = 0;
  return 0;
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(void *handle, void *w, void *dy, void *convolution, void *dx,
                                                 int algorithm, size_t *bytes) {
  return cudnnGetConvolutionForwardWorkspaceSize(handle, w, dy, convolution, dx, algorithm, bytes);
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(void *handle, void *x, void *dy, void *convolution, void *dw,
                                                   int algorithm, size_t *bytes) {
  return cudnnGetConvolutionForwardWorkspaceSize(handle, x, dy, convolution, dw, algorithm, bytes);
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y,
                                                             void *scale, void *activation, size_t *bytes) {
  (void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)scale, (void)activation;
  *bytes = 0;
  return 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy,
                                                      void *dz, void *dx, void *scale, void *activation,
                                                      size_t *bytes) {
  (void)dy, (void)dx;
  return cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle, mode, ops, x, dz, y, scale, activation,
                                                                  bytes);
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *activation, void *x,
                                                         size_t *bytes) {
  return cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle, mode, ops, x, NULL, NULL, NULL, activation,
                                                                  bytes);
}
