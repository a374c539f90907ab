// Samples, straight from mapped bytes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
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
  template <typename Fill, typename Check>
  void read(std::span<const std::int64_t> positions, Fill&& fill, Check&& check_more) const {
    if (sections_ == nullptr) {
      read_checked([&] { fill(reader_.source(), tokens_); }, [&] { check(positions), check_more(); });
    } else {
      TokenSections::Cursor tokens(*sections_);
      read_checked([&] { fill(reader_.source(), tokens); }, [&] { tokens.check(), check_more(); });
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

// A column of samples, which keeps what it is read from.
class SampleColumn {
 public:
  SampleColumn(const TokenSections& sections, Array<const std::uint8_t> padding, bool is_label)
      : sections_(sections), padding_(std::move(padding)), shift_(is_label ? 1 : 0) {
    if (static_cast<std::int64_t>(padding_.size()) != sections.itemsize())
      throw nb::value_error("padding must be as wide as the column");
  }

  const TokenSections& sections() const { return sections_; }

  ColumnOut out(void* rows, std::int64_t length) const {
    return {static_cast<std::uint8_t*>(rows), length, sections_.itemsize(), shift_, padding_.data()};
  }

 private:
  const TokenSections& sections_;  // kept alive by the binding
  Array<const std::uint8_t> padding_;
  std::int64_t shift_;
};

// Arrays of any dtype whose rows follow each other.
using AnyRows = nb::ndarray<nb::c_contig, nb::device::cpu>;
// Columns and the arrays that they are put into.
using ColumnArrays = std::optional<std::vector<std::pair<const SampleColumn*, AnyRows>>>;

// What one call fills a column with.
struct ColumnCursor {
  TokenSections::Cursor cursor;
  ColumnOut out;

  void fill(std::int64_t row, std::span<const Span> spans) { out.fill(row, spans, cursor); }
};

std::vector<ColumnCursor> cursors_of(const ColumnArrays& columns, std::int64_t num_rows, std::int64_t length) {
  std::vector<ColumnCursor> found;
  if (!columns) return found;
  for (const auto& [column, array] : *columns) {
    if (static_cast<std::int64_t>(array.nbytes()) != num_rows * length * column->sections().itemsize())
      throw nb::value_error("a column has the wrong shape");
    found.push_back({TokenSections::Cursor(column->sections()), column->out(array.data(), length)});
  }
  return found;
}

// Arrays of any shape whose rows follow each other.
using Int32s = nb::ndarray<std::int32_t, nb::c_contig, nb::device::cpu>;
// Of each row how many blocks see something, which, how many see all, and which.
using BlockArrays = std::optional<std::tuple<Int32s, Int32s, Int32s, Int32s>>;

// Puts arrays into `out`; false if they do not have as many rows.
bool set_attention(AttentionRows& out, std::int64_t num_rows, const std::optional<Int32s>& document_ids,
                   const BlockArrays& blocks) {
  const auto fits = [&](const Int32s& array, std::int64_t width) {
    return static_cast<std::int64_t>(array.size()) == num_rows * width;
  };
  if (document_ids) out.document_ids = document_ids->data();
  if (!blocks) return !document_ids || fits(*document_ids, out.length);
  const auto& [num_partial, partial, num_full, full] = *blocks;
  out.blocks = {num_partial.data(), partial.data(), num_full.data(), full.data()};
  const std::int64_t count = out.num_blocks();
  return (!document_ids || fits(*document_ids, out.length)) && fits(num_partial, count) && fits(num_full, count) &&
         fits(partial, count * count) && fits(full, count * count);
}

class GptFiller {
 public:
  GptFiller(std::int64_t sequence_length, std::int64_t extra, std::int64_t pad_id, std::int64_t eod_id,
            bool reset_position_ids, bool reset_attention_mask, bool eod_mask_loss, bool inter_document_masking,
            bool folds_last_token, std::int64_t attention_block, std::int64_t attention_window)
      : attention_block_(attention_block),
        attention_window_(attention_window),
        options_{sequence_length,      extra,         pad_id,                 eod_id,          reset_position_ids,
                 reset_attention_mask, eod_mask_loss, inter_document_masking, folds_last_token} {
    if (sequence_length < 1 || sequence_length > std::numeric_limits<std::int32_t>::max())
      throw nb::value_error("sequence_length must be in [1, 2147483647]");
    if (extra != 0 && extra != 1) throw nb::value_error("extra must be 0 or 1");
    if (attention_block < 1 || attention_window < 0) throw nb::value_error("expected blocks of one token or more");
  }

  // Arrays of any shape whose rows follow each other, [rows, S] or [S]; which integers they hold is seen when called.
  using Integers = nb::ndarray<nb::c_contig, nb::device::cpu>;
  using LossMask = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
  using AttentionMask = std::optional<nb::ndarray<bool, nb::c_contig, nb::device::cpu>>;
  using Boundaries = std::optional<Int32s>;
  using Digests = std::optional<Matrix<std::uint64_t>>;

  // One sample into arrays of one row.
  void fill_one(const MappedSamples& source, std::int64_t position, const Integers& tokens, const Integers& labels,
                const LossMask& loss_mask, const Integers& position_ids, const AttentionMask& attention_mask,
                const Boundaries& cu_seqlens, const Boundaries& max_seqlen, const Boundaries& document_ids,
                const BlockArrays& blocks) const {
    const Digests none;
    const ColumnArrays no_columns;
    const Outputs outputs{tokens,     labels,       loss_mask, position_ids, attention_mask, cu_seqlens,
                          max_seqlen, document_ids, blocks,    none,         no_columns};
    fill_rows(source, {&position, 1}, {}, outputs);
  }

  // Samples into rows of a batch, straight from the mapped file: in their order, or each into its own of `rows`.
  void fill(const MappedSamples& source, const Array<const std::int64_t>& positions,
            const std::optional<Array<const std::int64_t>>& rows, const Integers& tokens, const Integers& labels,
            const LossMask& loss_mask, const Integers& position_ids, const AttentionMask& attention_mask,
            const Boundaries& cu_seqlens, const Boundaries& max_seqlen, const Boundaries& document_ids,
            const BlockArrays& blocks, const Digests& digests, const ColumnArrays& columns) const {
    const Outputs outputs{tokens,     labels,       loss_mask, position_ids, attention_mask, cu_seqlens,
                          max_seqlen, document_ids, blocks,    digests,      columns};
    fill_rows(source, as_span<const std::int64_t>(positions),
              rows ? as_span<const std::int64_t>(*rows) : std::span<const std::int64_t>(), outputs);
  }

  // The same from tokens that were read elsewhere: text[i, : filled] of each row are real, spans are its documents.
  void fill_from_text(const Matrix<const std::int64_t>& text, const Array<const std::int64_t>& span_lengths,
                      const Array<const std::int64_t>& row_offsets,
                      const std::optional<Array<const std::int64_t>>& rows, const Integers& tokens,
                      const Integers& labels, const LossMask& loss_mask, const Integers& position_ids,
                      const AttentionMask& attention_mask, const Boundaries& cu_seqlens,
                      const Boundaries& max_seqlen, const Boundaries& document_ids, const BlockArrays& blocks,
                      const Digests& digests) const {
    const ColumnArrays no_columns;
    const Outputs outputs{tokens,     labels,       loss_mask, position_ids, attention_mask, cu_seqlens,
                          max_seqlen, document_ids, blocks,    digests,      no_columns};
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
                       options_, run_starts, out, targets.empty() ? static_cast<std::int64_t>(i) : targets[i]);
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
    const Boundaries& document_ids;
    const BlockArrays& blocks;
    const Digests& digests;
    const ColumnArrays& columns;
  };

  void fill_rows(const MappedSamples& source, std::span<const std::int64_t> positions,
                 std::span<const std::int64_t> rows, const Outputs& outputs) const {
    check(outputs, positions.size(), rows);
    const std::int64_t length = options_.sequence_length;
    std::vector<ColumnCursor> columns =
        cursors_of(outputs.columns, static_cast<std::int64_t>(outputs.tokens.size()) / length, length);
    with_token_type(source.dtype_code(), [&](auto token) {
      with_integer_type(outputs, [&](auto integer) {
        const GptRows<decltype(integer)> out = rows_of<decltype(integer)>(outputs);
        const WithoutLock unlocked;
        source.read(
            positions,
            [&](const SpanSource& spans, auto& tokens) {
              fill_gpt_rows<decltype(token)>(spans, tokens, positions, rows, options_, out, columns);
            },
            [&] { for (const ColumnCursor& column : columns) column.cursor.check(); });
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
    ok = ok && (options_.inter_document_masking || !(out.document_ids || out.blocks));
    AttentionRows attention = attention_of_none();
    ok = ok && set_attention(attention, static_cast<std::int64_t>(num_rows), out.document_ids, out.blocks);
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
    AttentionRows attention = attention_of_none();
    set_attention(attention, 0, out.document_ids, out.blocks);
    return {{static_cast<Integer*>(out.tokens.data()), static_cast<Integer*>(out.labels.data()), out.loss_mask.data(),
             static_cast<Integer*>(out.position_ids.data()),
             out.attention_mask ? reinterpret_cast<std::uint8_t*>(out.attention_mask->data()) : nullptr,
             out.cu_seqlens ? out.cu_seqlens->data() : nullptr, out.max_seqlen ? out.max_seqlen->data() : nullptr,
             out.digests ? out.digests->data() : nullptr},
            options_.sequence_length, attention};
  }

  AttentionRows attention_of_none() const {
    return {.length = options_.sequence_length, .block = attention_block_, .window = attention_window_};
  }

  std::int64_t attention_block_;
  std::int64_t attention_window_;
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

// Those of `rows`, or all rows, are filled from boundaries of the same rows.
void fill_attention(const nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>& cu_seqlens,
                    std::int64_t num_bounds, std::int64_t length, std::int64_t block, std::int64_t window,
                    const std::optional<Int32s>& document_ids, const std::optional<GptFiller::LossMask>& loss_mask,
                    const std::optional<Int32s>& seen_stop, const BlockArrays& blocks) {
  if (num_bounds < 2 || length < 0 || block < 1 || window < 0 || cu_seqlens.size() % static_cast<std::size_t>(num_bounds) != 0)
    throw nb::value_error("expected rows of two boundaries or more, blocks of one token or more");
  const auto num_rows = static_cast<std::int64_t>(cu_seqlens.size()) / num_bounds;
  AttentionRows out{.length = length, .block = block, .window = window};
  if (!set_attention(out, num_rows, document_ids, blocks) ||
      (seen_stop && static_cast<std::int64_t>(seen_stop->size()) != num_rows * length) ||
      (loss_mask && !(seen_stop && loss_mask->size() == seen_stop->size())))
    throw nb::value_error("an output has the wrong shape, or is missing");
  if (seen_stop) out.stops = seen_stop->data();
  const WithoutLock unlocked;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const Boundaries bounds(cu_seqlens.data() + row * num_bounds, static_cast<std::size_t>(num_bounds));
    if (!rise(bounds, length))
      throw std::invalid_argument("expected boundaries that rise from 0 to " + std::to_string(length) + " in row " +
                                  std::to_string(row));
    out.fill(row, bounds, loss_mask ? loss_mask->data() + row * length : nullptr);
  }
}

}  // namespace

// Fills rows of a column: row i from spans [row_offsets[i], row_offsets[i + 1]), into row i or row `rows[i]`.
void fill_column(const SampleColumn& column, const Array<const std::int64_t>& sequences,
                 const Array<const std::int64_t>& starts, const Array<const std::int64_t>& lengths,
                 const Array<const std::int64_t>& row_offsets, const std::optional<Array<const std::int64_t>>& rows,
                 std::int64_t length, const AnyRows& out) {
  const std::int64_t row_bytes = length * column.sections().itemsize();
  if (row_offsets.size() < 1 || length < 1 || sequences.size() != starts.size() || sequences.size() != lengths.size())
    throw nb::value_error("expected as many starts and lengths as sequences, and rows of a token or more");
  const std::size_t count = row_offsets.size() - 1;
  const std::int64_t num_rows = static_cast<std::int64_t>(out.nbytes()) / row_bytes;
  if (num_rows * row_bytes != static_cast<std::int64_t>(out.nbytes()) || (rows && rows->size() != count) ||
      (!rows && static_cast<std::int64_t>(count) > num_rows))
    throw nb::value_error("a column has the wrong shape");
  ColumnCursor cursor{TokenSections::Cursor(column.sections()), column.out(out.data(), length)};
  const WithoutLock unlocked;
  std::vector<Span> spans;
  const auto fill_rows = [&] {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t begin = row_offsets.data()[i];
      const std::int64_t end = row_offsets.data()[i + 1];
      const std::int64_t row = rows ? rows->data()[i] : static_cast<std::int64_t>(i);
      if (begin < 0 || end < begin || end > static_cast<std::int64_t>(sequences.size()) || row < 0 || row >= num_rows)
        throw std::out_of_range("row_offsets or rows do not fit");
      spans.clear();
      for (std::int64_t at = begin; at < end; ++at) {
        if (starts.data()[at] < 0 || lengths.data()[at] < 0) throw std::out_of_range("a span is below 0");
        spans.push_back({sequences.data()[at], starts.data()[at], lengths.data()[at]});
      }
      cursor.fill(row, spans);
    }
  };
  read_checked(fill_rows, [&] { cursor.cursor.check(); });
}

void bind_samples(nb::module_& module) {
  nb::class_<MappedSamples>(module, "MappedSamples", "Positions to tokens of a mapped file.")
      .def(nb::init<const SpanReader&, Array<const std::uint8_t>, Array<const std::int64_t>, int>(), "reader"_a,
           "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a, nb::keep_alive<1, 2>())
      .def(nb::init<const SpanReader&, const TokenSections&>(), "reader"_a, "sections"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>());
  nb::class_<SampleColumn>(module, "SampleColumn", "A column of samples.")
      .def(nb::init<const TokenSections&, Array<const std::uint8_t>, bool>(), "sections"_a, "padding"_a.noconvert(),
           "is_label"_a, nb::keep_alive<1, 2>())
      .def("fill", &fill_column, "sequences"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "rows"_a.noconvert().none(), "length"_a, "out"_a.noconvert());
  nb::class_<GptFiller>(module, "GptFiller", "Fills batches of GPT samples.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool, bool, std::int64_t,
                    std::int64_t>(),
           nb::kw_only(), "sequence_length"_a, "extra"_a, "pad_id"_a, "eod_id"_a, "reset_position_ids"_a,
           "reset_attention_mask"_a, "eod_mask_loss"_a, "inter_document_masking"_a, "folds_last_token"_a = false,
           "attention_block"_a = 128, "attention_window"_a = 0)
      .def("fill_one", &GptFiller::fill_one, "source"_a, "position"_a,
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
           "document_ids"_a.noconvert().none() = nb::none(), "blocks"_a.noconvert().none() = nb::none())
      .def("fill", &GptFiller::fill, "source"_a, "positions"_a.noconvert(), "rows"_a.noconvert().none(),
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
           "document_ids"_a.noconvert().none() = nb::none(), "blocks"_a.noconvert().none() = nb::none(),
           "digests"_a.noconvert().none() = nb::none(), "columns"_a.noconvert().none() = nb::none())
      .def("fill_from_text", &GptFiller::fill_from_text, "text"_a.noconvert(), "span_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "rows"_a.noconvert().none(),
           "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(),
           "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
           "document_ids"_a.noconvert().none() = nb::none(), "blocks"_a.noconvert().none() = nb::none(),
           "digests"_a.noconvert().none() = nb::none());

  module.def("fill_attention", &fill_attention, "cu_seqlens"_a.noconvert(), "num_bounds"_a, "length"_a, "block"_a,
             "window"_a, "document_ids"_a.noconvert().none(), "loss_mask"_a.noconvert().none(),
             "seen_stop"_a.noconvert().none(), "blocks"_a.noconvert().none());
  module.def("gather_spans", &gather_spans, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
             "sequences"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(), "out"_a.noconvert(),
             "watch"_a.none() = nb::none());
}

}  // namespace tokenloom
