// What IndexedDatasetBuilder collects: pending token bytes and a compact record per sequence and per document.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tokenloom {

// An append-only array in blocks: it never copies what it holds, so growth costs no second copy of billions of rows.
template <typename Value>
class BlockArray {
 public:
  void append(Value value) {
    if (size_ == blocks_.size() * kBlock) blocks_.push_back(std::make_unique_for_overwrite<Value[]>(kBlock));
    blocks_[size_ / kBlock][size_ % kBlock] = value;
    ++size_;
  }

  std::size_t size() const { return size_; }

  // Copies rows [begin, begin + out.size()).
  void copy(std::size_t begin, std::span<Value> out) const {
    if (begin > size_ || out.size() > size_ - begin) throw std::out_of_range("rows past the end");
    for (std::size_t done = 0; done < out.size();) {
      const std::size_t row = begin + done;
      const std::size_t count = std::min(kBlock - row % kBlock, out.size() - done);
      std::memcpy(out.data() + done, blocks_[row / kBlock].get() + row % kBlock, count * sizeof(Value));
      done += count;
    }
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 16;
  std::vector<std::unique_ptr<Value[]>> blocks_;
  std::size_t size_ = 0;
};

// One value of another type stored as Token, or an error that names it.
template <typename Token, typename Source>
Token checked_token(Source value) {
  if (!std::in_range<Token>(value)) throw std::overflow_error(std::to_string(value));
  return static_cast<Token>(value);
}

class PairRecords {
 public:
  PairRecords(std::size_t itemsize, bool multimodal) : itemsize_(itemsize), multimodal_(multimodal) {
    document_ends_.append(0);
  }
  PairRecords(const PairRecords&) = delete;
  PairRecords& operator=(const PairRecords&) = delete;

  // Room for `count` tokens at the end of the pending bytes.
  std::uint8_t* reserve(std::size_t count) {
    const std::size_t begin = pending_.size();
    pending_.resize(begin + count * itemsize_);
    return pending_.data() + begin;
  }

  // Forgets pending bytes from `size` on: what a failed addition wrote.
  void rollback(std::size_t size) { pending_.resize(size); }

  void add_sequence(std::int64_t length, std::int8_t mode) {
    if (length < 0 || length > std::numeric_limits<std::int32_t>::max())
      throw std::length_error("a sequence of " + std::to_string(length) +
                              " tokens: lengths are stored as int32, at most 2147483647");
    lengths_.append(static_cast<std::int32_t>(length));
    if (multimodal_) modes_.append(mode);
  }

  void end_document() { document_ends_.append(static_cast<std::int64_t>(lengths_.size())); }
  void add_document_end(std::int64_t end) { document_ends_.append(end); }

  std::size_t num_pending_bytes() const { return pending_.size(); }
  std::vector<std::uint8_t>& pending() { return pending_; }
  const BlockArray<std::int32_t>& lengths() const { return lengths_; }
  const BlockArray<std::int64_t>& document_ends() const { return document_ends_; }
  const BlockArray<std::int8_t>& modes() const { return modes_; }

 private:
  std::size_t itemsize_;
  bool multimodal_;
  std::vector<std::uint8_t> pending_;
  BlockArray<std::int32_t> lengths_;
  BlockArray<std::int64_t> document_ends_;
  BlockArray<std::int8_t> modes_;
};

}  // namespace tokenloom
