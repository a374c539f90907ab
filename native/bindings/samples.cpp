// Samples, straight from mapped bytes.
#include <nanobind/stl/optional.h>

#include <cstdlib>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../attention.hpp"
#include "../gpt.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "span_reader.hpp"
#include "token_sections.hpp"
#include "watch.hpp"

namespace tokenloom {
namespace {

// Checks the files, of many, that spans lie in.
void check_parts(const Watch& watch, const MappedTokens& tokens, std::span<const Span> spans) {
  for (const Span& span : spans) {
    const std::int64_t begin = tokens.pointers[static_cast<std::size_t>(span.sequence)] + span.start * tokens.itemsize;
    const std::int64_t num_bytes = span.length * tokens.itemsize;
    if (begin >= 0 && begin <= tokens.num_bytes - num_bytes) watch.check_tokens(begin, num_bytes);
  }
}

// The tokens of a mapped file, or of several, and what turns positions into spans of them: what does not change between
// calls.
class MappedSamples {
 public:
  MappedSamples(const SpanReader& reader, Array<const std::uint8_t> bytes, Array<const std::int64_t> pointers,
                int dtype_code)
      : reader_(reader), bytes_(std::move(bytes)), pointers_(std::move(pointers)), dtype_code_(dtype_code) {
    if (static_cast<std::int64_t>(pointers_.size()) < reader.source().num_sequences())
      throw nb::value_error("pointers must be as many as sequence lengths");
    with_token_type(dtype_code, [&](auto zero) {
      tokens_ = {bytes_.data(), static_cast<std::int64_t>(bytes_.size()), as_unaligned(pointers_), sizeof(zero)};
    });
    watch_.add(pointers_.data(), pointers_.nbytes());
    watch_.add_tokens(bytes_.data(), bytes_.size());
  }

  MappedSamples(const SpanReader& reader, const TokenSections& sections)
      : reader_(reader), sections_(&sections), dtype_code_(sections.dtype_code()) {
    if (sections.num_sequences() < reader.source().num_sequences())
      throw nb::value_error("sections must hold all sequences");
  }

  int dtype_code() const { return dtype_code_; }

  // Calls fill(spans, tokens); throws DamagedFile if what was read meanwhile is not what the files hold.
  template <typename Fill>
  void read(std::span<const std::int64_t> positions, Fill&& fill) const {
    if (sections_ == nullptr) {
      read_checked([&] { fill(reader_.source(), tokens_); }, [&] { check(positions); });
    } else {
      TokenSections::Cursor tokens(*sections_);
      read_checked([&] { fill(reader_.source(), tokens); }, [&] { tokens.check(); });
    }
  }

 private:
  void check(std::span<const std::int64_t> positions) const {
    reader_.watch().check();
    watch_.check();
    if (!watch_.has_parts()) return;
    std::vector<Span> spans;
    for (const std::int64_t position : positions) spans_of(position, spans);
    check_parts(watch_, tokens_, spans);
  }

  void spans_of(std::int64_t position, std::vector<Span>& spans) const {
    try {
      reader_.source().append_spans(position, false, spans);
    } catch (const std::exception&) {  // told by the read itself
    }
  }

  const SpanReader& reader_;  // kept alive by the binding, as are the sections
  const TokenSections* sections_ = nullptr;
  Array<const std::uint8_t> bytes_;
  Array<const std::int64_t> pointers_;
  int dtype_code_;
  MappedTokens tokens_;
  Watch watch_;
};

class GptFiller {
 public:
  GptFiller(std::int64_t sequence_length, std::int64_t extra, std::int64_t pad_id, std::int64_t eod_id,
            bool reset_position_ids, bool reset_attention_mask, bool eod_mask_loss, bool inter_document_masking,
            bool folds_last_token)
      : options_{sequence_length,      extra,         pad_id,                 eod_id,          reset_position_ids,
                 reset_attention_mask, eod_mask_loss, inter_document_masking, folds_last_token} {
    if (sequence_length < 1 || sequence_length > std::numeric_limits<std::int32_t>::max())
      throw nb::value_error("sequence_length must be in [1, 2147483647]");
    if (extra != 0 && extra != 1) throw nb::value_error("extra must be 0 or 1");
  }

  // Arrays of any shape whose rows follow each other, [rows, S] or [S]; which integers they hold is seen when called.
  using Integers = nb::ndarray<nb::c_contig, nb::device::cpu>;
  using LossMask = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
  using AttentionMask = std::optional<nb::ndarray<bool, nb::c_contig, nb::device::cpu>>;
  using Boundaries = std::optional<nb::ndarray<std::int32_t, nb::c_contig, nb::device::cpu>>;
  using Digests = std::optional<Matrix<std::uint64_t>>;

  // One sample into arrays of one row.
  void fill_one(const MappedSamples& source, std::int64_t position, const Integers& tokens, const Integers& labels,
                const LossMask& loss_mask, const Integers& position_ids, const AttentionMask& attention_mask,
                const Boundaries& cu_seqlens, const Boundaries& max_seqlen) const {
    const Digests none;
    const Outputs outputs{tokens, labels, loss_mask, position_ids, attention_mask, cu_seqlens, max_seqlen, none};
    fill_rows(source, {&position, 1}, {}, outputs);
  }

  // Samples into rows of a batch, straight from the mapped file: in their order, or each into its own of `rows`.
  void fill(const MappedSamples& source, const Array<const std::int64_t>& positions,
            const std::optional<Array<const std::int64_t>>& rows, const Integers& tokens, const Integers& labels,
            const LossMask& loss_mask, const Integers& position_ids, const AttentionMask& attention_mask,
            const Boundaries& cu_seqlens, const Boundaries& max_seqlen, const Digests& digests) const {
    const Outputs outputs{tokens,         labels,     loss_mask,  position_ids,
                          attention_mask, cu_seqlens, max_seqlen, digests};
    fill_rows(source, as_span<const std::int64_t>(positions),
              rows ? as_span<const std::int64_t>(*rows) : std::span<const std::int64_t>(), outputs);
  }

  // The same from tokens that were read elsewhere: text[i, : filled] of each row are real, spans are its documents.
  void fill_from_text(const Matrix<const std::int64_t>& text, const Array<const std::int64_t>& span_lengths,
                      const Array<const std::int64_t>& row_offsets,
                      const std::optional<Array<const std::int64_t>>& rows, const Integers& tokens,
                      const Integers& labels, const LossMask& loss_mask, const Integers& position_ids,
                      const AttentionMask& attention_mask, const Boundaries& cu_seqlens,
                      const Boundaries& max_seqlen, const Digests& digests) const {
    const Outputs outputs{tokens,         labels,     loss_mask,  position_ids,
                          attention_mask, cu_seqlens, max_seqlen, digests};
    const std::size_t count = text.shape(0);
    const std::int64_t capacity = options_.sequence_length + options_.extra;
    const auto targets = rows ? as_span<const std::int64_t>(*rows) : std::span<const std::int64_t>();
    check(outputs, count, targets);
    if (static_cast<std::int64_t>(text.shape(1)) != capacity || row_offsets.size() != count + 1)
      throw nb::value_error("text must be [rows, sequence_length + extra] and row_offsets [rows + 1]");
    with_integer_type(outputs, [&](auto zero) {
      const GptRows<decltype(zero)> out = rows_of<decltype(zero)>(outputs);
      const WithoutLock unlocked;
      std::vector<Span> spans;
      std::vector<std::int64_t> run_starts;
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t filled = read_spans(span_lengths, row_offsets.data()[i], row_offsets.data()[i + 1], spans);
        if (filled < 0 || filled > capacity) throw std::out_of_range("a row's spans hold more tokens than the row");
        finish_gpt_row(text.data() + static_cast<std::int64_t>(i) * capacity, filled, std::span<const Span>(spans),
                       options_, run_starts, out[targets.empty() ? static_cast<std::int64_t>(i) : targets[i]]);
      }
    });
  }

 private:
  struct Outputs {
    const Integers& tokens;
    const Integers& labels;
    const LossMask& loss_mask;
    const Integers& position_ids;
    const AttentionMask& attention_mask;
    const Boundaries& cu_seqlens;
    const Boundaries& max_seqlen;
    const Digests& digests;
  };

  void fill_rows(const MappedSamples& source, std::span<const std::int64_t> positions,
                 std::span<const std::int64_t> rows, const Outputs& outputs) const {
    check(outputs, positions.size(), rows);
    with_token_type(source.dtype_code(), [&](auto token) {
      with_integer_type(outputs, [&](auto integer) {
        const GptRows<decltype(integer)> out = rows_of<decltype(integer)>(outputs);
        const WithoutLock unlocked;
        source.read(positions, [&](const SpanSource& spans, auto& tokens) {
          fill_gpt_rows<decltype(token)>(spans, tokens, positions, rows, options_, out);
        });
      });
    });
  }

  // Makes spans of lengths [begin, end), and returns their sum. A length below 0 is that of a denied document.
  static std::int64_t read_spans(const Array<const std::int64_t>& lengths, std::int64_t begin, std::int64_t end,
                                 std::vector<Span>& spans) {
    if (begin < 0 || end < begin || end > static_cast<std::int64_t>(lengths.size()))
      throw std::out_of_range("row_offsets do not fit span_lengths");
    spans.clear();
    std::int64_t filled = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t length = lengths.data()[i];
      spans.push_back({length < 0 ? -1 : 0, 0, std::abs(length)});
      filled += std::abs(length);
    }
    return filled;
  }

  // Every output must have room for as many rows as tokens have, and those must take all that is filled.
  void check(const Outputs& out, std::size_t count, std::span<const std::int64_t> rows) const {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    const std::size_t num_rows = out.tokens.size() / length;
    const auto fits = [&](const auto& array, std::size_t width) { return array.size() == num_rows * width; };
    bool ok = fits(out.tokens, length) && fits(out.labels, length) && fits(out.loss_mask, length) &&
              fits(out.position_ids, length);
    ok = ok && (!out.attention_mask || fits(*out.attention_mask, length * length)) &&
         out.cu_seqlens.has_value() == options_.inter_document_masking &&
         out.max_seqlen.has_value() == options_.inter_document_masking;
    if (out.cu_seqlens && out.max_seqlen) ok = ok && fits(*out.cu_seqlens, length + 1) && fits(*out.max_seqlen, 1);
    if (out.digests) ok = ok && fits(*out.digests, 2);
    ok = ok && (rows.empty() ? count == num_rows : rows.size() == count);
    for (const std::int64_t row : rows) ok = ok && row >= 0 && row < static_cast<std::int64_t>(num_rows);
    if (!ok) throw nb::value_error("an output has the wrong shape, or is missing");
    if (out.labels.dtype() != out.tokens.dtype() || out.position_ids.dtype() != out.tokens.dtype())
      throw nb::type_error("tokens, labels and position_ids must have one dtype");
  }

  // Calls `function` with a value of the type that tokens are wanted as.
  template <typename Function>
  static void with_integer_type(const Outputs& out, Function&& function) {
    if (out.tokens.dtype() == nb::dtype<std::int64_t>()) {
      function(std::int64_t{});
    } else if (out.tokens.dtype() == nb::dtype<std::int32_t>()) {
      function(std::int32_t{});
    } else {
      throw nb::type_error("tokens must be int32 or int64");
    }
  }

  template <typename Integer>
  GptRows<Integer> rows_of(const Outputs& out) const {
    return {{static_cast<Integer*>(out.tokens.data()), static_cast<Integer*>(out.labels.data()), out.loss_mask.data(),
             static_cast<Integer*>(out.position_ids.data()),
             out.attention_mask ? reinterpret_cast<std::uint8_t*>(out.attention_mask->data()) : nullptr,
             out.cu_seqlens ? out.cu_seqlens->data() : nullptr, out.max_seqlen ? out.max_seqlen->data() : nullptr,
             out.digests ? out.digests->data() : nullptr},
            options_.sequence_length};
  }

  GptOptions options_;
};

void gather_spans(const Array<const std::uint8_t>& bytes, const Array<const std::int64_t>& pointers, int dtype_code,
                  const Array<const std::int64_t>& sequences, const Array<const std::int64_t>& starts,
                  const Array<const std::int64_t>& lengths, const nb::ndarray<nb::ndim<1>, nb::c_contig>& out,
                  const Watch* watch) {
  if (sequences.size() != starts.size() || sequences.size() != lengths.size())
    throw nb::value_error("sequences, starts and lengths must be equally long");
  with_token_type(dtype_code, [&](auto zero) {
    using Token = decltype(zero);
    if (out.dtype() != nb::dtype<Token>()) throw nb::type_error("out must have the file's dtype");
    const MappedTokens source{bytes.data(), static_cast<std::int64_t>(bytes.size()),
                              as_unaligned(pointers), sizeof(Token)};
    std::vector<Span> spans;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Span span{sequences.data()[i], starts.data()[i], lengths.data()[i]};
      if (span.sequence < 0 || span.sequence >= static_cast<std::int64_t>(pointers.size()) || span.start < 0 ||
          span.length < 0)
        throw std::out_of_range("span " + std::to_string(i) + " is outside the dataset");
      spans.push_back(span);
    }
    const WithoutLock unlocked;
    const auto read = [&] {
      gather<Token>(source, spans, static_cast<std::int64_t>(out.size()), static_cast<Token*>(out.data()));
    };
    const auto check = [&] {
      if (watch == nullptr) return;
      watch->check();
      check_parts(*watch, source, spans);
    };
    read_checked(read, check);
  });
}

// Rows of any shape; those of `rows`, or all, are filled from boundaries of the same rows.
using Int32s = nb::ndarray<std::int32_t, nb::c_contig, nb::device::cpu>;

void fill_attention(const nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>& cu_seqlens,
                    std::int64_t num_bounds, std::int64_t length, std::int64_t block, std::int64_t window,
                    const std::optional<Array<const std::int64_t>>& rows, const std::optional<Int32s>& document_ids,
                    const std::optional<GptFiller::LossMask>& loss_mask, const std::optional<Int32s>& seen_stop,
                    const std::optional<Int32s>& num_partial, const std::optional<Int32s>& partial,
                    const std::optional<Int32s>& num_full, const std::optional<Int32s>& full) {
  if (num_bounds < 2 || length < 0 || block < 1 || window < 0 || cu_seqlens.size() % static_cast<std::size_t>(num_bounds) != 0)
    throw nb::value_error("expected rows of two boundaries or more, blocks of one token or more");
  const auto num_rows = static_cast<std::int64_t>(cu_seqlens.size()) / num_bounds;
  const std::int64_t num_blocks = (length + block - 1) / block;
  const auto fits = [&](const Int32s& array, std::int64_t width) {
    return static_cast<std::int64_t>(array.size()) == num_rows * width;
  };
  bool ok = (!document_ids || fits(*document_ids, length)) && (!seen_stop || fits(*seen_stop, length)) &&
            (!loss_mask || (seen_stop && loss_mask->size() == seen_stop->size()));
  if (num_partial) {
    ok = ok && partial && num_full && full && fits(*num_partial, num_blocks) && fits(*num_full, num_blocks) &&
         fits(*partial, num_blocks * num_blocks) && fits(*full, num_blocks * num_blocks);
  }
  if (!ok) throw nb::value_error("an output has the wrong shape, or is missing");
  const std::int64_t count = rows ? static_cast<std::int64_t>(rows->size()) : num_rows;
  const WithoutLock unlocked;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows ? rows->data()[i] : i;
    if (row < 0 || row >= num_rows) throw std::out_of_range("a row is not in the batch");
    const Boundaries bounds(cu_seqlens.data() + row * num_bounds, static_cast<std::size_t>(num_bounds));
    if (!rise(bounds, length))
      throw std::invalid_argument("expected boundaries that rise from 0 to " + std::to_string(length) + " in row " +
                                  std::to_string(row));
    if (document_ids) fill_document_ids(bounds, document_ids->data() + row * length);
    std::int32_t* stops = seen_stop ? seen_stop->data() + row * length : nullptr;
    if (loss_mask) fill_seen_stops(bounds, loss_mask->data() + row * length, stops);
    if (!num_partial) continue;
    const std::int64_t at = row * num_blocks;
    fill_block_lists(bounds, block, window, stops,
                     {num_partial->data() + at, partial->data() + at * num_blocks, num_full->data() + at,
                      full->data() + at * num_blocks});
  }
}

}  // namespace

void bind_samples(nb::module_& module) {
  nb::class_<MappedSamples>(module, "MappedSamples", "Positions to tokens of a mapped file.")
      .def(nb::init<const SpanReader&, Array<const std::uint8_t>, Array<const std::int64_t>, int>(), "reader"_a,
           "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a, nb::keep_alive<1, 2>())
      .def(nb::init<const SpanReader&, const TokenSections&>(), "reader"_a, "sections"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>());
  nb::class_<GptFiller>(module, "GptFiller", "Fills batches of GPT samples.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool, bool>(),
           nb::kw_only(), "sequence_length"_a, "extra"_a, "pad_id"_a, "eod_id"_a, "reset_position_ids"_a,
           "reset_attention_mask"_a, "eod_mask_loss"_a, "inter_document_masking"_a, "folds_last_token"_a = false)
      .def("fill_one", &GptFiller::fill_one, "source"_a, "position"_a,
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none())
      .def("fill", &GptFiller::fill, "source"_a, "positions"_a.noconvert(), "rows"_a.noconvert().none(),
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
           "digests"_a.noconvert().none() = nb::none())
      .def("fill_from_text", &GptFiller::fill_from_text, "text"_a.noconvert(), "span_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "rows"_a.noconvert().none(),
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
           "digests"_a.noconvert().none() = nb::none());

  module.def("fill_attention", &fill_attention, "cu_seqlens"_a.noconvert(), "num_bounds"_a, "length"_a, "block"_a,
             "window"_a, "rows"_a.noconvert().none(), "document_ids"_a.noconvert().none(), "loss_mask"_a.noconvert().none(),
              "seen_stop"_a.noconvert().none(), "num_partial"_a.noconvert().none() = nb::none(),
             "partial"_a.noconvert().none() = nb::none(), "num_full"_a.noconvert().none() = nb::none(),
             "full"_a.noconvert().none() = nb::none());
  module.def("gather_spans", &gather_spans, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
             "sequences"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(), "out"_a.noconvert(),
             "watch"_a.none() = nb::none());
}

}  // namespace tokenloom
