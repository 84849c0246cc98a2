// Operations on the host: those with a large tensor of numbers among their arguments are not computed.

#pragma once

#include <atomic>

#include "operations.h"

namespace zerobench {
namespace {

std::atomic<int64_t> not_computed{0};

at::Tensor on_meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

at::Tensor zeros_of(const at::Tensor& meta) {
  at::Tensor made = at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(at::kCPU));
  if (made.storage().nbytes() < kLargeBytes) return made.zero_();
  mark_hollow(made.storage().data());
  return made;
}

struct OnHost final : Watching {
  explicit OnHost(const c10::OperatorHandle& op) : Watching(op, c10::DispatchKey::CPU) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    size_t first = stack->size() - signature.num_arguments;
    if (any_large(*stack, first) && pass_over(op, stack, first)) {
      ++not_computed;
    } else {
      kernel.callBoxed(op, keys, stack);
    }
  }

 private:
  bool pass_over(const c10::OperatorHandle& op, Stack* stack, size_t first) {
    Stack results;
    if ((signature.makes || signature.has_out) && !shape(op, *stack, first, &results)) return false;
    Stack given;
    size_t next = 0;
    for (size_t i = 0; i < signature.is_new.size(); ++i)
      given.push_back(signature.is_new[i] ? changed(results[i], zeros_of)
                                          : (*stack)[first + signature.written.at(next++)]);
    torch::jit::drop(*stack, signature.num_arguments);
    for (c10::IValue& value : given) stack->push_back(std::move(value));
    return true;
  }

  // The results on the device Meta, where the operation is known there.
  bool shape(const c10::OperatorHandle& op, const Stack& stack, size_t first, Stack* results) {
    if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
    Stack arguments = moved(stack, first, at::kMeta, on_meta);
    *results = arguments;
    try {
      op.callBoxedForDispatchKey(c10::DispatchKey::Meta, *results);
    } catch (const std::exception&) {
      return false;
    }
    for (size_t i : signature.written) {
      if (!arguments[i].isTensor()) continue;
      const at::Tensor& real = stack[first + i].toTensor();
      if (real.sizes() != arguments[i].toTensor().sizes()) real.resize_(arguments[i].toTensor().sizes());
    }
    return true;
  }
};

}  // namespace
}  // namespace zerobench
