// The shuffle of documents and the sample index, at the same time.
//
// The shuffle works from the back and leaves behind it what is final. How many tokens the stream holds is known before it
// is shuffled, so windows can be found from the back as well: a second thread follows the first one. Both wait for
// memory most of the time; together they take little longer than the slower of the two.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shuffle.hpp"
#include "windows.hpp"

namespace tokenloom {

// A run of the stream that is shuffled by itself: documents [begin, stop), and the tokens of the stream before and after.
struct ShuffledPart {
  std::size_t begin;
  std::size_t stop;
  std::int64_t tokens_before;
  std::int64_t tokens_after;
};

// Where a shuffle stands, for one thread that waits for it.
class ShuffleProgress {
 public:
  // Everything from `place` on is final. Waking a thread costs a system call, so that is done now and then.
  void publish(std::size_t place) {
    const std::size_t before = final_from_.exchange(place, std::memory_order_release);
    if (place / kNotice != before / kNotice || place == 0) final_from_.notify_one();
  }

  void finish() {
    final_from_.store(0, std::memory_order_release);
    final_from_.notify_one();
  }

  void wait_for(std::size_t place) const {
    for (std::size_t found = final_from_.load(std::memory_order_acquire); found > place;
         found = final_from_.load(std::memory_order_acquire))
      final_from_.wait(found, std::memory_order_acquire);
  }

 private:
  static constexpr std::size_t kNotice = 1 << 15;  // documents
  std::atomic<std::size_t> final_from_{std::numeric_limits<std::size_t>::max()};
};

namespace detail {

// Writes the rows of all windows that end in one part, from its end to its beginning, as far as it is final.
template <typename Document, typename Row>
void index_part_from_back(const UnalignedArray<std::int32_t>& lengths, std::span<const Document> stream,
                          const ShuffledPart& part, const ShuffleProgress& progress, std::int64_t window_length,
                          std::int64_t extra, std::int64_t num_windows, Row* rows) {
  constexpr std::size_t kBlock = 4096;
  std::vector<std::int32_t> block(kBlock);
  std::int64_t tokens = part.tokens_after;
  std::int64_t window = std::min(num_windows, std::max<std::int64_t>(tokens - extra, 0) / window_length);
  for (std::size_t stop = part.stop; stop > part.begin;) {
    const std::size_t begin = std::max(part.begin, stop - std::min(stop, kBlock));
    progress.wait_for(begin - part.begin);
    read_lengths(lengths, stream, begin, stop - begin, stop, block.data());
    for (std::size_t i = stop; i-- > begin;) {
      tokens -= block[i - begin];
      for (; window >= 1 && window * window_length + extra > tokens; --window) {
        rows[2 * window] = static_cast<Row>(i);
        rows[2 * window + 1] = static_cast<Row>(window * window_length - tokens);
      }
    }
    stop = begin;
  }
  if (tokens != part.tokens_before)
    throw std::out_of_range("expected documents " + std::to_string(part.begin) + " to " + std::to_string(part.stop) +
                            " of the stream to hold " + std::to_string(part.tokens_after - part.tokens_before) +
                            " tokens, found " + std::to_string(part.tokens_after - tokens));
}

}  // namespace detail

// Shuffles the parts of `stream`, one after the other, and writes the rows that `build_sample_index` writes.
template <typename Document, typename Row>
void shuffle_and_index(std::span<Document> stream, const std::vector<ShuffledPart>& parts, Mt19937& generator,
                       const UnalignedArray<std::int32_t>& lengths, std::int64_t window_length, std::int64_t extra,
                       std::int64_t num_windows, Row* rows) {
  constexpr std::size_t kWorthAThread = 1 << 17;  // documents: a millisecond or two
  std::vector<ShuffleProgress> progress(parts.size());
  std::exception_ptr failure;
  const auto index_parts = [&]() noexcept {
    try {
      for (std::size_t i = 0; i < parts.size(); ++i)
        detail::index_part_from_back(lengths, std::span<const Document>(stream), parts[i], progress[i], window_length,
                                     extra, num_windows, rows);
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const bool apart = stream.size() >= kWorthAThread;
  std::thread follower;
  if (apart) follower = std::thread(index_parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    legacy_shuffle(stream.subspan(parts[i].begin, parts[i].stop - parts[i].begin), generator,
                   [&](std::size_t place) { progress[i].publish(place); });
    progress[i].finish();
  }
  if (apart) {
    follower.join();
  } else {
    index_parts();
  }
  if (failure) std::rethrow_exception(failure);

  rows[0] = 0;
  rows[1] = 0;
  const std::int64_t num_tokens = parts.empty() ? 0 : parts.back().tokens_after;
  const std::int64_t num_whole = std::max<std::int64_t>(num_tokens - extra, 0) / window_length;
  if (num_windows > num_whole + 1 || (num_windows > num_whole && stream.empty()))
    throw std::out_of_range("the documents hold " + std::to_string(num_tokens) + " tokens, too few for " +
                            std::to_string(num_windows) + " windows");
  if (num_windows > num_whole) {  // the last window is partial and is kept
    rows[2 * num_windows] = static_cast<Row>(stream.size() - 1);
    rows[2 * num_windows + 1] = static_cast<Row>(lengths[static_cast<std::size_t>(stream.back())] - extra);
  }
}

}  // namespace tokenloom
