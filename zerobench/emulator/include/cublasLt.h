// The type of cuBLASLt that torch's headers name.
#pragma once

typedef struct cublasLtContext *cublasLtHandle_t;
