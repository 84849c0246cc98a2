// Torch's CPU allocator with a book kept beside it: every block that any thread takes or gives back, in order.
//
// It stands in front of the allocator that was there (which goes on telling torch's profiler) and is spoken to through
// ctypes by cpu_book.py. Only c10's headers are needed, so it compiles in seconds.

#include <c10/core/Allocator.h>

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

namespace {

constexpr int64_t kNoOperation = 0;
constexpr int64_t kGloo = -1;
constexpr int64_t kHorovod = -2;

struct Block {
  int64_t serial;
  int64_t bytes;
  int64_t holders;  // Of memory that is not torch's: storages that stand on it. 0 of the allocator's own blocks.
  int64_t operation;   // Under which it was taken.
};

struct Change {
  int64_t serial;
  int64_t bytes;      // Negative: given back.
  int64_t operation;  // Under which this thread ran it.
};

struct Book {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;  // by address
  std::vector<Change> changes;
  std::vector<Change> standing;
  int64_t total = 0;
  int64_t next_serial = 1;
  bool records = false;

  void change(int64_t serial, int64_t bytes, int64_t operation) {
    total += bytes;
    if (records) changes.push_back({serial, bytes, operation});
  }

  void remove(std::map<uintptr_t, Block>::iterator found, int64_t operation) {
    change(found->second.serial, -found->second.bytes, operation);
    blocks.erase(found);
  }

  int64_t add(uintptr_t address, int64_t bytes, int64_t holders, int64_t operation) {
    auto stale = blocks.find(address);  // given back while nobody looked
    if (stale != blocks.end()) remove(stale, operation);
    int64_t serial = next_serial++;
    blocks.emplace(address, Block{serial, bytes, holders, operation});
    change(serial, bytes, operation);
    return serial;
  }
};

Book& book() {
  static Book* the = new Book();  // outlives every tensor
  return *the;
}

std::atomic<int64_t> last_operation{kNoOperation};
thread_local int64_t operation = kNoOperation;
thread_local bool is_named = false;

// Which operation this thread runs; threads of gloo, which name themselves, and of Horovod, which have the name of the
// thread that started it (zerobench/rank/strategies/horovod.py), run collectives and nothing else.
int64_t current_operation() {
  if (!is_named) {
    is_named = true;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (std::strncmp(name, "pt_gloo", 7) == 0) operation = kGloo;
    if (std::strcmp(name, "horovod") == 0) operation = kHorovod;
  }
  return operation;
}

c10::Allocator* behind = nullptr;
c10::DeleterFnPtr give_back_behind = nullptr;

void give_back(void* data) {
  if (data != nullptr) {
    int64_t under = current_operation();
    std::lock_guard<std::mutex> guard(book().mutex);
    auto found = book().blocks.find(reinterpret_cast<uintptr_t>(data));
    if (found != book().blocks.end()) book().remove(found, under);
  }
  give_back_behind(data);  // after the book, so that whoever gets the address next comes next
}

struct BookedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr taken = behind->allocate(bytes);
    void* data = taken.get();
    if (data != nullptr) {
      int64_t under = current_operation();
      std::lock_guard<std::mutex> guard(book().mutex);
      book().add(reinterpret_cast<uintptr_t>(data), static_cast<int64_t>(bytes), 0, under);
    }
    if (!taken.compare_exchange_deleter(give_back_behind, &give_back)) {
      TORCH_CHECK(data == nullptr, "torch's CPU allocator gave a block with another deleter than its own");
    }
    return taken;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &give_back;
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

BookedAllocator& booked() {
  static BookedAllocator* the = new BookedAllocator();
  return *the;
}

void before_fork() {
  book().mutex.lock();
}

void after_fork() {
  book().mutex.unlock();
}

}  // namespace

extern "C" {

// Whether torch allocates through the book from now on.
int zerobench_book_open() {
  c10::Allocator* now = c10::GetAllocator(c10::DeviceType::CPU);
  if (now == &booked()) return 1;
  if (behind == nullptr) {
    if (now->raw_deleter() == nullptr) return 0;
    behind = now;
    give_back_behind = now->raw_deleter();
    pthread_atfork(before_fork, after_fork, after_fork);
  }
  if (now != behind) return 0;  // somebody else's, put there since
  c10::SetAllocator(c10::DeviceType::CPU, &booked());
  return c10::GetAllocator(c10::DeviceType::CPU) == &booked();
}

// Forget the changes so far; from now on keep them or not.
void zerobench_book_record(int records) {
  std::lock_guard<std::mutex> guard(book().mutex);
  book().changes.clear();
  book().records = records != 0;
}

// New blocks are not booked any more; those that were are still when they are given back.
void zerobench_book_close() {
  if (c10::GetAllocator(c10::DeviceType::CPU) == &booked()) c10::SetAllocator(c10::DeviceType::CPU, behind);
  zerobench_book_record(0);
}

int64_t zerobench_book_total() {
  std::lock_guard<std::mutex> guard(book().mutex);
  return book().total;
}

// The serial number of the block that a storage lies in; memory that is not the allocator's is booked by that.
int64_t zerobench_book_find(uintptr_t address, int64_t bytes) {
  std::lock_guard<std::mutex> guard(book().mutex);
  auto found = book().blocks.find(address);
  if (found != book().blocks.end()) {
    if (found->second.holders != 0) ++found->second.holders;
    return found->second.serial;
  }
  auto next = book().blocks.lower_bound(address);
  if (next != book().blocks.begin()) {
    const auto& [start, block] = *std::prev(next);
    if (address + bytes <= start + block.bytes) return block.serial;
  }
  return book().add(address, bytes, 1, current_operation());
}

// A storage is gone. Of memory that is not the allocator's nobody else tells.
void zerobench_book_leave(uintptr_t address, int64_t serial) {
  std::lock_guard<std::mutex> guard(book().mutex);
  auto found = book().blocks.find(address);
  if (found == book().blocks.end() || found->second.serial != serial || found->second.holders == 0) return;
  if (--found->second.holders == 0) book().remove(found, current_operation());
}

// Forget all memory that is not the allocator's, to be told of it anew.
void zerobench_book_forget_foreign() {
  std::lock_guard<std::mutex> guard(book().mutex);
  for (auto at = book().blocks.begin(); at != book().blocks.end();) {
    auto here = at++;
    if (here->second.holders != 0) book().remove(here, kNoOperation);
  }
}

// This thread runs another operation, a new one. Returns the one before.
int64_t zerobench_book_begin() {
  int64_t before = current_operation();
  operation = ++last_operation;
  return before;
}

void zerobench_book_end(int64_t before) {
  operation = before;
}

// Hold what stands now, and how many changes there were, for copying.
void zerobench_book_counts(int64_t* changes, int64_t* standing) {
  std::lock_guard<std::mutex> guard(book().mutex);
  book().records = false;
  book().standing.clear();
  for (const auto& [address, block] : book().blocks) {
    book().standing.push_back({block.serial, block.bytes, block.operation});
  }
  *changes = static_cast<int64_t>(book().changes.size());
  *standing = static_cast<int64_t>(book().standing.size());
}

void zerobench_book_copy(Change* changes, Change* standing) {
  std::lock_guard<std::mutex> guard(book().mutex);
  if (!book().changes.empty()) std::memcpy(changes, book().changes.data(), book().changes.size() * sizeof(Change));
  if (!book().standing.empty()) std::memcpy(standing, book().standing.data(), book().standing.size() * sizeof(Change));
}

}  // extern "C"
