// cuDNN. torch's attention and convolutions go through cudnn-frontend, which builds a graph of backend descriptors,
// asks the heuristics for engines, makes a plan of the first one that is finalized, and asks it for its workspace.
// Every graph is supported here, by one engine without knobs and notes. How much workspace a real plan wants is known
// to cuDNN alone, and no document of NVIDIA's gives a rule: but for grouped heads it is counted as 0, and where there
// were convolutions, whose workspace may be large (pytorch/pytorch 31500: 48 GiB for one), the account says so. What
// grows with the sequence in the backward pass of attention is first the frontend's own workspace and real here, since
// it is compiled into torch: dQ in fp32, the row sums, and dP where the result must be deterministic
// (scaled_dot_product_flash_attention.h, get_fe_workspace_size_node). Where heads are grouped, the plan holds dK and dV
// of every query's head too, before they are summed over their groups, and 256 bytes (an H100, cuDNN 9.19).
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

// Backend descriptors: of what is set only that is kept which tells the workspace of grouped heads. A thread builds one
// graph after the other, operations first.
enum { CONVOLUTION_DESCRIPTOR = 1, GRAPH_DESCRIPTOR = 15 };  // as cudnn_graph.h numbers them
enum { TENSOR_TYPE = 901, TENSOR_DIMENSIONS = 902, TENSOR_IS_VIRTUAL = 907, SUM_OF = 1610, SUM_INTO = 1611 };
enum { HALF = 2, BFLOAT16 = 9, DIMENSIONS = 4, OWN_BYTES = 256 };

typedef struct descriptor {
  int64_t dimensions[DIMENSIONS];  // batch, heads, length, size
  int data_type;
  bool is_virtual;
  const struct descriptor *summed;
} descriptor_t;

static _Thread_local int64_t grouped, of_graph;  // bytes

int cudnnBackendCreateDescriptor(int type, void **made) {
  if (type == CONVOLUTION_DESCRIPTOR) zb_hide(ZB_CONVOLUTION);
  if (type == GRAPH_DESCRIPTOR) {
    of_graph = grouped ? grouped + OWN_BYTES : 0;
    grouped = 0;
  }
  *made = calloc(1, sizeof(descriptor_t));
  return *made ? 0 : -1;
}

static void count_grouped(const descriptor_t *every, const descriptor_t *group) {
  if (!every || !every->is_virtual || every->dimensions[1] <= group->dimensions[1]) return;
  int64_t bytes = every->data_type == HALF || every->data_type == BFLOAT16 ? 2 : 4;
  for (int i = 0; i < DIMENSIONS; i++) bytes *= every->dimensions[i];
  grouped += bytes;
}

int cudnnBackendSetAttribute(void *of, int attribute, int type, int64_t count, const void *values) {
  (void)type;
  descriptor_t *to = of;
  if (attribute == TENSOR_TYPE) to->data_type = *(const int *)values;
  if (attribute == TENSOR_IS_VIRTUAL) to->is_virtual = *(const bool *)values;
  if (attribute == TENSOR_DIMENSIONS && count == DIMENSIONS) memcpy(to->dimensions, values, sizeof to->dimensions);
  if (attribute == SUM_OF) to->summed = *(descriptor_t *const *)values;
  if (attribute == SUM_INTO) count_grouped(to->summed, *(descriptor_t *const *)values);
  return 0;
}
int cudnnBackendDestroyDescriptor(void *descriptor) {
  free(descriptor);
  return 0;
}

// By attribute and type, as cudnn_graph.h numbers them. Numbers are 0 (the engine's index, the shared memory that it
// uses) but for the workspace, and there is one engine; of everything else, knobs and notes, there is nothing.
// Descriptors that the frontend hands in to be filled are its own already.
enum { HEURISTICS_RESULTS = 202, PLAN_WORKSPACE = 402, GRAPH_ENGINE_COUNT = 802, INT64 = 3, INT32 = 23 };
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *values) {
  (void)descriptor, (void)wanted;
  int is_number = type == INT64 || type == INT32;
  int64_t value = attribute == PLAN_WORKSPACE ? of_graph : attribute == GRAPH_ENGINE_COUNT;
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
