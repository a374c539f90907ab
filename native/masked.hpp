// Masked word pieces: which n-grams of words of a sample are masked, and the BERT and T5 samples that follow.
//
// Every draw comes from one numpy.random.RandomState per sample, re-created here, in the reference's order. The n-grams
// that start at a word are never listed: they are runs of `MaskingScratch::positions`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shuffle.hpp"

namespace tokenloom {

// What a token id stands for in the vocabulary.
enum class Piece : std::uint8_t { kUnknown = 0, kWordStart = 1, kContinuation = 2 };

struct MaskingOptions {
  std::vector<Piece> pieces;         // by token id
  std::int64_t cls_id = -1;          // neither is ever masked; -1 where the tokenizer has none
  std::int64_t sep_id = -1;
  double masking_probability = 0.0;  // of a token
  std::vector<double> ngram_cdf;     // P(n-gram of at most i + 1 words); as long as the longest n-gram
  double geometric_probability = 0;  // draw the n-gram length from this geometric distribution instead, if above 0
  bool whole_words = false;
  bool permute = false;              // also shuffle some of the n-grams that are not masked
};

// Masked tokens, as the run [begin, end) of `MaskingScratch::positions`.
struct MaskedRun {
  std::size_t begin;
  std::size_t end;

  std::size_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

// What masking one sample needs and leaves behind; reused from sample to sample.
struct MaskingScratch {
  std::vector<std::int64_t> original;      // the tokens of the sample
  std::vector<std::int64_t> tokens;        // the same, masked
  std::vector<std::uint32_t> positions;    // of the tokens that may be masked, rising
  std::vector<std::size_t> word_starts;    // where each word begins in `positions`, and the end
  std::vector<std::int32_t> order;         // of the words
  std::vector<std::uint8_t> taken;         // whether positions[i] is masked or permuted
  std::vector<MaskedRun> runs;             // masked, in the order of the text when done
  std::vector<std::uint32_t> predicted;    // positions that carry a label: masked and permuted ones
  std::vector<std::uint32_t> permuted;
  std::vector<std::uint32_t> permutation;

  std::size_t num_words() const { return word_starts.size() - 1; }
};

class Masker {
 public:
  explicit Masker(MaskingOptions options) : options_(std::move(options)) {
    if (options_.ngram_cdf.empty()) throw std::invalid_argument("ngram_cdf must not be empty");
  }

  // Masks `scratch.original`. `replace(position, generator)` is called for every masked token, in the order of drawing.
  template <typename Replace>
  void mask(std::int64_t target_length, Mt19937& generator, MaskingScratch& scratch, Replace&& replace) const {
    find_words(scratch);
    scratch.tokens = scratch.original;
    scratch.taken.assign(scratch.positions.size(), 0);
    scratch.runs.clear();
    scratch.predicted.clear();
    scratch.order.resize(scratch.num_words());
    std::iota(scratch.order.begin(), scratch.order.end(), 0);
    legacy_shuffle(std::span<std::int32_t>(scratch.order), generator);

    const double budget = num_maskings(target_length, scratch.original.size());
    choose(budget, generator, scratch, [&](const MaskedRun& run) {
      for (std::size_t i = run.begin; i < run.end; ++i) replace(scratch.positions[i], generator);
      scratch.runs.push_back(run);
    });
    std::sort(scratch.runs.begin(), scratch.runs.end(),
              [](const MaskedRun& left, const MaskedRun& right) { return left.begin < right.begin; });
    for (const MaskedRun& run : scratch.runs)
      scratch.predicted.insert(scratch.predicted.end(), scratch.positions.begin() + static_cast<std::ptrdiff_t>(run.begin),
                               scratch.positions.begin() + static_cast<std::ptrdiff_t>(run.end));
    if (options_.permute) permute(budget, generator, scratch);
  }

 private:
  // Positions and words, e.g. [cls, a, ##b, sep, c] -> positions [1, 2, 4], whole words [1, 2] and [4].
  void find_words(MaskingScratch& scratch) const {
    scratch.positions.clear();
    scratch.word_starts.clear();
    for (std::size_t position = 0; position < scratch.original.size(); ++position) {
      const std::int64_t token = scratch.original[position];
      if (token >= 0 && (token == options_.cls_id || token == options_.sep_id)) continue;
      const Piece piece = token >= 0 && static_cast<std::uint64_t>(token) < options_.pieces.size()
                              ? options_.pieces[static_cast<std::size_t>(token)]
                              : Piece::kUnknown;
      if (piece == Piece::kUnknown)
        throw std::domain_error("token " + std::to_string(token) + " is not in the vocabulary of the tokenizer");
      const bool joins = piece == Piece::kContinuation && options_.whole_words && !scratch.word_starts.empty();
      if (!joins) scratch.word_starts.push_back(scratch.positions.size());
      scratch.positions.push_back(static_cast<std::uint32_t>(position));
    }
    scratch.word_starts.push_back(scratch.positions.size());
  }

  // At most this many tokens are masked; a fraction where the target is short.
  double num_maskings(std::int64_t target_length, std::size_t num_tokens) const {
    const double share = static_cast<double>(num_tokens) * options_.masking_probability;
    const double rounded = std::max(1.0, std::nearbyint(share));  // half to even
    return std::min(options_.masking_probability * static_cast<double>(target_length), rounded);
  }

  std::size_t draw_ngram(Mt19937& generator) const {
    const double uniform = generator.next_double();
    const std::size_t longest = options_.ngram_cdf.size();
    if (options_.geometric_probability > 0) {
      const double drawn = std::ceil(std::log1p(-uniform) / std::log(1.0 - options_.geometric_probability));
      return static_cast<std::size_t>(std::clamp(drawn, 1.0, static_cast<double>(longest)));
    }
    const auto above = std::upper_bound(options_.ngram_cdf.begin(), options_.ngram_cdf.end(), uniform);
    return std::min(static_cast<std::size_t>(above - options_.ngram_cdf.begin()) + 1, longest);
  }

  // Returns the longest run of at most `num_words` words that the budget allows; empty if one word is too long.
  static MaskedRun longest_run(const MaskingScratch& scratch, std::size_t word, std::size_t num_words, double budget) {
    const std::size_t begin = scratch.word_starts[word];
    for (std::size_t stop = std::min(word + num_words, scratch.num_words()); stop > word; --stop) {
      const MaskedRun run{begin, scratch.word_starts[stop]};
      if (budget >= static_cast<double>(run.size())) return run;
    }
    return {begin, begin};
  }

  // Takes n-grams in the order of the words until the budget is spent, skipping those that touch what is taken.
  template <typename Take>
  void choose(double budget, Mt19937& generator, MaskingScratch& scratch, Take&& take) const {
    std::size_t spent = 0;
    for (const std::int32_t word : scratch.order) {
      if (static_cast<double>(spent) >= budget) break;
      const std::size_t num_words = draw_ngram(generator);
      const MaskedRun run = longest_run(scratch, static_cast<std::size_t>(word), num_words,
                                        budget - static_cast<double>(spent));
      const auto begin = scratch.taken.begin() + static_cast<std::ptrdiff_t>(run.begin);
      const auto end = scratch.taken.begin() + static_cast<std::ptrdiff_t>(run.end);
      if (run.empty() || std::find(begin, end, 1) != end) continue;
      std::fill(begin, end, 1);
      spent += run.size();
      take(run);
    }
  }

  // Chooses as many further tokens and shuffles them among themselves; they are predicted like masked ones.
  void permute(double budget, Mt19937& generator, MaskingScratch& scratch) const {
    legacy_shuffle(std::span<std::int32_t>(scratch.order), generator);
    scratch.permuted.clear();
    choose(budget, generator, scratch, [&](const MaskedRun& run) {
      for (std::size_t i = run.begin; i < run.end; ++i) scratch.permuted.push_back(scratch.positions[i]);
    });
    std::sort(scratch.permuted.begin(), scratch.permuted.end());
    scratch.permutation = scratch.permuted;
    legacy_shuffle(std::span<std::uint32_t>(scratch.permutation), generator);
    for (std::size_t i = 0; i < scratch.permuted.size(); ++i)
      scratch.tokens[scratch.permuted[i]] = scratch.original[scratch.permutation[i]];
    scratch.predicted.insert(scratch.predicted.end(), scratch.permuted.begin(), scratch.permuted.end());
  }

  MaskingOptions options_;
};

// A sample before masking: its sentences back to back, and how many tokens may stay.
struct SentenceText {
  std::span<const std::int64_t> tokens;
  std::span<const std::int64_t> lengths;  // of the sentences
  std::int64_t target_length;
};

struct BertOptions {
  std::int64_t sequence_length = 0;
  std::int64_t pad_id = -1;
  std::int64_t cls_id = -1;
  std::int64_t sep_id = -1;
  std::int64_t mask_id = -1;
  bool classification_head = false;          // two segments, swapped half of the time
  std::vector<std::int64_t> replacements;    // what a token may be replaced by at random
};

// One row of each output.
struct BertRow {
  std::int64_t* text;          // [S]
  std::int64_t* types;         // [S]
  std::int64_t* labels;        // [S]
  std::int64_t* is_random;     // [1]
  std::int64_t* padding_mask;  // [S]
  std::int64_t* loss_mask;     // [S]
  std::int64_t* truncated;     // [1]
};

namespace detail {

// Tokens [begin, end) of a sample.
struct Segment {
  std::size_t begin;
  std::size_t end;

  std::size_t size() const { return end - begin; }
};

inline void drop_one(Segment& segment, Mt19937& generator) {
  if (generator.next_double() < 0.5) {
    ++segment.begin;
  } else {
    --segment.end;
  }
}

inline void check_target(std::int64_t target, std::int64_t longest) {
  if (target < 0 || target > longest)
    throw std::out_of_range("its target length is " + std::to_string(target) + " tokens, which must be at most " +
                            std::to_string(longest));
}

}  // namespace detail

inline void fill_bert_row(const SentenceText& sample, const Masker& masker, const BertOptions& options,
                          Mt19937& generator, MaskingScratch& scratch, const BertRow& row) {
  constexpr double kMaskProbability = 0.8;    // replaced by the mask token
  constexpr double kKeepProbability = 0.5;    // of the rest: kept as it is, else replaced by a random token
  constexpr std::int64_t kSpecialTokens = 3;  // cls and two sep
  detail::check_target(sample.target_length, options.sequence_length - kSpecialTokens);

  std::size_t pivot = sample.lengths.size();
  bool is_random = false;
  if (options.classification_head) {
    if (pivot < 2) throw std::out_of_range("it has " + std::to_string(pivot) + " sentences, which must be at least 2");
    pivot = 1 + generator.next_bounded(static_cast<std::uint32_t>(pivot - 2));
    is_random = generator.next_double() < 0.5;
  }
  const auto middle = static_cast<std::size_t>(
      std::accumulate(sample.lengths.begin(), sample.lengths.begin() + static_cast<std::ptrdiff_t>(pivot), std::int64_t{0}));
  detail::Segment first{0, middle};
  detail::Segment second{middle, sample.tokens.size()};
  if (is_random) std::swap(first, second);
  const bool truncated = sample.tokens.size() > static_cast<std::size_t>(sample.target_length);
  while (first.size() + second.size() > static_cast<std::size_t>(sample.target_length))
    detail::drop_one(first.size() > second.size() ? first : second, generator);

  auto& tokens = scratch.original;
  const auto append = [&](const detail::Segment& segment) {
    tokens.insert(tokens.end(), sample.tokens.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                  sample.tokens.begin() + static_cast<std::ptrdiff_t>(segment.end));
    tokens.push_back(options.sep_id);
  };
  tokens.assign(1, options.cls_id);
  append(first);
  if (second.size() > 0) append(second);
  masker.mask(sample.target_length, generator, scratch, [&](std::uint32_t position, Mt19937& random) {
    if (random.next_double() < kMaskProbability) {
      scratch.tokens[position] = options.mask_id;
    } else if (random.next_double() >= kKeepProbability) {
      const auto last = static_cast<std::uint32_t>(options.replacements.size() - 1);
      scratch.tokens[position] = options.replacements[random.next_bounded(last)];
    }
  });

  // The pad id counts wherever it stands, in the text too, and fills types and padding mask: the reference's rules.
  const std::int64_t pad = options.pad_id;
  const auto without_pad = [pad](std::int64_t value) { return value == pad ? 0 : value; };
  const auto length = static_cast<std::size_t>(options.sequence_length);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    row.text[i] = without_pad(scratch.tokens[i]);
    row.padding_mask[i] = scratch.tokens[i] == pad ? pad : 1;
    row.types[i] = i < first.size() + 2 ? 0 : 1;
  }
  std::fill(row.text + tokens.size(), row.text + length, 0);
  std::fill(row.padding_mask + tokens.size(), row.padding_mask + length, pad);
  std::fill(row.types + tokens.size(), row.types + length, pad);
  std::fill(row.labels, row.labels + length, without_pad(-1));
  std::fill(row.loss_mask, row.loss_mask + length, 0);
  for (const std::uint32_t position : scratch.predicted) {
    row.labels[position] = without_pad(tokens[position]);
    row.loss_mask[position] = 1;
  }
  *row.is_random = is_random;
  *row.truncated = truncated;
}

struct T5Options {
  std::int64_t encoder_length = 0;
  std::int64_t decoder_length = 0;
  std::int64_t pad_id = -1;
  std::int64_t bos_id = -1;
  std::int64_t eos_id = -1;
  std::vector<std::int64_t> sentinels;
};

// One row of each output.
struct T5Row {
  std::int64_t* text_enc;   // [encoder_length]
  std::int64_t* text_dec;   // [decoder_length]
  std::int64_t* labels;     // [decoder_length]
  std::int64_t* loss_mask;  // [decoder_length]
  std::int64_t* truncated;  // [1]
  std::int64_t* enc_mask;   // [encoder_length]
  std::int64_t* dec_mask;   // [decoder_length]
};

namespace detail {

// Replaces pad ids, in the text too, by 0 and marks them in `mask`.
inline void mask_pads(std::int64_t* text, std::int64_t* mask, std::int64_t length, std::int64_t pad) {
  for (std::int64_t i = 0; i < length; ++i) {
    mask[i] = text[i] != pad;
    text[i] = text[i] == pad ? 0 : text[i];
  }
}

}  // namespace detail

inline void fill_t5_row(const SentenceText& sample, const Masker& masker, const T5Options& options,
                        Mt19937& generator, MaskingScratch& scratch, const T5Row& row) {
  detail::check_target(sample.target_length, options.encoder_length);
  const std::size_t num_tokens = std::min(sample.tokens.size(), static_cast<std::size_t>(sample.target_length));
  scratch.original.assign(sample.tokens.begin(), sample.tokens.begin() + static_cast<std::ptrdiff_t>(num_tokens));
  masker.mask(sample.target_length, generator, scratch, [](std::uint32_t, Mt19937&) {});

  const std::size_t num_masked = std::accumulate(
      scratch.runs.begin(), scratch.runs.end(), std::size_t{0},
      [](std::size_t sum, const MaskedRun& run) { return sum + run.size(); });
  const std::size_t decoder_tokens = 1 + scratch.runs.size() + num_masked;
  if (scratch.runs.size() > options.sentinels.size())
    throw std::overflow_error(std::to_string(scratch.runs.size()) + " runs of words are masked, but the tokenizer has " +
                              std::to_string(options.sentinels.size()) + " sentinel tokens");
  if (decoder_tokens > static_cast<std::size_t>(options.decoder_length))
    throw std::overflow_error("the decoder needs " + std::to_string(decoder_tokens) +
                              " tokens, but sequence_length_decoder is " + std::to_string(options.decoder_length));

  std::int64_t* encoder = row.text_enc;
  std::int64_t* decoder = row.text_dec;
  std::int64_t* label = row.labels;
  *decoder++ = options.bos_id;
  std::size_t done = 0;
  for (std::size_t i = 0; i < scratch.runs.size(); ++i) {
    const MaskedRun& run = scratch.runs[i];
    // Tokens that are never masked may lie inside a run; they are lost, as in the reference.
    const std::size_t begin = scratch.positions[run.begin];
    encoder = std::copy(scratch.tokens.data() + done, scratch.tokens.data() + begin, encoder);
    done = scratch.positions[run.end - 1] + std::size_t{1};
    *encoder++ = *decoder++ = *label++ = options.sentinels[i];
    for (std::size_t j = run.begin; j < run.end; ++j)
      *decoder++ = *label++ = scratch.original[scratch.positions[j]];
  }
  encoder = std::copy(scratch.tokens.data() + done, scratch.tokens.data() + num_tokens, encoder);
  *label++ = options.eos_id;

  std::fill(encoder, row.text_enc + options.encoder_length, options.pad_id);
  std::fill(decoder, row.text_dec + options.decoder_length, options.pad_id);
  std::fill(label, row.labels + options.decoder_length, -1);
  std::replace(row.labels, row.labels + options.decoder_length, options.pad_id, std::int64_t{0});
  detail::mask_pads(row.text_enc, row.enc_mask, options.encoder_length, options.pad_id);
  detail::mask_pads(row.text_dec, row.dec_mask, options.decoder_length, options.pad_id);
  std::fill(row.loss_mask, row.loss_mask + decoder_tokens, 1);
  std::fill(row.loss_mask + decoder_tokens, row.loss_mask + options.decoder_length, 0);
  *row.truncated = sample.tokens.size() > num_tokens;
}

}  // namespace tokenloom
