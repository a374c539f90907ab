// GPT samples: from spans to tokens, labels, loss mask, positions and masks, one row at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "attention.hpp"
#include "clones.hpp"
#include "sample_digest.hpp"
#include "spans.hpp"

namespace tokenloom {

struct GptOptions {
  std::int64_t sequence_length = 0;
  std::int64_t extra = 0;    // 1 when a sample reads one token beyond its length for the last label
  std::int64_t pad_id = -1;  // never occurs in the data when negative
  std::int64_t eod_id = -1;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  bool inter_document_masking = false;
  // Whether the last token of a sample that is filled up ends like the extra one of a full sample: a document that
  // begins with it has no place of its own.
  bool folds_last_token = false;
};

// One row of each output; null where the output is not wanted. Integer is what tokens, labels and positions are wanted
// as, int32 or int64.
template <typename Integer>
struct GptRow {
  Integer* tokens;                // [S]
  Integer* labels;                // [S]
  float* loss_mask;               // [S]
  Integer* position_ids;          // [S]
  std::uint8_t* attention_mask;   // [S, S], 1 = masked
  std::int32_t* cu_seqlens;       // [S + 1]
  std::int32_t* max_seqlen;       // [1]
  std::uint64_t* digest;          // [2], of the tokens
};

// All rows of each output, one after the other.
template <typename Integer>
struct GptRows {
  GptRow<Integer> first;
  std::int64_t sequence_length;
  AttentionRows attention{};

  GptRow<Integer> operator[](std::int64_t index) const {
    const std::int64_t at = index * sequence_length;
    return {first.tokens + at,
            first.labels + at,
            first.loss_mask + at,
            first.position_ids + at,
            first.attention_mask == nullptr ? nullptr : first.attention_mask + at * sequence_length,
            first.cu_seqlens == nullptr ? nullptr : first.cu_seqlens + at + index,
            first.max_seqlen == nullptr ? nullptr : first.max_seqlen + index,
            first.digest == nullptr ? nullptr : first.digest + 2 * index};
  }
};

namespace detail {

// Row i sees from where its run begins up to itself. Each byte is written once: the mask is bound by memory.
inline void fill_attention_mask(const std::vector<std::int64_t>& run_starts, std::int64_t length, std::uint8_t* mask) {
  std::size_t run = 0;
  for (std::int64_t row = 0; row < length; ++row) {
    while (run + 1 < run_starts.size() && run_starts[run + 1] <= row) ++run;
    std::uint8_t* out = mask + row * length;
    std::memset(out, 1, static_cast<std::size_t>(run_starts[run]));
    std::memset(out + run_starts[run], 0, static_cast<std::size_t>(row - run_starts[run] + 1));
    std::memset(out + row + 1, 1, static_cast<std::size_t>(length - row - 1));
  }
}

// The three loops that write nearly all bytes of a sample.
template <typename Token, typename Integer>
TOKENLOOM_CLONES void widen(const Token* text, std::int64_t count, Integer* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Integer>(text[i]);
}

template <typename Integer>
TOKENLOOM_CLONES void count_up(std::int64_t count, Integer* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Integer>(i);
}

TOKENLOOM_CLONES inline void fill_loss(std::int64_t count, float value, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = value;
}

template <typename Integer>
void fill_positions(const std::vector<std::int64_t>& run_starts, std::int64_t length, Integer* positions) {
  for (std::size_t run = 0; run < run_starts.size(); ++run) {
    const std::int64_t start = run_starts[run];
    const std::int64_t stop = run + 1 < run_starts.size() ? run_starts[run + 1] : length;
    count_up(stop - start, positions + start);
  }
}

template <typename Token>
bool representable(std::int64_t value) {
  return value >= static_cast<std::int64_t>(std::numeric_limits<Token>::min()) &&
         value <= static_cast<std::int64_t>(std::numeric_limits<Token>::max());
}

// Tokens of 64 bits may not fit into a narrower output; all other tokens fit into every output.
template <typename Integer, typename Token>
void check_fits(const Token* text, std::int64_t count) {
  if constexpr (sizeof(Token) > sizeof(Integer)) {
    Token lowest = 0, highest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      lowest = std::min(lowest, text[i]);
      highest = std::max(highest, text[i]);
    }
    const Token found = lowest < std::numeric_limits<Integer>::min() ? lowest : highest;
    if (found < std::numeric_limits<Integer>::min() || found > std::numeric_limits<Integer>::max())
      throw std::overflow_error("token " + std::to_string(found) + " does not fit into " +
                                std::to_string(8 * sizeof(Integer)) + " bits");
  }
}

}  // namespace detail

// Documents that are not read any more: their spans are padding without loss, which nothing attends to from outside.
class DeniedTokens {
 public:
  static bool among(std::span<const Span> spans) {
    return std::any_of(spans.begin(), spans.end(), [](const Span& span) { return span.sequence < 0; });
  }

  explicit DeniedTokens(std::span<const Span> spans) {
    for (const Span& span : spans) {
      is_denied_.insert(is_denied_.end(), static_cast<std::size_t>(span.length), span.sequence < 0);
      if (span.sequence < 0 && span.length > 0) {
        bounds_.push_back(static_cast<std::int64_t>(is_denied_.size()) - span.length);
        bounds_.push_back(static_cast<std::int64_t>(is_denied_.size()));
      }
    }
  }

  bool operator[](std::int64_t index) const { return is_denied_[static_cast<std::size_t>(index)]; }
  // Where a denied span begins or ends; rising.
  const std::vector<std::int64_t>& bounds() const { return bounds_; }

 private:
  std::vector<bool> is_denied_;
  std::vector<std::int64_t> bounds_;
};

// What all samples have, which have no denied tokens.
struct NoneDenied {
  bool operator[](std::int64_t) const { return false; }
};

// Finishes one sample from its text. `text` holds the `filled` real tokens of sequence_length + extra; what is
// missing counts as padding. `spans` are the document spans of the text (used by inter-document masking only).
template <typename Token, typename Integer, typename Denied>
void finish_row(const Token* text, std::int64_t filled, std::span<const Span> spans, const GptOptions& options,
                const Denied& denied, std::vector<std::int64_t>& run_starts, const GptRow<Integer>& row) {
  const std::int64_t length = options.sequence_length;
  const std::int64_t num_tokens = std::min(filled, length);
  const std::int64_t num_labels = std::max<std::int64_t>(std::min(filled - 1, length), 0);

  detail::check_fits<Integer>(text, filled);
  // Tokens that stay as they are get their digest while they are copied.
  const bool has_pads = detail::representable<Token>(options.pad_id);
  const bool is_copied = std::is_same_v<Denied, NoneDenied> && num_tokens == length && !has_pads;
  SampleDigest digest;
  if (row.digest != nullptr && is_copied) {
    digest = digest_and_copy(text, num_tokens, row.tokens);
  } else {
    detail::widen(text, num_tokens, row.tokens);
  }
  detail::widen(text + 1, num_labels, row.labels);
  std::fill(row.tokens + num_tokens, row.tokens + length, 0);
  std::fill(row.labels + num_labels, row.labels + length, 0);
  detail::fill_loss(num_labels, 1.0F, row.loss_mask);
  std::fill(row.loss_mask + num_labels, row.loss_mask + length, 0.0F);

  const bool tail_is_eod = options.eod_id == options.pad_id;
  run_starts.assign(1, 0);
  const bool reset = options.reset_position_ids || options.reset_attention_mask;
  if (detail::representable<Token>(options.eod_id) && (options.eod_mask_loss || reset)) {
    const Token eod = static_cast<Token>(options.eod_id);
    if (options.eod_mask_loss)
      for (std::int64_t i = 0; i < num_labels; ++i)
        if (text[i] == eod && !denied[i]) row.loss_mask[i] = 0.0F;
    if (reset)
      for (std::int64_t i = 0; i < std::min(num_tokens, length - 1); ++i)
        if (text[i] == eod && !denied[i]) run_starts.push_back(i + 1);
  }
  if (tail_is_eod && reset)
    for (std::int64_t i = num_tokens; i < length - 1; ++i) run_starts.push_back(i + 1);
  if constexpr (!std::is_same_v<Denied, NoneDenied>) {
    for (std::int64_t i = 0; i < num_tokens; ++i)
      if (denied[i]) row.tokens[i] = 0;
    for (std::int64_t i = 0; i < num_labels; ++i) {
      if (denied[i + 1]) row.labels[i] = 0;
      if (denied[i] || denied[i + 1]) row.loss_mask[i] = 0.0F;
    }
    if (reset) {
      for (const std::int64_t bound : denied.bounds())
        if (bound < length) run_starts.push_back(bound);
      std::sort(run_starts.begin(), run_starts.end());
      run_starts.erase(std::unique(run_starts.begin(), run_starts.end()), run_starts.end());
    }
  }

  if (has_pads) {
    const std::int64_t pad = options.pad_id;
    for (std::int64_t i = 0; i < num_tokens; ++i)
      row.tokens[i] = row.tokens[i] == pad ? 0 : row.tokens[i];
    for (std::int64_t i = 0; i < num_labels; ++i) {
      const bool is_pad = row.labels[i] == pad;
      row.labels[i] = is_pad ? 0 : row.labels[i];
      row.loss_mask[i] = is_pad ? 0.0F : row.loss_mask[i];
    }
  }
  if (row.digest != nullptr) {
    if (!is_copied) digest = digest_tokens(row.tokens, length);
    row.digest[0] = digest.low;
    row.digest[1] = digest.high;
  }

  if (options.inter_document_masking) {
    // The extra token leaves the last span; padding joins it: whatever the last span's own end, it stops at S.
    run_starts.assign(1, 0);
    const bool folds = options.folds_last_token && options.extra == 1 && !spans.empty() && spans.back().length == 1;
    const std::size_t num_documents = spans.size() - static_cast<std::size_t>(folds);
    std::int64_t stop = 0;
    for (std::size_t i = 0; i + 1 < num_documents; ++i) {
      stop += spans[i].length;
      if (stop < length) run_starts.push_back(stop);
    }
    // Empty documents are boundaries too, as in the reference, unless there are more of them than the row has room for.
    if (static_cast<std::int64_t>(run_starts.size()) > length)
      run_starts.erase(std::unique(run_starts.begin(), run_starts.end()), run_starts.end());
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < run_starts.size(); ++i) {
      row.cu_seqlens[i] = static_cast<std::int32_t>(run_starts[i]);
      const std::int64_t end = i + 1 < run_starts.size() ? run_starts[i + 1] : length;
      longest = std::max(longest, end - run_starts[i]);
    }
    std::fill(row.cu_seqlens + run_starts.size(), row.cu_seqlens + length + 1, static_cast<std::int32_t>(length));
    *row.max_seqlen = static_cast<std::int32_t>(longest);
  }
  if (row.attention_mask != nullptr) {
    if (options.reset_attention_mask) {
      detail::fill_attention_mask(run_starts, length, row.attention_mask);
    } else {
      detail::fill_attention_mask({0}, length, row.attention_mask);
    }
  }
  if (options.reset_position_ids || options.inter_document_masking) {
    detail::fill_positions(run_starts, length, row.position_ids);
  } else {
    detail::fill_positions({0}, length, row.position_ids);
  }
}

template <typename Token, typename Integer>
void finish_gpt_row(const Token* text, std::int64_t filled, std::span<const Span> spans, const GptOptions& options,
                    std::vector<std::int64_t>& run_starts, const GptRows<Integer>& out, std::int64_t index) {
  const GptRow<Integer> row = out[index];
  if (DeniedTokens::among(spans)) [[unlikely]] {
    finish_row(text, filled, spans, options, DeniedTokens(spans), run_starts, row);
  } else {
    finish_row(text, filled, spans, options, NoneDenied(), run_starts, row);
  }
  if (row.cu_seqlens != nullptr)
    out.attention.fill(index, {row.cu_seqlens, static_cast<std::size_t>(options.sequence_length) + 1});
}

// The bytes of a .bin file that is mapped into memory, and where each sequence starts in it; or of a column beside it.
struct MappedTokens {
  const std::uint8_t* bytes = nullptr;
  std::int64_t num_bytes = 0;
  UnalignedArray<std::int64_t> pointers;  // of each sequence, in units of 2 to the `unit_bits` bytes
  std::int64_t itemsize = 0;
  int unit_bits = 0;
  std::int64_t scale = 1;  // bytes of such a unit here

  const std::uint8_t* at(const Span& span) const {
    const std::int64_t units = pointers[static_cast<std::size_t>(span.sequence)] >> unit_bits;
    const auto pointer = static_cast<std::int64_t>(static_cast<std::uint64_t>(units) * static_cast<std::uint64_t>(scale));
    // What is mapped has less than 2 to the 47 bytes, and an item less than 2 to the 16: nothing overflows.
    if (pointer < 0 || pointer > num_bytes || span.start > num_bytes || span.length > num_bytes ||
        (span.start + span.length) * itemsize > num_bytes - pointer)
      throw std::out_of_range("tokens [" + std::to_string(span.start) + ", +" + std::to_string(span.length) +
                              ") of sequence " + std::to_string(span.sequence) + ", which starts at byte " +
                              std::to_string(pointer) + ", leave the file of " + std::to_string(num_bytes) + " bytes");
    return bytes + pointer + span.start * itemsize;
  }
};

// Copies the spans' tokens, back to back, into `text` (at most `capacity` tokens); returns how many. Of a denied document
// (`Span::sequence`) none is read.
template <typename Token, typename Tokens>
std::int64_t gather(Tokens& source, std::span<const Span> spans, std::int64_t capacity, Token* text) {
  std::int64_t filled = 0;
  for (const Span& span : spans) {
    if (span.length > capacity - filled)
      throw std::out_of_range("a sample's spans hold more than " + std::to_string(capacity) + " tokens");
    const std::size_t num_bytes = static_cast<std::size_t>(span.length) * sizeof(Token);
    if (span.sequence < 0) {
      std::memset(text + filled, 0, num_bytes);
    } else {
      std::memcpy(text + filled, source.at(span), num_bytes);
    }
    filled += span.length;
  }
  return filled;
}

// A column of samples: what lies beside the tokens, `width` bytes for each, or beside those that labels are.
struct ColumnOut {
  std::uint8_t* rows = nullptr;  // [num_rows, length, width]
  std::int64_t length = 0;
  std::int64_t width = 0;
  std::int64_t shift = 0;  // 1 beside labels
  const std::uint8_t* padding = nullptr;  // [width]

  // Fills a row from where spans lie; those of denied documents, and what is behind them, are padding.
  template <typename Source>
  void fill(std::int64_t row, std::span<const Span> spans, Source& source) const {
    std::uint8_t* out = rows + row * length * width;
    std::int64_t place = -shift;
    for (const Span& span : spans) {
      const std::int64_t from = std::max<std::int64_t>(0, -place);
      const std::int64_t to = std::min(span.length, length - place);
      if (from < to && span.sequence < 0) pad(out, place + from, place + to);
      if (from < to && span.sequence >= 0) {
        if (const std::uint8_t* row = source.row_of(span)) {
          repeat(row, out, place + from, place + to);
        } else {
          std::memcpy(out + (place + from) * width, source.at(span) + from * width,
                      static_cast<std::size_t>((to - from) * width));
        }
      }
      place += span.length;
    }
    pad(out, std::max<std::int64_t>(place, 0), length);
  }

  void pad(std::uint8_t* out, std::int64_t from, std::int64_t to) const { repeat(padding, out, from, to); }

  // Each copy is as long as what is there already: a sample of 8,192 takes 13 of them.
  void repeat(const std::uint8_t* row, std::uint8_t* out, std::int64_t from, std::int64_t to) const {
    if (from >= to) return;
    std::uint8_t* begin = out + from * width;
    const std::int64_t num_bytes = (to - from) * width;
    std::memcpy(begin, row, static_cast<std::size_t>(width));
    for (std::int64_t done = width; done < num_bytes; done *= 2)
      std::memcpy(begin + done, begin, static_cast<std::size_t>(std::min(done, num_bytes - done)));
  }
};

// Fills the rows of samples straight from mapped bytes: sample i of `positions` into row `rows[i]`, or i if there are no
// `rows`. Asking for the bytes of later samples ahead was measured to change nothing: it is bandwidth that they wait for.
template <typename Token, typename Integer, typename Tokens, typename Columns>
void fill_gpt_rows(const SpanSource& reader, Tokens& source, std::span<const std::int64_t> positions,
                   std::span<const std::int64_t> rows, const GptOptions& options, const GptRows<Integer>& out,
                   Columns& columns) {
  const std::int64_t capacity = options.sequence_length + options.extra;
  const std::unique_ptr<Token[]> text(new Token[static_cast<std::size_t>(capacity)]);
  std::vector<Span> spans;
  std::vector<std::int64_t> run_starts;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    spans.clear();
    reader.append_spans(positions[i], options.inter_document_masking, spans);
    const std::int64_t row = rows.empty() ? static_cast<std::int64_t>(i) : rows[i];
    for (auto& column : columns) column.fill(row, spans);
    if (spans.size() == 1 && spans[0].length <= capacity && spans[0].sequence >= 0) {
      // Most samples of long documents are one run of bytes: no copy before the widening one.
      const std::uint8_t* begin = source.at(spans[0]);
      if (reinterpret_cast<std::uintptr_t>(begin) % alignof(Token) == 0) {
        finish_gpt_row(reinterpret_cast<const Token*>(begin), spans[0].length, std::span<const Span>(spans), options,
                       run_starts, out, row);
        continue;
      }
    }
    const std::int64_t filled = gather<Token>(source, spans, capacity, text.get());
    finish_gpt_row<Token>(text.get(), filled, spans, options, run_starts, out, row);
  }
}

}  // namespace tokenloom
