// cuDNN: a handle and its version.
#include <stdlib.h>

size_t cudnnGetVersion(void) { return 92000; }
size_t cudnnGetCudartVersion(void) { return 13000; }
const char *cudnnGetErrorString(int error) { return error ? "not supported on the emulated GPU" : "CUDNN_STATUS_SUCCESS"; }
int cudnnCreate(void **handle) {
  *handle = malloc(1);
  return 0;
}
int cudnnDestroy(void *handle) {
  free(handle);
  return 0;
}
