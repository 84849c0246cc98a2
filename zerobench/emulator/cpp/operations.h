// What the operations on host and device have in common: which tensors are small, and arguments as a stack of values.

#pragma once

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "host_memory.h"

namespace zerobench {
namespace {

using torch::jit::Stack;

constexpr size_t kDeviceNumberBytes = 4096;       // numbers of the device up to here are computed
constexpr size_t kDeviceIntegerBytes = 64 << 20;  // and its integers and booleans
constexpr size_t kCopiedBytes = 64 << 10;         // copies from and to the device up to here are made (../c/copies.c)

// They change what a tensor is, or read one value, not what it holds.
const std::unordered_set<std::string> kStructural = {
    "aten::set_",           "aten::set",
    "aten::resize_",        "aten::resize",
    "aten::resize_as_",     "aten::_resize_output_",
    "aten::_resize_output", "aten::_local_scalar_dense",
    "aten::set_data",
};

// One kernel for all devices, of which the CPU and the GPU get their own.
const std::unordered_set<std::string> kShared = {"aten::copy_"};

const std::unordered_set<std::string> kUntouched = {"aten::empty", "aten::empty_strided"};

bool is_number(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type) || (c10::elementSize(type) == 1 && type != at::kBool);
}

bool is_plain(const at::Tensor& tensor) { return tensor.defined() && tensor.layout() == at::kStrided; }

bool is_large_on_host(const at::Tensor& tensor) {
  if (!is_plain(tensor) || !tensor.device().is_cpu() || tensor.nbytes() < kLargeBytes) return false;
  return is_number(tensor.scalar_type()) || is_hollow(tensor.storage().data());
}

bool is_large(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return is_large_on_host(tensor);
  if (!is_plain(tensor) || !tensor.device().is_cuda()) return true;
  return tensor.nbytes() > (is_number(tensor.scalar_type()) ? kDeviceNumberBytes : kDeviceIntegerBytes);
}

// Calls `see` for each tensor in a value until it says true; whether it did.
template <typename See>
bool any_tensor(const c10::IValue& value, See&& see) {
  if (value.isTensor()) return see(value.toTensor());
  if (!value.isList()) return false;
  for (const c10::IValue& inner : value.toListRef()) {
    if (inner.isTensor() && see(inner.toTensor())) return true;
  }
  return false;
}

bool any_large(const Stack& stack, size_t first) {
  for (size_t i = first; i < stack.size(); ++i) {
    if (any_tensor(stack[i], is_large)) return true;
  }
  return false;
}

// The value with `change` done to each tensor in it.
template <typename Change>
c10::IValue changed(const c10::IValue& value, Change&& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorList().vec()) made.push_back(change(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const auto& tensor : value.toOptionalTensorVector())
      made.push_back(tensor ? std::make_optional(change(*tensor)) : std::nullopt);
    return made;
  }
  return value;
}

// The arguments that are on top of a stack, as they would be on another device.
template <typename Change>
Stack moved(const Stack& stack, size_t first, at::Device device, Change&& change) {
  Stack made;
  for (size_t i = first; i < stack.size(); ++i)
    made.push_back(stack[i].isDevice() ? c10::IValue(device) : changed(stack[i], change));
  return made;
}

// What is known of an operation's signature.
struct Signature {
  explicit Signature(const c10::FunctionSchema& schema) : num_arguments(schema.arguments().size()) {
    for (size_t i = 0; i < num_arguments; ++i) {
      const auto& argument = schema.arguments()[i];
      if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) continue;
      written.push_back(i);
      has_out |= argument.kwarg_only();
    }
    for (const auto& result : schema.returns()) is_new.push_back(result.alias_info() == nullptr);
    makes = std::find(is_new.begin(), is_new.end(), true) != is_new.end();
  }

  size_t num_arguments;
  std::vector<size_t> written;
  std::vector<bool> is_new;  // by result
  bool makes = false;
  bool has_out = false;  // a result that is resized to fit
};

std::optional<c10::SafeKernelFunction> kernel_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  if (!op.hasComputedKernelForDispatchKey(key)) return std::nullopt;
  return op.getComputedKernelForDispatchKey(key);
}

struct Watching : c10::OperatorKernel {
  Watching(const c10::OperatorHandle& op, c10::DispatchKey key) : signature(op.schema()), kernel(*kernel_of(op, key)) {}

  Signature signature;
  c10::SafeKernelFunction kernel;
};

}  // namespace
}  // namespace zerobench
