// Which values exist under an emulated GPU: small ones, so that programs count and decide as they do on a real one.
//
// On the host, an operation with a large tensor of numbers among its arguments is not computed. Results get their shape
// from the operation's Meta kernel and are zero; what would be written in place stays as it was. Large means
// kLargeBytes or more of floating point, complex or 8 bits (quantized weights, the bytes of a storage that moves), or
// what came of such an operation. Other integers and booleans are computed at any size. Operations without a Meta
// kernel (nonzero), and those that give a view or no tensor, are always computed.
//
// On the device no kernel runs, and a result is zero at its birth. An operation whose arguments and results are all
// small is computed on the host after its kernel was launched into nothing, and its results are put into the device's
// memory: numbers up to kDeviceNumberBytes, integers and booleans up to kDeviceIntegerBytes. Not a number becomes zero,
// since a zero that nobody computed may have been divided by another. Random numbers are zero.
//
// Ties are broken in turn: where topk or argmax finds rows whose numbers are all equal, as those of a router that was
// not computed are, row r gets the entries after r * k. So each expert gets as many tokens as any other.

#include "device_operations.h"
#include "host_operations.h"

namespace zerobench {
namespace {

// Whether all results are tensors: new ones, or arguments that are written to.
bool gives_tensors(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;
    bool is_list = result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    if (!is_list && result.type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return true;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  }
  return false;
}

template <typename Kernel>
int64_t watch(c10::DispatchKey key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || kStructural.count(name.name) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !gives_tensors(op->schema())) continue;
    if (!takes_tensors(op->schema()) && kUntouched.count(name.name) == 0) continue;
    if (!op->hasKernelForDispatchKey(key) && kShared.count(name.name) == 0) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op));
    // Kept for the life of the process.
    new c10::RegistrationHandleRAII(
        dispatcher.registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, "zerobench"));
    ++count;
  }
  return count;
}

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}  // that a kernel was replaced, which is what is meant
};

}  // namespace
}  // namespace zerobench

extern "C" {

// The number of operations that are watched from now on; 0 where torch's allocator cannot be replaced.
int64_t zerobench_values_open() {
  static int64_t count = 0;
  if (count != 0 || !zerobench::open_host_memory()) return count;
  zerobench::Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  count = zerobench::watch<zerobench::OnHost>(c10::DispatchKey::CPU);
  count += zerobench::watch<zerobench::OnDevice>(c10::DispatchKey::CUDA);
  return count;
}

// Operations passed over on the host, and computed for the device, so far.
int64_t zerobench_values_not_computed() { return zerobench::not_computed; }

int64_t zerobench_values_computed() { return zerobench::computed; }

}  // extern "C"
