// The types of cuBLAS that torch's headers name: a handle that nobody looks into, and a status.
#pragma once

typedef struct cublasContext *cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS } cublasStatus_t;
