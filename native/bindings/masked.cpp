// Sentences to samples, and masked samples.
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../masked.hpp"
#include "../sentences.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

template <typename Value, std::size_t kColumns>
nb::object to_matrix(RowBuffer<Value, kColumns>& rows) {
  const std::size_t count = rows.size();
  Value* data = rows.release();
  nb::capsule owner(data, [](void* pointer) noexcept { std::free(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, Value, nb::ndim<2>>(data, {count, kColumns}, owner));
}

// Numbers of sentences and of documents must fit the values of the rows.
template <typename Value>
void check_counts(const Sentences& sentences) {
  const std::size_t largest = std::max(sentences.lengths.size(), sentences.num_documents());
  if (largest > std::numeric_limits<Value>::max())
    throw std::overflow_error(std::to_string(largest) + " sentences or documents do not fit the mapping's dtype");
}

template <typename Value, std::size_t kColumns, typename Build>
nb::object build_rows(const Sentences& sentences, Build&& build) {
  check_counts<Value>(sentences);
  RowBuffer<Value, kColumns> rows;
  {
    const WithoutLock unlocked;
    build(rows);
  }
  return to_matrix(rows);
}

void check_options(const MappingOptions& options) {
  if (options.max_length < (options.short_probability > 0 ? 2 : 1))
    throw nb::value_error("max_length must be at least 1, and 2 for short samples");
  if (!(options.short_probability >= 0 && options.short_probability <= 1))
    throw nb::value_error("short_probability must be in [0, 1]");
}

nb::object mapping(const Array<const std::int32_t>& lengths, const Array<const std::int64_t>& boundaries,
                   std::int64_t num_epochs, std::uint64_t max_num_samples, std::int64_t max_length,
                   double short_probability, std::uint32_t seed, std::int64_t min_sentences, bool wide) {
  const Sentences sentences{as_unaligned(lengths), as_unaligned(boundaries)};
  const MappingOptions options{num_epochs, max_num_samples, max_length, short_probability, seed, min_sentences};
  check_options(options);
  const auto build = [&](auto& rows) { build_mapping(sentences, options, rows); };
  return wide ? build_rows<std::uint64_t, 3>(sentences, build) : build_rows<std::uint32_t, 3>(sentences, build);
}

nb::object blocks_mapping(const Array<const std::int32_t>& lengths, const Array<const std::int64_t>& boundaries,
                          const Array<const std::int32_t>& title_lengths, std::int64_t num_epochs,
                          std::uint64_t max_num_samples, std::int64_t max_length, std::uint32_t seed,
                          std::int64_t min_sentences, bool wide) {
  const Sentences sentences{as_unaligned(lengths), as_unaligned(boundaries)};
  if (title_lengths.size() < sentences.num_documents())
    throw nb::value_error("title_lengths must be as many as documents");
  const MappingOptions options{num_epochs, max_num_samples, max_length, 0.0, seed, min_sentences};
  check_options(options);
  const auto build = [&](auto& rows) {
    build_blocks_mapping(sentences, as_unaligned(title_lengths), options, rows);
  };
  return wide ? build_rows<std::uint64_t, 4>(sentences, build) : build_rows<std::uint32_t, 4>(sentences, build);
}

Masker make_masker(const Array<const std::uint8_t>& pieces, std::int64_t cls_id, std::int64_t sep_id,
                   double masking_probability, std::vector<double> ngram_cdf, double geometric_probability,
                   bool whole_words, bool permute) {
  MaskingOptions options{{},
                         cls_id,
                         sep_id,
                         masking_probability,
                         std::move(ngram_cdf),
                         geometric_probability,
                         whole_words,
                         permute};
  for (const std::uint8_t piece : as_span<const std::uint8_t>(pieces)) {
    if (piece > static_cast<std::uint8_t>(Piece::kContinuation)) throw nb::value_error("pieces must be 0, 1 or 2");
    options.pieces.push_back(static_cast<Piece>(piece));
  }
  return Masker(std::move(options));
}

// The samples of a batch before masking: sample i owns sentences [row_offsets[i], row_offsets[i + 1]).
struct Batch {
  Array<const std::int64_t> tokens;            // of all sentences, back to back
  Array<const std::int64_t> sentence_lengths;
  Array<const std::int64_t> row_offsets;
  Array<const std::int64_t> targets;           // [rows]
  Array<const std::uint32_t> seeds;            // [rows]
};

// Calls `fill(row, sample, generator)` for every sample, without the GIL.
template <typename Fill>
void for_each_sample(const Batch& batch, Fill&& fill) {
  const std::size_t count = batch.targets.size();
  if (batch.row_offsets.size() != count + 1 || batch.seeds.size() != count)
    throw nb::value_error("expected row_offsets [rows + 1], and targets and seeds [rows]");
  const auto tokens = as_span<const std::int64_t>(batch.tokens);
  const auto lengths = as_span<const std::int64_t>(batch.sentence_lengths);
  const WithoutLock unlocked;
  std::size_t done = 0;
  for (std::size_t row = 0; row < count; ++row) {
    const std::int64_t begin = batch.row_offsets.data()[row];
    const std::int64_t end = batch.row_offsets.data()[row + 1];
    if (begin < 0 || end < begin || end > static_cast<std::int64_t>(lengths.size()))
      throw std::invalid_argument("row_offsets do not fit sentence_lengths");
    const auto own = lengths.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    std::size_t num_tokens = 0;
    for (const std::int64_t length : own) {
      if (length < 0 || static_cast<std::size_t>(length) > tokens.size() - done - num_tokens)
        throw std::invalid_argument("sentence_lengths do not fit tokens");
      num_tokens += static_cast<std::size_t>(length);
    }
    Mt19937 generator(batch.seeds.data()[row]);
    fill(row, SentenceText{tokens.subspan(done, num_tokens), own, batch.targets.data()[row]}, generator);
    done += num_tokens;
  }
}

using Column = Array<std::int64_t>;
using Rows = Matrix<std::int64_t>;

void check_shape(const Rows& matrix, std::size_t rows, std::int64_t width) {
  if (matrix.shape(0) != rows || static_cast<std::int64_t>(matrix.shape(1)) != width)
    throw nb::value_error("an output has the wrong shape");
}

void check_shape(const Column& column, std::size_t rows) {
  if (column.size() != rows) throw nb::value_error("an output has the wrong shape");
}

class BertFiller {
 public:
  BertFiller(Masker masker, std::int64_t sequence_length, std::int64_t pad_id, std::int64_t cls_id,
             std::int64_t sep_id, std::int64_t mask_id, bool classification_head,
             const Array<const std::int64_t>& replacements)
      : masker_(std::move(masker)),
        options_{sequence_length, pad_id, cls_id, sep_id, mask_id, classification_head,
                 {replacements.data(), replacements.data() + replacements.size()}} {
    if (options_.replacements.empty()) throw nb::value_error("replacements must not be empty");
  }

  void fill(const Array<const std::int64_t>& tokens, const Array<const std::int64_t>& sentence_lengths,
            const Array<const std::int64_t>& row_offsets, const Array<const std::int64_t>& targets,
            const Array<const std::uint32_t>& seeds, const Rows& text, const Rows& types, const Rows& labels,
            const Column& is_random, const Rows& padding_mask, const Rows& loss_mask, const Column& truncated) const {
    const std::size_t count = targets.size();
    const std::int64_t length = options_.sequence_length;
    for (const Rows* matrix : {&text, &types, &labels, &padding_mask, &loss_mask}) check_shape(*matrix, count, length);
    for (const Column* column : {&is_random, &truncated}) check_shape(*column, count);
    MaskingScratch scratch;
    for_each_sample({tokens, sentence_lengths, row_offsets, targets, seeds},
                    [&](std::size_t row, const SentenceText& sample, Mt19937& generator) {
                      const std::size_t at = row * static_cast<std::size_t>(length);
                      const BertRow out{text.data() + at,         types.data() + at,     labels.data() + at,
                                        is_random.data() + row,   padding_mask.data() + at,
                                        loss_mask.data() + at,    truncated.data() + row};
                      fill_bert_row(sample, masker_, options_, generator, scratch, out);
                    });
  }

 private:
  Masker masker_;
  BertOptions options_;
};

class T5Filler {
 public:
  T5Filler(Masker masker, std::int64_t encoder_length, std::int64_t decoder_length, std::int64_t pad_id,
           std::int64_t bos_id, std::int64_t eos_id, std::vector<std::int64_t> sentinels)
      : masker_(std::move(masker)),
        options_{encoder_length, decoder_length, pad_id, bos_id, eos_id, std::move(sentinels)} {}

  void fill(const Array<const std::int64_t>& tokens, const Array<const std::int64_t>& sentence_lengths,
            const Array<const std::int64_t>& row_offsets, const Array<const std::int64_t>& targets,
            const Array<const std::uint32_t>& seeds, const Rows& text_enc, const Rows& text_dec, const Rows& labels,
            const Rows& loss_mask, const Column& truncated, const Rows& enc_mask, const Rows& dec_mask) const {
    const std::size_t count = targets.size();
    for (const Rows* matrix : {&text_enc, &enc_mask}) check_shape(*matrix, count, options_.encoder_length);
    for (const Rows* matrix : {&text_dec, &labels, &loss_mask, &dec_mask})
      check_shape(*matrix, count, options_.decoder_length);
    check_shape(truncated, count);
    MaskingScratch scratch;
    for_each_sample({tokens, sentence_lengths, row_offsets, targets, seeds},
                    [&](std::size_t row, const SentenceText& sample, Mt19937& generator) {
                      const std::size_t enc = row * static_cast<std::size_t>(options_.encoder_length);
                      const std::size_t dec = row * static_cast<std::size_t>(options_.decoder_length);
                      const T5Row out{text_enc.data() + enc,  text_dec.data() + dec, labels.data() + dec,
                                      loss_mask.data() + dec, truncated.data() + row, enc_mask.data() + enc,
                                      dec_mask.data() + dec};
                      fill_t5_row(sample, masker_, options_, generator, scratch, out);
                    });
  }

 private:
  Masker masker_;
  T5Options options_;
};

}  // namespace

void bind_masked(nb::module_& module) {
  module.def("build_mapping", &mapping, "lengths"_a.noconvert(), "boundaries"_a.noconvert(), "num_epochs"_a,
             "max_num_samples"_a, "max_length"_a, "short_probability"_a, "seed"_a, "min_sentences"_a, "wide"_a);
  module.def("build_blocks_mapping", &blocks_mapping, "lengths"_a.noconvert(), "boundaries"_a.noconvert(),
             "title_lengths"_a.noconvert(), "num_epochs"_a, "max_num_samples"_a, "max_length"_a, "seed"_a,
             "min_sentences"_a, "wide"_a);

  nb::class_<Masker>(module, "Masker", "Chooses the n-grams of words that are masked.");
  module.def("make_masker", &make_masker, nb::kw_only(), "pieces"_a.noconvert(), "cls_id"_a, "sep_id"_a,
             "masking_probability"_a, "ngram_cdf"_a, "geometric_probability"_a, "whole_words"_a, "permute"_a);

  nb::class_<BertFiller>(module, "BertFiller", "Fills batches of BERT samples.")
      .def(nb::init<Masker, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool,
                    const Array<const std::int64_t>&>(),
           "masker"_a, nb::kw_only(), "sequence_length"_a, "pad_id"_a, "cls_id"_a, "sep_id"_a, "mask_id"_a,
           "classification_head"_a, "replacements"_a.noconvert())
      .def("fill", &BertFiller::fill, "tokens"_a.noconvert(), "sentence_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "targets"_a.noconvert(), "seeds"_a.noconvert(), nb::kw_only(),
           "text"_a.noconvert(), "types"_a.noconvert(), "labels"_a.noconvert(), "is_random"_a.noconvert(),
           "padding_mask"_a.noconvert(), "loss_mask"_a.noconvert(), "truncated"_a.noconvert());

  nb::class_<T5Filler>(module, "T5Filler", "Fills batches of T5 samples.")
      .def(nb::init<Masker, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                    std::vector<std::int64_t>>(),
           "masker"_a, nb::kw_only(), "encoder_length"_a, "decoder_length"_a, "pad_id"_a, "bos_id"_a, "eos_id"_a,
           "sentinels"_a)
      .def("fill", &T5Filler::fill, "tokens"_a.noconvert(), "sentence_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "targets"_a.noconvert(), "seeds"_a.noconvert(), nb::kw_only(),
           "text_enc"_a.noconvert(), "text_dec"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(),
           "truncated"_a.noconvert(), "enc_mask"_a.noconvert(), "dec_mask"_a.noconvert());
}

}  // namespace tokenloom
