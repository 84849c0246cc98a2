// The type of cuSOLVER that torch's headers name.
#pragma once

#include "cusolver_common.h"

typedef struct cusolverDnContext *cusolverDnHandle_t;
