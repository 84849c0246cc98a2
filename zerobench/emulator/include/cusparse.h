// The types of cuSPARSE that torch's headers name.
#pragma once

typedef struct cusparseContext *cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS } cusparseStatus_t;
