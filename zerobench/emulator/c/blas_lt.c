// cuBLASLt: descriptors and one algorithm for every product, which wants no workspace beyond what torch offers.
#include <stdlib.h>
#include <string.h>

size_t cublasLtGetVersion(void) { return 130000; }
static int create(void **out) {
  *out = malloc(1);
  return 0;
}
static int destroy(void *made) {
  free(made);
  return 0;
}
int cublasLtCreate(void **out) { return create(out); }
int cublasLtDestroy(void *handle) { return destroy(handle); }
int cublasLtMatmulDescCreate(void **out) { return create(out); }
int cublasLtMatmulDescDestroy(void *made) { return destroy(made); }
int cublasLtMatmulPreferenceCreate(void **out) { return create(out); }
int cublasLtMatmulPreferenceDestroy(void *made) { return destroy(made); }
int cublasLtMatrixLayoutCreate(void **out) { return create(out); }
int cublasLtMatrixLayoutDestroy(void *made) { return destroy(made); }

typedef struct {
  unsigned long long algorithm[8];
  size_t workspace_bytes;
  int state;  // 0: it can be used
  float waves;
  int reserved[4];
} result_t;
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, result_t *results, int *found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  memset(results, 0, sizeof *results);
  *found = wanted > 0;
  return 0;
}
