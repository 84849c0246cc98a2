// Operations on the device: no kernel runs; those whose arguments and results are all small are computed on the host.

#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>
#include <limits>

#include "operations.h"

namespace zerobench {
namespace {

std::atomic<int64_t> computed{0};

// The same memory as a tensor of the host, which an emulated device's memory is.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cuda()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

struct OnDevice final : Watching {
  explicit OnDevice(const c10::OperatorHandle& op)
      : Watching(op, c10::DispatchKey::CUDA),
        host_kernel(kernel_of(op, c10::DispatchKey::CPU)),
        is_computed(!op.hasTag(at::Tag::nondeterministic_seeded) && kUntouched.count(op.operator_name().name) == 0),
        has_own_size(op.hasTag(at::Tag::dynamic_output_shape) && signature.written.empty()),
        breaks_ties(op.operator_name().name == "aten::topk" || op.operator_name().name == "aten::argmax") {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    size_t first = stack->size() - signature.num_arguments;
    if (has_own_size) return size_by_values(op, stack, first);
    bool is_small = is_computed && host_kernel && !any_large(*stack, first);
    Stack arguments;
    if (is_small || breaks_ties) arguments.assign(stack->begin() + first, stack->end());
    kernel.callBoxed(op, keys, stack);
    size_t results = stack->size() - signature.is_new.size();
    for (size_t i = 0; i < signature.is_new.size(); ++i) {
      if (signature.is_new[i]) any_tensor((*stack)[results + i], clear);
    }
    if (is_small && !any_large(*stack, results)) compute(op, arguments, stack, results);
    if (breaks_ties) break_ties(arguments, stack, results);
  }

 private:
  // What a kernel would write begins as zero, and not as what lay there before, as far as anybody can read it.
  static bool clear(const at::Tensor& tensor) {
    bool is_seen = !is_large(tensor) || (is_plain(tensor) && tensor.nbytes() <= kCopiedBytes);
    if (tensor.defined() && is_seen && tensor.device().is_cuda() && tensor.is_non_overlapping_and_dense())
      std::memset(tensor.data_ptr(), 0, tensor.nbytes());
    return false;
  }

  // Of nonzero and its like the values say how large the result is, so they are looked at whatever their number.
  void size_by_values(const c10::OperatorHandle& op, Stack* stack, size_t first) {
    at::TensorOptions on_device(at::Device(at::kCUDA, c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index()));
    Stack values = moved(*stack, first, at::kCPU, on_host);
    host_kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CPU), &values);
    torch::jit::drop(*stack, signature.num_arguments);
    for (const c10::IValue& value : values) {
      stack->push_back(changed(value, [&](const at::Tensor& host) {
        at::Tensor made = at::empty(host.sizes(), on_device.dtype(host.dtype()));
        if (!is_large(made)) put(made, host);
        return made;
      }));
    }
  }

  void compute(const c10::OperatorHandle& op, const Stack& arguments, Stack* stack, size_t results) {
    Stack values = moved(arguments, 0, at::kCPU, on_host);
    Stack on_host_arguments = values;
    try {
      host_kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CPU), &values);
      for (size_t i : signature.written) any_tensor(on_host_arguments[i], without_nan);
      for (size_t i = 0; i < signature.is_new.size(); ++i) {
        if (signature.is_new[i]) put_all((*stack)[results + i], values[i]);
      }
      ++computed;
    } catch (const std::exception&) {
      // an operation that the host does not know in this form: its results stay zero
    }
  }

  static void put_all(const c10::IValue& to, const c10::IValue& value) {
    if (value.isTensor()) put(to.toTensor(), value.toTensor());
    if (!value.isTensorList()) return;
    std::vector<at::Tensor> kept = to.toTensorVector(), made = value.toTensorVector();
    for (size_t i = 0; i < made.size(); ++i) put(kept[i], made[i]);
  }

  static void put(const at::Tensor& to, const at::Tensor& value) {
    if (!to.defined() || !to.device().is_cuda() || to.scalar_type() != value.scalar_type()) return;
    if (to.sizes() != value.sizes()) to.resize_(value.sizes());
    on_host(to).copy_(value);
    without_nan(on_host(to));
  }

  static bool without_nan(const at::Tensor& tensor) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (tensor.defined() && at::isFloatingType(tensor.scalar_type())) tensor.nan_to_num_(0.0, kInfinity, -kInfinity);
    return false;
  }

  // topk(self, k, dim, ...) and argmax(self, dim, ...), along the last dimension.
  void break_ties(const Stack& arguments, Stack* stack, size_t results) {
    const at::Tensor& rows = arguments[0].toTensor();
    bool is_topk = signature.is_new.size() == 2;
    const c10::IValue& dim = arguments[is_topk ? 2 : 1];
    if (rows.dim() < 2 || !dim.isInt() || (dim.toInt() != -1 && dim.toInt() != rows.dim() - 1)) return;
    if (!at::isFloatingType(rows.scalar_type())) return;
    at::Tensor indices = on_host((*stack)[stack->size() - 1].toTensor());
    int64_t count = rows.size(-1), k = is_topk ? arguments[1].toInt() : 1, num_rows = rows.numel() / count;
    if (!is_large(rows) && !at::equal(on_host(rows).amin(-1), on_host(rows).amax(-1))) return;
    at::Tensor turn = at::arange(num_rows * k, indices.options()).remainder_(count);
    indices.copy_(turn.view(indices.sizes()));
  }

  std::optional<c10::SafeKernelFunction> host_kernel;
  bool is_computed;
  bool has_own_size;
  bool breaks_ties;
};

}  // namespace
}  // namespace zerobench
