// cuBLAS: handles and modes. torch gives each handle its workspace by itself (cublasSetWorkspace), so nothing is
// allocated here; the products are among the generated functions that do nothing.
#include <stdlib.h>

int cublasCreate_v2(void **handle) {
  *handle = malloc(1);
  return 0;
}
int cublasDestroy_v2(void *handle) {
  free(handle);
  return 0;
}
int cublasGetMathMode(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
int cublasGetPointerMode_v2(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
