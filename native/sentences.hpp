// Samples made of whole sentences: which run of sentences of one document each takes, in shuffled order.
//
// The reference walks everything twice, first to count the rows and then to write them. Here rows are appended to
// memory that grows by moving pages instead of bytes, so one pass suffices and the rows exist once.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "shuffle.hpp"
#include "windows.hpp"

namespace tokenloom {

// Rows of `kColumns` values, appended one by one. Large blocks grow by remapping their pages (glibc's realloc).
template <typename Value, std::size_t kColumns>
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;
  ~RowBuffer() { std::free(data_); }

  std::size_t size() const { return size_; }
  Value* data() { return data_; }

  void append(const std::array<std::uint64_t, kColumns>& row) {
    if (size_ == capacity_) resize(std::max<std::size_t>(kSmallest, capacity_ + capacity_ / 2));
    for (std::size_t i = 0; i < kColumns; ++i) data_[size_ * kColumns + i] = static_cast<Value>(row[i]);
    ++size_;
  }

  // Gives away the memory, cut to size and never null, to be freed by std::free.
  Value* release() {
    resize(std::max<std::size_t>(size_, 1));
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  static constexpr std::size_t kSmallest = 4096;
  static constexpr std::size_t kRowBytes = kColumns * sizeof(Value);

  void resize(std::size_t capacity) {
    if (capacity > std::numeric_limits<std::size_t>::max() / kRowBytes)
      throw std::overflow_error("a mapping of " + std::to_string(capacity) + " rows exceeds the address space");
    void* grown = std::realloc(data_, capacity * kRowBytes);
    if (grown == nullptr) throw std::bad_alloc();
    data_ = static_cast<Value*>(grown);
    capacity_ = capacity;
  }

  Value* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// Document d owns sentences [boundaries[d], boundaries[d + 1]).
struct Sentences {
  UnalignedArray<std::int32_t> lengths;     // tokens per sentence
  UnalignedArray<std::int64_t> boundaries;  // [num_documents + 1]

  std::size_t num_documents() const { return boundaries.size() == 0 ? 0 : boundaries.size() - 1; }
};

namespace detail {

struct SentenceRange {
  std::int64_t first;
  std::int64_t stop;

  std::int64_t size() const { return stop - first; }
};

inline SentenceRange document_range(const Sentences& sentences, std::size_t document) {
  const SentenceRange range{sentences.boundaries[document], sentences.boundaries[document + 1]};
  if (range.first < 0 || range.stop < range.first ||
      range.stop > static_cast<std::int64_t>(sentences.lengths.size()))
    throw std::out_of_range("document " + std::to_string(document) + " owns sentences [" +
                            std::to_string(range.first) + ", " + std::to_string(range.stop) + ") of " +
                            std::to_string(sentences.lengths.size()));
  return range;
}

// The reference leaves out documents that hold a sentence of more tokens than this.
constexpr std::int32_t kLongestSentence = 512;

inline bool holds_long_sentence(const Sentences& sentences, const SentenceRange& range) {
  for (std::int64_t i = range.first; i < range.stop; ++i)
    if (sentences.lengths[static_cast<std::size_t>(i)] > kLongestSentence) return true;
  return false;
}

// Cuts a document into runs of sentences. A run ends with the document, or once it holds `next_target()` tokens and
// `min_in_run` sentences, unless fewer than `min_after` sentences would be left.
template <typename NextTarget, typename Emit>
void cut_document(const Sentences& sentences, const SentenceRange& range, std::int64_t min_in_run,
                  std::int64_t min_after, NextTarget&& next_target, Emit&& emit) {
  std::int64_t start = range.first;
  std::int64_t num_tokens = 0;
  std::int64_t target = next_target();
  for (std::int64_t stop = range.first + 1; stop <= range.stop; ++stop) {
    num_tokens += sentences.lengths[static_cast<std::size_t>(stop - 1)];
    const std::int64_t after = range.stop - stop;
    if (after == 0 || (num_tokens >= target && after >= min_after && stop - start >= min_in_run)) {
      emit(start, stop, target);
      start = stop;
      num_tokens = 0;
      target = next_target();
    }
  }
}

// Fisher-Yates from the back. As in shuffle.hpp, partners are drawn a block ahead so that their rows are on their way.
template <std::size_t kColumns, typename Value>
void shuffle_rows(Value* rows, std::size_t num_rows, std::uint64_t seed) {
  constexpr std::size_t kBlock = 256;
  std::mt19937_64 generator(seed);
  std::array<Value*, kBlock> partners;
  for (std::size_t last = num_rows == 0 ? 0 : num_rows - 1; last > 0;) {
    const std::size_t count = std::min(kBlock, last);
    for (std::size_t i = 0; i < count; ++i) {
      partners[i] = rows + kColumns * (generator() % (last - i + 1));
      __builtin_prefetch(partners[i], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      Value* row = rows + kColumns * (last - i);
      if (row != partners[i]) std::swap_ranges(row, row + kColumns, partners[i]);
    }
    last -= count;
  }
}

// Calls `walk_epoch` until there are enough rows, or epochs, or until an epoch adds nothing (then none ever will).
template <typename Rows, typename Walk>
void repeat_epochs(Rows& rows, std::int64_t num_epochs, std::uint64_t max_num_samples, Walk&& walk_epoch) {
  for (std::int64_t epoch = 0; epoch < num_epochs && rows.size() < max_num_samples; ++epoch) {
    const std::size_t before = rows.size();
    walk_epoch();
    if (rows.size() == before) break;
  }
}

}  // namespace detail

struct MappingOptions {
  std::int64_t num_epochs = 1;
  std::uint64_t max_num_samples = 0;  // no further epoch begins once there are so many
  std::int64_t max_length = 0;        // tokens
  double short_probability = 0.0;
  std::uint32_t seed = 0;
  std::int64_t min_sentences = 1;  // per sample
};

// Rows (first sentence, one past the last, target length in tokens), shuffled.
template <typename Value>
void build_mapping(const Sentences& sentences, const MappingOptions& options, RowBuffer<Value, 3>& rows) {
  constexpr std::int64_t kMinAfter = 2;  // a single last sentence joins the sample before it
  Mt19937 generator(options.seed);
  // One target in `ratio` is short. The reference holds the ratio in 32 bits; beyond, no draw is a multiple but 0.
  const double inverse = options.short_probability > 0 ? std::round(1.0 / options.short_probability) : 0.0;
  const auto ratio = static_cast<std::uint64_t>(std::min(inverse, 1e18));
  const auto next_target = [&]() -> std::int64_t {
    if (ratio == 0) return options.max_length;
    const std::uint64_t drawn = generator.next32();
    return drawn % ratio == 0 ? 2 + static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(options.max_length - 1))
                              : options.max_length;
  };
  const auto emit = [&](std::int64_t start, std::int64_t stop, std::int64_t target) {
    rows.append({static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(stop),
                 static_cast<std::uint64_t>(target)});
  };
  detail::repeat_epochs(rows, options.num_epochs, options.max_num_samples, [&] {
    for (std::size_t document = 0; document < sentences.num_documents(); ++document) {
      const detail::SentenceRange range = detail::document_range(sentences, document);
      if (range.size() < options.min_sentences) continue;
      if (range.size() > 1 && detail::holds_long_sentence(sentences, range)) continue;
      detail::cut_document(sentences, range, options.min_sentences, kMinAfter, next_target, emit);
    }
  });
  detail::shuffle_rows<3>(rows.data(), rows.size(), std::uint64_t{options.seed} + 1);
}

// Rows (first sentence, one past the last, document, number of the block in its epoch), shuffled. A block leaves room
// for the title of its document.
template <typename Value>
void build_blocks_mapping(const Sentences& sentences, UnalignedArray<std::int32_t> title_lengths,
                          const MappingOptions& options, RowBuffer<Value, 4>& rows) {
  const std::int64_t least = options.min_sentences;
  detail::repeat_epochs(rows, options.num_epochs, options.max_num_samples, [&] {
    std::uint64_t block = 0;
    for (std::size_t document = 0; document < sentences.num_documents(); ++document) {
      const detail::SentenceRange range = detail::document_range(sentences, document);
      if (range.size() < least || detail::holds_long_sentence(sentences, range)) continue;
      const std::int64_t target = options.max_length - title_lengths[document];
      detail::cut_document(
          sentences, range, least, least, [target] { return target; },
          [&](std::int64_t start, std::int64_t stop, std::int64_t) {
            rows.append({static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(stop),
                         static_cast<std::uint64_t>(document), block});
            ++block;
          });
    }
  });
  detail::shuffle_rows<4>(rows.data(), rows.size(), std::uint64_t{options.seed} + 1);
}

}  // namespace tokenloom
