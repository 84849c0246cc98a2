// The host's memory under an emulated GPU: large blocks of torch's CPU allocator are address space.
//
// A block of kLargeBytes or more takes no memory until something writes to it, and may be larger than the machine; what
// was never written reads as zero. Smaller blocks come from the allocator that was there before.

#pragma once

#include <c10/core/Allocator.h>
#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <unordered_map>

namespace zerobench {
namespace {

constexpr size_t kLargeBytes = 1 << 20;

struct Block {
  size_t bytes;
  bool hollow;
};

std::mutex mutex;

std::unordered_map<const void*, Block>& blocks() {
  static auto* the = new std::unordered_map<const void*, Block>();  // outlives every tensor
  return *the;
}

c10::Allocator* behind = nullptr;
c10::DeleterFnPtr give_back_behind = nullptr;

void give_back(void* data) {
  size_t bytes = 0;
  {
    std::lock_guard<std::mutex> guard(mutex);
    auto found = blocks().find(data);
    if (found != blocks().end()) {
      bytes = found->second.bytes;
      blocks().erase(found);
    }
  }
  if (bytes == 0) {
    give_back_behind(data);
  } else {
    munmap(data, bytes);
  }
}

struct AddressSpace final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLargeBytes) {
      c10::DataPtr taken = behind->allocate(bytes);
      bool is_ours = taken.compare_exchange_deleter(give_back_behind, &give_back);
      TORCH_CHECK(is_ours || taken.get() == nullptr,
                  "torch's CPU allocator gave a block with another deleter than its own");
      return taken;
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "the emulated host has no address space for ", bytes, " bytes");
    std::lock_guard<std::mutex> guard(mutex);
    blocks()[data] = {bytes, false};
    return {data, data, &give_back, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    if (bytes < kLargeBytes) default_copy_data(to, from, bytes);
  }
};

void before_fork() { mutex.lock(); }

void after_fork() { mutex.unlock(); }

// A large block holds nothing, because what should be in it was not computed.
void mark_hollow(const void* data) {
  std::lock_guard<std::mutex> guard(mutex);
  auto found = blocks().find(data);
  if (found != blocks().end()) found->second.hollow = true;
}

bool is_hollow(const void* data) {
  std::lock_guard<std::mutex> guard(mutex);
  auto found = blocks().find(data);
  return found != blocks().end() && found->second.hollow;
}

// From now on large blocks are address space. False where torch's own allocator cannot be replaced.
bool open_host_memory() {
  behind = c10::GetAllocator(c10::DeviceType::CPU);
  give_back_behind = behind->raw_deleter();
  if (give_back_behind == nullptr) return false;
  static AddressSpace* space = new AddressSpace();
  c10::SetAllocator(c10::DeviceType::CPU, space);
  pthread_atfork(before_fork, after_fork, after_fork);
  return c10::GetAllocator(c10::DeviceType::CPU) == space;
}

}  // namespace
}  // namespace zerobench
