// Handles and versions of the libraries of which torch needs little: cuSOLVER, cuSPARSE, CUPTI, NVRTC. Each of their
// stand-ins holds all of these few functions.
#include <stdlib.h>

static int create(void **out) {
  *out = malloc(1);
  return 0;
}
int cusolverDnCreate(void **handle) { return create(handle); }
int cusparseCreate(void **handle) { return create(handle); }
int cuptiGetVersion(unsigned *version) {
  *version = 130000;
  return 0;
}
int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
