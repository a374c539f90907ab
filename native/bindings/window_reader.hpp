#pragma once

#include "arrays.hpp"

namespace tokenloom {

// Positions to spans, holding the arrays it reads.
class WindowReader {
 public:
  WindowReader(Array<const std::int32_t> lengths, AnyArray document_index, AnyArray sample_index,
               AnyArray shuffle_index, std::int64_t window_length, std::int64_t extra, std::int64_t num_tokens)
      : lengths_(std::move(lengths)),
        document_index_(std::move(document_index)),
        sample_index_(std::move(sample_index)),
        shuffle_index_(std::move(shuffle_index)) {
    windows_.lengths = as_unaligned(lengths_);
    windows_.document_index = integer_array(document_index_, "document_index");
    windows_.sample_index = integer_array(sample_index_, "sample_index");
    windows_.shuffle_index = integer_array(shuffle_index_, "shuffle_index");
    windows_.window_length = window_length;
    windows_.extra = extra;
    windows_.num_tokens = num_tokens;
  }

  const Windows& windows() const { return windows_; }

  nb::tuple spans(const Array<const std::int64_t>& positions, bool keep_empty) const {
    std::vector<Span> spans;
    std::vector<std::int64_t> row_offsets{0};
    {
      nb::gil_scoped_release release;
      for (const std::int64_t position : as_span<const std::int64_t>(positions)) {
        windows_.append_spans(position, keep_empty, spans);
        row_offsets.push_back(static_cast<std::int64_t>(spans.size()));
      }
    }
    std::vector<std::int64_t> sequences, starts, lengths;
    for (const Span& span : spans) {
      sequences.push_back(span.sequence);
      starts.push_back(span.start);
      lengths.push_back(span.length);
    }
    return nb::make_tuple(to_numpy(std::move(sequences)), to_numpy(std::move(starts)), to_numpy(std::move(lengths)),
                          to_numpy(std::move(row_offsets)));
  }

 private:
  Array<const std::int32_t> lengths_;
  AnyArray document_index_, sample_index_, shuffle_index_;
  Windows windows_;
};

}  // namespace tokenloom
