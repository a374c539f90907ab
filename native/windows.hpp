// Fixed-length windows over a stream of documents: where each starts, and which spans it covers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "spans.hpp"

namespace tokenloom {

// Reads the lengths of `count` documents from `begin` on. They lie scattered: each is a cache miss unless prefetched, which
// reaches up to `known`, one past the last document that is there to be read.
template <typename Document>
void read_lengths(const UnalignedArray<std::int32_t>& lengths, std::span<const Document> document_index,
                  std::size_t begin, std::size_t count, std::size_t known, std::int32_t* out) {
  constexpr std::size_t kAhead = 32;
  for (std::size_t i = 0; i < count; ++i) {
    if (begin + i + kAhead < known) {
      const auto ahead = static_cast<std::uint64_t>(document_index[begin + i + kAhead]);
      if (ahead < lengths.size()) __builtin_prefetch(lengths.address(ahead), 0);
    }
    const auto sequence = static_cast<std::uint64_t>(document_index[begin + i]);
    if (sequence >= lengths.size())
      throw std::out_of_range("document index holds sequence " + std::to_string(document_index[begin + i]) +
                              ", but there are " + std::to_string(lengths.size()));
    out[i] = lengths[sequence];
    if (out[i] < 0)
      throw std::out_of_range("sequence " + std::to_string(sequence) + " has a length of " + std::to_string(out[i]) +
                              " tokens");
  }
}

// Writes row k = (position in document_index, token offset) for the starts of windows 0 ... num_windows, the
// last row being the end. Window k begins at token k*window_length of the stream and reads `extra` tokens more.
//
// The row belongs to the document that holds the *last token read* by the window before it, which is the
// reference's convention: a window that ends exactly at a document's end leaves (that document, length - extra).
template <typename Document, typename Row>
void build_sample_index(UnalignedArray<std::int32_t> lengths, std::span<const Document> document_index,
                        std::int64_t window_length, std::int64_t extra, std::int64_t num_windows, Row* rows) {
  constexpr std::size_t kBlock = 4096;
  std::vector<std::int32_t> block(kBlock);
  rows[0] = 0;
  rows[1] = 0;
  std::int64_t next_window = 1;
  std::int64_t target = window_length + extra;  // tokens read once window next_window - 1 is complete
  std::int64_t tokens_before = 0;
  const std::size_t num_documents = document_index.size();
  for (std::size_t begin = 0; begin < num_documents && next_window <= num_windows; begin += kBlock) {
    const std::size_t count = std::min(kBlock, num_documents - begin);
    read_lengths(lengths, document_index, begin, count, num_documents, block.data());
    for (std::size_t i = 0; i < count && next_window <= num_windows; ++i) {
      const std::int64_t tokens_after = tokens_before + block[i];
      while (tokens_after >= target && next_window <= num_windows) {
        rows[2 * next_window] = static_cast<Row>(begin + i);
        rows[2 * next_window + 1] = static_cast<Row>(target - extra - tokens_before);
        ++next_window;
        target += window_length;
      }
      tokens_before = tokens_after;
    }
  }
  if (next_window == num_windows && num_documents > 0) {  // the last window is partial and is kept
    rows[2 * next_window] = static_cast<Row>(num_documents - 1);
    const auto last = static_cast<std::size_t>(document_index[num_documents - 1]);
    rows[2 * next_window + 1] = static_cast<Row>(lengths[last] - extra);
    ++next_window;
  }
  if (next_window <= num_windows)
    throw std::out_of_range("the documents hold " + std::to_string(tokens_before) + " tokens, too few for " +
                            std::to_string(num_windows) + " windows");
}

// Everything that position -> spans needs. Does not own the arrays.
struct Windows final : SpanSource {
  UnalignedArray<std::int32_t> lengths;
  IntegerArray document_index;
  IntegerArray sample_index;   // [num_samples + 1, 2], row-major
  IntegerArray shuffle_index;  // [num_samples]
  std::int64_t window_length = 0;
  std::int64_t extra = 0;
  std::int64_t num_tokens = 0;  // of the stream

  std::int64_t num_sequences() const override { return static_cast<std::int64_t>(lengths.size()); }

  // Empty are documents without tokens; with extra = 0, the end of the document before.
  void append_spans(std::int64_t position, bool keep_empty, std::vector<Span>& spans) const override {
    const std::int64_t window = shuffled(shuffle_index, position, sample_index.size / 2 - 1, "window");
    const std::int64_t first = sample_index[2 * window];
    const std::int64_t first_start = sample_index[2 * window + 1];
    const std::int64_t last = sample_index[2 * window + 2];
    const std::int64_t last_stop = sample_index[2 * window + 3] + extra;
    if (first < 0 || last < first || last >= document_index.size)
      throw std::out_of_range("sample index row " + std::to_string(window) + " names documents " +
                              std::to_string(first) + " to " + std::to_string(last) + " of " +
                              std::to_string(document_index.size));
    std::int64_t covered = 0;
    for (std::int64_t i = first; i <= last; ++i) {
      const std::int64_t sequence = document_index[i];
      if (sequence < 0 || sequence >= static_cast<std::int64_t>(lengths.size()))
        throw std::out_of_range("document index holds sequence " + std::to_string(sequence) + " of " +
                                std::to_string(lengths.size()));
      const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
      const std::int64_t start = i == first ? first_start : 0;
      const std::int64_t stop = i == last ? last_stop : length;
      if (start < 0 || stop > length || stop < start)
        throw std::out_of_range("sample index row " + std::to_string(window) + " cuts sequence " +
                                std::to_string(sequence) + " at [" + std::to_string(start) + ", " +
                                std::to_string(stop) + "), but it has " + std::to_string(length) + " tokens");
      if (stop > start || keep_empty) spans.push_back({sequence, start, stop - start});
      covered += stop - start;
    }
    // An index that fits other data, or was damaged, nearly always fails here.
    const std::int64_t expected = std::min(window_length + extra, num_tokens - window * window_length);
    if (covered != expected)
      throw std::out_of_range("expected sample " + std::to_string(position) + " to cover " + std::to_string(expected) +
                              " tokens, found " + std::to_string(covered));
  }
};

}  // namespace tokenloom
