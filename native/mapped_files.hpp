// Every mapped file, as a handler of SIGBUS and the kernels that read it know it: a file that is truncated while it is
// mapped must end in an error that names it, not in the death of the process, nor in zeros that pass for tokens.
//
// What the system does when a mapped file shrinks: pages beyond its new end raise SIGBUS when they are touched; the rest
// of the page in which it ends now reads as zeros, silently. Both are found, without a system call:
//
// - The handler maps zeros over what is left of the file from the fault on, marks the file as damaged and returns.
// - `check` looks at the mark after a read, and at the last bytes of the file that are not zero, as they were when it
//   was mapped. To look is to touch its last page, which raises SIGBUS if the file ends before it; if it ends within
//   that page, these bytes are zero now. What else the page has lost was zero before. So whatever was read is what the
//   file held when it was mapped, or `check` says so. One cache line per file and read.
//
// Threads. The handler runs in any thread at any moment, so it takes no lock and allocates nothing: it scans a table
// that only grows, whose entries are guarded by a sequence number each (a writer makes it odd while it changes the
// bounds; a reader that sees it odd or changed passes the entry by, which cannot be the one that it faults in, because
// whoever reads a mapping keeps it alive). Entries are taken and given back with the GIL held, which keeps threads
// apart, also in the child of a fork. An entry is there before its mapping is read, and gone before that is unmapped.
// `check` needs no GIL.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tokenloom {

// What tells a file from another that took its name, in the order in which Python gets it.
struct FileFacts {
  std::int64_t device = 0, inode = 0, num_bytes = 0, modified_ns = 0, changed_ns = 0;

  static FileFacts of(const struct stat& status) {
    const auto ns = [](const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
    return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino), status.st_size,
            ns(status.st_mtim), ns(status.st_ctim)};
  }
};

// A file was found to hold less than when it was mapped, or something else, or could not be read.
struct DamagedFile {
  std::string path;
  std::int64_t num_bytes;
};

class MappedFiles;

class MappedFileEntry {
 public:
  const std::string& path() const { return path_; }
  std::int64_t num_bytes() const { return facts_.num_bytes; }
  const std::uint8_t* data() const { return data_; }
  const std::uint8_t* stop() const { return data_ + facts_.num_bytes; }

  // Whether what was read of the file is what it held when it was mapped, as far as can be told; see above.
  bool is_intact() {
    if (damaged_.load(std::memory_order_acquire)) return false;
    if (state_.load(std::memory_order_acquire) != kReady) look_closely();
    if (state_.load(std::memory_order_acquire) == kReady) {
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the handler may run within the comparison
      if (std::memcmp(end_of_data_, kept_.data(), num_kept_) != 0) mark();
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    return !damaged_.load(std::memory_order_acquire);
  }

  // Remembers the end of the file, which was compared with its size just now.
  void remember_end() {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uint8_t* last = stop() - 1;
    const std::uint8_t* begin = data_;
    if (static_cast<std::uintptr_t>(last - data_) >= page)
      begin = data_ + (static_cast<std::uintptr_t>(last - data_) & ~(page - 1));
    while (last > begin && *last == 0) --last;
    num_kept_ = std::min<std::size_t>(kept_.size(), static_cast<std::size_t>(last - begin) + 1);
    end_of_data_ = last + 1 - num_kept_;
    std::memcpy(kept_.data(), end_of_data_, num_kept_);
    state_.store(kReady, std::memory_order_release);
  }

 private:
  friend class MappedFiles;
  enum State : int { kNew, kBusy, kReady };

  void mark();

  // For one of many files that were mapped at once: the first read of it also asks the system once, for a file that was
  // truncated between mapping and this within its last page has no end left that could be remembered.
  void look_closely() {
    int expected = kNew;
    if (!state_.compare_exchange_strong(expected, kBusy)) return;  // another thread does it
    struct stat status {};
    if (::stat(path_.c_str(), &status) == 0 && static_cast<std::int64_t>(status.st_dev) == facts_.device &&
        static_cast<std::int64_t>(status.st_ino) == facts_.inode && status.st_size < facts_.num_bytes)
      mark();
    remember_end();
  }

  // What the handler reads.
  std::atomic<std::uint32_t> sequence_{0};  // odd while the bounds change
  std::atomic<std::uintptr_t> begin_{0}, end_{0};
  std::atomic<bool> damaged_{false};
  // What readers of the mapping read.
  std::atomic<int> state_{kNew};
  std::size_t num_kept_ = 0;
  const std::uint8_t* end_of_data_ = nullptr;
  std::array<std::uint8_t, 32> kept_{};
  const std::uint8_t* data_ = nullptr;
  FileFacts facts_;
  std::string path_;
};

// All of them. Never destroyed: arrays may outlive the module.
class MappedFiles {
 public:
  static MappedFiles& shared() {
    static auto* const files = new MappedFiles;
    return *files;
  }

  // Files that are damaged and still mapped.
  std::int64_t num_damaged() const { return num_damaged_.load(std::memory_order_acquire); }

  // Takes note of a mapped file that is not empty, before it is read.
  MappedFileEntry* add(const std::uint8_t* data, const FileFacts& facts, std::string path) {
    if (free_.empty()) grow();
    MappedFileEntry* entry = free_.back();
    free_.pop_back();
    entry->data_ = data;
    entry->facts_ = facts;
    entry->path_ = std::move(path);
    entry->state_.store(MappedFileEntry::kNew);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const auto size = (static_cast<std::uintptr_t>(facts.num_bytes) + page_ - 1) & ~(page_ - 1);
    set_bounds(*entry, begin, begin + size);
    by_address_.emplace_hint(by_address_.end(), begin, entry);
    return entry;
  }

  // Forgets it, before it is unmapped.
  void remove(MappedFileEntry* entry) {
    by_address_.erase(reinterpret_cast<std::uintptr_t>(entry->data_));
    set_bounds(*entry, 0, 0);
    if (entry->damaged_.exchange(false)) num_damaged_.fetch_sub(1);
    free_.push_back(entry);
  }

  // Returns the mapped files that lie in, or overlap with, some bytes, by rising address; needs the GIL.
  std::vector<MappedFileEntry*> within(const void* bytes, std::size_t size) const {
    std::vector<MappedFileEntry*> found;
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes);
    auto entry = by_address_.upper_bound(begin);
    if (entry != by_address_.begin() && std::prev(entry)->second->end_.load() > begin) --entry;
    for (; entry != by_address_.end() && entry->first < begin + size; ++entry) found.push_back(entry->second);
    return found;
  }

  // Called by the handler: maps zeros over the rest of the file that an address lies in; false if it lies in none.
  bool take_fault(std::uintptr_t address) {
    for (Chunk* chunk = first_.load(std::memory_order_acquire); chunk != nullptr;
         chunk = chunk->next.load(std::memory_order_acquire)) {
      for (MappedFileEntry& entry : chunk->entries) {
        const std::uint32_t before = entry.sequence_.load(std::memory_order_acquire);
        const std::uintptr_t begin = entry.begin_.load(std::memory_order_relaxed);
        const std::uintptr_t end = entry.end_.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        if ((before & 1U) != 0 || entry.sequence_.load(std::memory_order_relaxed) != before) continue;
        if (address < begin || address >= end) continue;
        entry.mark();  // first, so that no other thread reads the zeros without the mark
        // All that follows would raise SIGBUS as well. If the system has no mapping left to split, all becomes zeros.
        return map_zeros(address & ~(page_ - 1), end) || map_zeros(begin, end);
      }
    }
    return false;
  }

  void count_damage() { num_damaged_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

  struct Chunk {
    std::array<MappedFileEntry, 256> entries;
    std::atomic<Chunk*> next{nullptr};
  };

  void grow() {
    auto* const chunk = new Chunk;
    for (auto entry = chunk->entries.rbegin(); entry != chunk->entries.rend(); ++entry) free_.push_back(&*entry);
    Chunk* last = first_.load();
    if (last == nullptr) {
      first_.store(chunk, std::memory_order_release);
      return;
    }
    while (Chunk* next = last->next.load()) last = next;
    last->next.store(chunk, std::memory_order_release);
  }

  static void set_bounds(MappedFileEntry& entry, std::uintptr_t begin, std::uintptr_t end) {
    const std::uint32_t sequence = entry.sequence_.load(std::memory_order_relaxed);
    entry.sequence_.store(sequence + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.begin_.store(begin, std::memory_order_relaxed);
    entry.end_.store(end, std::memory_order_relaxed);
    entry.sequence_.store(sequence + 2, std::memory_order_release);
  }

  // By the system call itself: what sanitizers put around `mmap` is not made for handlers.
  static bool map_zeros(std::uintptr_t begin, std::uintptr_t end) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    return ::syscall(SYS_mmap, begin, end - begin, PROT_READ, flags, -1, 0L) != -1;
  }

  const std::uintptr_t page_ = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::atomic<Chunk*> first_{nullptr};
  std::atomic<std::int64_t> num_damaged_{0};
  std::vector<MappedFileEntry*> free_;
  std::map<std::uintptr_t, MappedFileEntry*> by_address_;
};

inline void MappedFileEntry::mark() {
  if (!damaged_.exchange(true, std::memory_order_acq_rel)) MappedFiles::shared().count_damage();
}

}  // namespace tokenloom
