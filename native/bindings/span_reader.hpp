// Positions to spans, holding the arrays that are read.
#pragma once

#include "../packs.hpp"
#include "../windows.hpp"
#include "arrays.hpp"
#include "watch.hpp"

namespace tokenloom {

// What fills samples knows this class alone: not how documents were cut or packed.
class SpanReader {
 public:
  virtual ~SpanReader() = default;
  virtual const SpanSource& source() const = 0;

  // The files that the arrays lie in, for whoever reads spans: they are checked after that.
  const Watch& watch() const { return watch_; }

  // Throws DamagedFile if what spans were worked out from is not what the files hold.
  virtual void check(std::span<const Span>) const { watch_.check(); }

  nb::tuple spans(const Array<const std::int64_t>& positions, bool keep_empty) const {
    std::vector<Span> spans;
    std::vector<std::int64_t> row_offsets{0};
    {
      const WithoutLock unlocked;
      const auto read = [&] {
        for (const std::int64_t position : as_span<const std::int64_t>(positions)) {
          source().append_spans(position, keep_empty, spans);
          row_offsets.push_back(static_cast<std::int64_t>(spans.size()));
        }
      };
      read_checked(read, [&] { check(spans); });
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

 protected:
  template <typename... Arrays>
  void watch_over(const Arrays&... arrays) {
    (watch_.add(arrays.data(), arrays.nbytes()), ...);
  }

 private:
  Watch watch_;
};

class WindowReader final : public SpanReader {
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
    watch_over(lengths_, document_index_, sample_index_, shuffle_index_);
  }

  const SpanSource& source() const override { return windows_; }

 private:
  Array<const std::int32_t> lengths_;
  AnyArray document_index_, sample_index_, shuffle_index_;
  Windows windows_;
};

class PackReader final : public SpanReader {
 public:
  PackReader(Array<const std::int32_t> lengths, AnyArray pack_index, AnyArray piece_index, AnyArray shuffle_index,
             PieceRule rule)
      : lengths_(std::move(lengths)),
        pack_index_(std::move(pack_index)),
        piece_index_(std::move(piece_index)),
        shuffle_index_(std::move(shuffle_index)) {
    packs_.lengths = as_unaligned(lengths_);
    packs_.pack_index = integer_array(pack_index_, "pack_index");
    packs_.piece_index = integer_array(piece_index_, "piece_index");
    packs_.shuffle_index = integer_array(shuffle_index_, "shuffle_index");
    packs_.rule = rule;
    watch_over(lengths_, pack_index_, piece_index_, shuffle_index_);
  }

  const SpanSource& source() const override { return packs_; }

 private:
  Array<const std::int32_t> lengths_;
  AnyArray pack_index_, piece_index_, shuffle_index_;
  Packs packs_;
};

}  // namespace tokenloom
