// Samples, straight from mapped bytes.
#include <nanobind/stl/optional.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../gpt.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "span_reader.hpp"

namespace tokenloom {
namespace {

class GptFiller {
 public:
  GptFiller(std::int64_t sequence_length, std::int64_t extra, std::int64_t pad_id, std::int64_t eod_id,
            bool reset_position_ids, bool reset_attention_mask, bool eod_mask_loss, bool inter_document_masking)
      : options_{sequence_length,      extra,         pad_id, eod_id, reset_position_ids,
                 reset_attention_mask, eod_mask_loss, inter_document_masking} {
    if (sequence_length < 1 || sequence_length > std::numeric_limits<std::int32_t>::max())
      throw nb::value_error("sequence_length must be in [1, 2147483647]");
    if (extra != 0 && extra != 1) throw nb::value_error("extra must be 0 or 1");
  }

  using Tokens = Matrix<std::int64_t>;
  using LossMask = Matrix<float>;
  using AttentionMask = std::optional<Cube<bool>>;
  using CuSeqlens = std::optional<Matrix<std::int32_t>>;
  using MaxSeqlen = std::optional<Array<std::int32_t>>;

  // Rows of a batch, straight from the mapped file.
  void fill(const SpanReader& reader, const Array<const std::uint8_t>& bytes,
            const Array<const std::int64_t>& pointers, int dtype_code, const Array<const std::int64_t>& positions,
            const Tokens& tokens, const Tokens& labels, const LossMask& loss_mask, const Tokens& position_ids,
            const AttentionMask& attention_mask, const CuSeqlens& cu_seqlens, const MaxSeqlen& max_seqlen) const {
    const Outputs outputs{tokens, labels, loss_mask, position_ids, attention_mask, cu_seqlens, max_seqlen};
    check(outputs, positions.size());
    if (static_cast<std::int64_t>(pointers.size()) < reader.source().num_sequences())
      throw nb::value_error("pointers must be as many as sequence lengths");
    with_token_type(dtype_code, [&](auto zero) {
      using Token = decltype(zero);
      const MappedTokens source{bytes.data(), static_cast<std::int64_t>(bytes.size()),
                                as_unaligned(pointers), sizeof(Token)};
      const std::int64_t capacity = options_.sequence_length + options_.extra;
      nb::gil_scoped_release release;
      std::vector<Token> text(static_cast<std::size_t>(capacity));
      std::vector<Span> spans;
      std::vector<std::int64_t> run_starts;
      for (std::size_t i = 0; i < positions.size(); ++i) {
        spans.clear();
        reader.source().append_spans(positions.data()[i], options_.inter_document_masking, spans);
        if (spans.size() == 1 && spans[0].length <= capacity) {
          // Most samples of long documents are one run of bytes: no copy before the widening one.
          const std::uint8_t* begin = source.at(spans[0]);
          if (reinterpret_cast<std::uintptr_t>(begin) % alignof(Token) == 0) {
            finish_gpt_row(reinterpret_cast<const Token*>(begin), spans[0].length, std::span<const Span>(spans),
                           options_, run_starts, row(outputs, i));
            continue;
          }
        }
        const std::int64_t filled = gather<Token>(source, spans, capacity, text.data());
        finish_gpt_row(text.data(), filled, std::span<const Span>(spans), options_, run_starts, row(outputs, i));
      }
    });
  }

  // The same from tokens that were read elsewhere: text[i, : filled] of each row are real, spans are its documents.
  void fill_from_text(const Matrix<const std::int64_t>& text, const Array<const std::int64_t>& span_lengths,
                      const Array<const std::int64_t>& row_offsets, const Tokens& tokens, const Tokens& labels,
                      const LossMask& loss_mask, const Tokens& position_ids, const AttentionMask& attention_mask,
                      const CuSeqlens& cu_seqlens, const MaxSeqlen& max_seqlen) const {
    const Outputs outputs{tokens, labels, loss_mask, position_ids, attention_mask, cu_seqlens, max_seqlen};
    const std::size_t count = text.shape(0);
    const std::int64_t capacity = options_.sequence_length + options_.extra;
    check(outputs, count);
    if (static_cast<std::int64_t>(text.shape(1)) != capacity || row_offsets.size() != count + 1)
      throw nb::value_error("text must be [rows, sequence_length + extra] and row_offsets [rows + 1]");
    nb::gil_scoped_release release;
    std::vector<Span> spans;
    std::vector<std::int64_t> run_starts;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t begin = row_offsets.data()[i];
      const std::int64_t end = row_offsets.data()[i + 1];
      if (begin < 0 || end < begin || end > static_cast<std::int64_t>(span_lengths.size()))
        throw std::out_of_range("row_offsets do not fit span_lengths");
      spans.clear();
      std::int64_t filled = 0;
      for (std::int64_t j = begin; j < end; ++j) {
        spans.push_back({0, 0, span_lengths.data()[j]});
        filled += span_lengths.data()[j];
      }
      if (filled < 0 || filled > capacity) throw std::out_of_range("a row's spans hold more tokens than the row");
      finish_gpt_row(text.data() + static_cast<std::int64_t>(i) * capacity, filled, std::span<const Span>(spans),
                     options_, run_starts, row(outputs, i));
    }
  }

 private:
  struct Outputs {
    const Tokens& tokens;
    const Tokens& labels;
    const LossMask& loss_mask;
    const Tokens& position_ids;
    const AttentionMask& attention_mask;
    const CuSeqlens& cu_seqlens;
    const MaxSeqlen& max_seqlen;
  };

  void check(const Outputs& out, std::size_t rows) const {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    const auto fits = [&](const auto& matrix, std::size_t width) {
      return matrix.shape(0) == rows && matrix.shape(1) == width;
    };
    bool ok = fits(out.tokens, length) && fits(out.labels, length) && fits(out.loss_mask, length) &&
              fits(out.position_ids, length);
    if (out.attention_mask)
      ok = ok && fits(*out.attention_mask, length) && out.attention_mask->shape(2) == length;
    ok = ok && out.cu_seqlens.has_value() == options_.inter_document_masking &&
         out.max_seqlen.has_value() == options_.inter_document_masking;
    if (out.cu_seqlens && out.max_seqlen) ok = ok && fits(*out.cu_seqlens, length + 1) && out.max_seqlen->size() == rows;
    if (!ok) throw nb::value_error("an output has the wrong shape, or is missing");
  }

  GptRow row(const Outputs& out, std::size_t index) const {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    const std::size_t at = index * length;
    return {out.tokens.data() + at,
            out.labels.data() + at,
            out.loss_mask.data() + at,
            out.position_ids.data() + at,
            out.attention_mask ? reinterpret_cast<std::uint8_t*>(out.attention_mask->data()) + at * length : nullptr,
            out.cu_seqlens ? out.cu_seqlens->data() + index * (length + 1) : nullptr,
            out.max_seqlen ? out.max_seqlen->data() + index : nullptr};
  }

  GptOptions options_;
};

void gather_spans(const Array<const std::uint8_t>& bytes, const Array<const std::int64_t>& pointers, int dtype_code,
                  const Array<const std::int64_t>& sequences, const Array<const std::int64_t>& starts,
                  const Array<const std::int64_t>& lengths, const nb::ndarray<nb::ndim<1>, nb::c_contig>& out) {
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
    nb::gil_scoped_release release;
    gather<Token>(source, spans, static_cast<std::int64_t>(out.size()), static_cast<Token*>(out.data()));
  });
}

}  // namespace

void bind_samples(nb::module_& module) {
  nb::class_<GptFiller>(module, "GptFiller", "Fills batches of GPT samples.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool>(), nb::kw_only(),
           "sequence_length"_a, "extra"_a, "pad_id"_a, "eod_id"_a, "reset_position_ids"_a, "reset_attention_mask"_a,
           "eod_mask_loss"_a, "inter_document_masking"_a)
      .def("fill", &GptFiller::fill, "reader"_a, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
           "positions"_a.noconvert(), "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(),
           "position_ids"_a.noconvert(), "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(),
           "max_seqlen"_a.noconvert().none())
      .def("fill_from_text", &GptFiller::fill_from_text, "text"_a.noconvert(), "span_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(),
           "position_ids"_a.noconvert(), "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(),
           "max_seqlen"_a.noconvert().none());

  module.def("gather_spans", &gather_spans, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
             "sequences"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace tokenloom
