// cuDNN's recurrent layers (cudnn_adv.h). torch packs a layer's weights into one buffer of cuDNN's size and asks where
// in it each gate's matrix and bias lie, with their shapes (ATen/native/cudnn/RNN.cpp, get_parameters): all matrices
// lie first here, layer after layer, then all biases. What the forward pass keeps for backward is counted as the least
// that backward computes from, the gates and the states of every step; what cuDNN keeps beside, and its workspace,
// cuDNN alone knows, and the account says so.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "gpu.h"

enum { LSTM = 2, GRU = 3 };                 // cudnnRNNMode_t
enum { NO_BIAS, INPUT_BIAS, DOUBLE_BIAS };  // cudnnRNNBiasMode_t; 3: of the recurrent side alone
enum { DOUBLE = 1, HALF = 2, BF16 = 9 };    // cudnnDataType_t
enum { MAX_DIMS = 8 };                      // CUDNN_DIM_MAX

struct tensor {
  int type, dims, sizes[MAX_DIMS], strides[MAX_DIMS];
};
struct data {
  int64_t steps;  // of all sequences together
};
struct rnn {
  int mode, bias, directions, type;
  int64_t input, hidden, projected, layers;
};

static int made(void **descriptor, size_t bytes) {
  *descriptor = calloc(1, bytes);
  return *descriptor ? 0 : 4;  // CUDNN_STATUS_INTERNAL_ERROR
}
int cudnnCreateTensorDescriptor(void **descriptor) { return made(descriptor, sizeof(struct tensor)); }
int cudnnCreateRNNDataDescriptor(void **descriptor) { return made(descriptor, sizeof(struct data)); }
int cudnnCreateRNNDescriptor(void **descriptor) { return made(descriptor, sizeof(struct rnn)); }
int cudnnDestroyTensorDescriptor(void *descriptor) {
  free(descriptor);
  return 0;
}
int cudnnDestroyRNNDataDescriptor(void *descriptor) { return cudnnDestroyTensorDescriptor(descriptor); }
int cudnnDestroyRNNDescriptor(void *descriptor) { return cudnnDestroyTensorDescriptor(descriptor); }

int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int dims, const int *sizes, const int *strides) {
  tensor->type = type;
  tensor->dims = dims < MAX_DIMS ? dims : MAX_DIMS;
  for (int i = 0; i < tensor->dims; i++) tensor->sizes[i] = sizes[i], tensor->strides[i] = strides[i];
  return 0;
}
int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *dims, int *sizes,
                               int *strides) {
  *type = tensor->type;
  *dims = tensor->dims;
  for (int i = 0; i < wanted && i < tensor->dims; i++) sizes[i] = tensor->sizes[i], strides[i] = tensor->strides[i];
  return 0;
}

int cudnnSetRNNDataDescriptor(struct data *data, int type, int layout, int longest, int batch, int width,
                              const int *lengths, void *padding) {
  (void)type, (void)layout, (void)longest, (void)width, (void)padding;
  data->steps = 0;
  for (int i = 0; i < batch; i++) data->steps += lengths[i];
  return 0;
}
int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int mode, int bias, int direction, int input_mode,
                             int type, int precision, int math, int32_t input, int32_t hidden, int32_t projected,
                             int32_t layers, void *dropout, uint32_t flags) {
  (void)algorithm, (void)input_mode, (void)precision, (void)math, (void)dropout, (void)flags;
  *rnn = (struct rnn){mode, bias, direction + 1, type, input, hidden, projected ? projected : hidden, layers};
  return 0;
}

static size_t element(int type) { return type == DOUBLE ? 8 : type == HALF || type == BF16 ? 2 : 4; }
static int gates(const struct rnn *rnn) { return rnn->mode == LSTM ? 4 : rnn->mode == GRU ? 3 : 1; }
static int biases(const struct rnn *rnn) { return rnn->bias == NO_BIAS ? 0 : rnn->bias == DOUBLE_BIAS ? 2 : 1; }
// Columns of the input side's matrices: those above the first layer read what all directions below put out.
static int64_t columns(const struct rnn *rnn, int64_t layer) {
  return layer ? rnn->directions * rnn->projected : rnn->input;
}
// Elements of all matrices of one direction of a layer.
static int64_t matrices(const struct rnn *rnn, int64_t layer) {
  int64_t projection = rnn->projected == rnn->hidden ? 0 : rnn->projected * rnn->hidden;
  return gates(rnn) * rnn->hidden * (columns(rnn, layer) + rnn->projected) + projection;
}
// Elements before one direction of a layer, of layers times directions; of all of them, those of all matrices.
static int64_t before(const struct rnn *rnn, int64_t pseudo) {
  int64_t elements = 0;
  for (int64_t i = 0; i < pseudo; i++) elements += matrices(rnn, i / rnn->directions);
  return elements;
}

int cudnnGetRNNWeightSpaceSize(void *handle, const struct rnn *rnn, size_t *bytes) {
  (void)handle;
  int64_t all = rnn->layers * rnn->directions;
  *bytes = (before(rnn, all) + all * gates(rnn) * rnn->hidden * biases(rnn)) * element(rnn->type);
  return 0;
}

static void shape(struct tensor *tensor, int type, int64_t rows, int64_t wide) {
  *tensor = (struct tensor){type, 3, {1, (int)rows, (int)wide}, {(int)(rows * wide), (int)wide, 1}};
}

// `which` counts the gates of the input side, then those of the recurrent side, then the projection. What is asked of
// both matrix and bias may be NULL; a bias that there is not has no dimensions and no address.
int cudnnGetRNNWeightParams(void *handle, const struct rnn *rnn, int pseudo, size_t bytes, char *weights, int which,
                            struct tensor *matrix, char **matrix_at, struct tensor *bias, char **bias_at) {
  (void)handle, (void)bytes;
  int count = gates(rnn), side = which / count;  // 0: input, 1: recurrent, 2: projection
  int64_t wide = columns(rnn, pseudo / rnn->directions), at = before(rnn, pseudo);
  if (matrix && matrix_at) {
    int64_t recurrent = at + count * rnn->hidden * wide, projection = recurrent + count * rnn->hidden * rnn->projected;
    int64_t rows = side == 2 ? rnn->projected : rnn->hidden;
    int64_t cols = side == 0 ? wide : side == 1 ? rnn->projected : rnn->hidden;
    at = side == 0 ? at : side == 1 ? recurrent : projection;
    shape(matrix, rnn->type, rows, cols);
    *matrix_at = weights + (at + which % count * rows * cols) * element(rnn->type);
  }
  if (bias && bias_at) {
    int has = side < 2 && (rnn->bias == DOUBLE_BIAS || (rnn->bias != NO_BIAS && side == (rnn->bias != INPUT_BIAS)));
    int64_t first = before(rnn, rnn->layers * rnn->directions) + pseudo * count * biases(rnn) * rnn->hidden;
    int64_t index = biases(rnn) == 2 ? which : which % count;
    if (has)
      shape(bias, rnn->type, rnn->hidden, 1);
    else
      *bias = (struct tensor){.type = rnn->type};
    *bias_at = has ? weights + (first + index * rnn->hidden) * element(rnn->type) : NULL;
  }
  return 0;
}

// An LSTM's backward needs its four gates and its cells of every step, a GRU's its three gates and the candidate before
// the reset, each layer's the output of the one below; of a plain layer the output says all.
int cudnnGetRNNTempSpaceSizes(void *handle, const struct rnn *rnn, int training, const struct data *data,
                              size_t *workspace, size_t *reserve) {
  (void)handle;
  zb_hide(ZB_RECURRENT);
  int64_t kept = rnn->mode == LSTM ? 5 : rnn->mode == GRU ? 4 : 0;
  int64_t a_layer = rnn->directions * kept * rnn->hidden, between = rnn->directions * rnn->projected;
  *workspace = 0;
  if (reserve) {
    int64_t elements = data->steps * (rnn->layers * a_layer + (rnn->layers - 1) * between);
    *reserve = training ? elements * element(rnn->type) : 0;
  }
  return 0;
}
