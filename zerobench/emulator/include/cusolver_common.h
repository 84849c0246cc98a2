// The status of cuSOLVER, which torch's headers name.
#pragma once

typedef enum { CUSOLVER_STATUS_SUCCESS, CUSOLVER_STATUS_INVALID_VALUE = 3 } cusolverStatus_t;
