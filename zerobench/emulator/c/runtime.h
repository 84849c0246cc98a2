// What the files of the CUDA runtime's stand-in (libcudart) share.
#ifndef ZEROBENCH_RUNTIME_H
#define ZEROBENCH_RUNTIME_H
#define CUDARTAPI
#include <cuda_runtime_api.h>

#include "gpu.h"

// Keeps the error for cudaGetLastError, as the runtime does, and returns it.
cudaError_t zb_fail(cudaError_t error);
#endif
