// Memory for arrays that are made again and again in the same sizes, as those of batches are. malloc returns that of
// large arrays to the system, which clears each page of it before it gives it out again: that took five times as long
// as filling the batch. Here the memory of the last arrays that were dropped waits for the next ones of their size.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

namespace tokenloom {

// Whole pages of the system: what is freed is free, whatever lies beside it.
class PageBlock {
 public:
  explicit PageBlock(std::size_t num_bytes) : num_bytes_(num_bytes) {
    data_ = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    // Where the kernel wants to be asked, fewer and larger pages; it may decline.
    if (num_bytes >= kHugePageBytes) ::madvise(data_, num_bytes, MADV_HUGEPAGE);
  }
  ~PageBlock() { ::munmap(data_, num_bytes_); }
  PageBlock(const PageBlock&) = delete;
  PageBlock& operator=(const PageBlock&) = delete;

  void* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  static constexpr std::size_t kHugePageBytes = std::size_t{4} << 20;

  void* data_ = nullptr;
  std::size_t num_bytes_;
};

// Of one thread at a time. What waits is bounded; the oldest block goes first.
class RecycledMemory {
 public:
  explicit RecycledMemory(std::size_t most_idle_bytes) : most_idle_bytes_(most_idle_bytes) {}

  // Returns a block of this size, above 0, which holds anything.
  std::unique_ptr<PageBlock> take(std::size_t num_bytes) {
    for (auto block = idle_.rbegin(); block != idle_.rend(); ++block) {  // the last one dropped is still in the cache
      if ((*block)->num_bytes() != num_bytes) continue;
      std::unique_ptr<PageBlock> found = std::move(*block);
      idle_.erase(std::next(block).base());
      idle_bytes_ -= num_bytes;
      return found;
    }
    return std::make_unique<PageBlock>(num_bytes);
  }

  void give_back(std::unique_ptr<PageBlock> block) {
    idle_bytes_ += block->num_bytes();
    idle_.push_back(std::move(block));
    while (idle_bytes_ > most_idle_bytes_) {
      idle_bytes_ -= idle_.front()->num_bytes();
      idle_.pop_front();
    }
  }

 private:
  std::size_t most_idle_bytes_;
  std::size_t idle_bytes_ = 0;
  std::deque<std::unique_ptr<PageBlock>> idle_;
};

}  // namespace tokenloom
