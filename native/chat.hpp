// Conversations: how many of their tokens are trained, which of them share a row, and the rows themselves.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "spans.hpp"

namespace tokenloom {

// What each token is, a byte for each: its kind, and kPartStart besides for the first token of a part. They lie where the
// tokens of a sequence do: at its pointer, of units of 2 to the `unit_bits` bytes. Without pointers, every sequence is one
// part that is no prompt.
struct Roles {
  std::span<const std::uint8_t> bytes;
  UnalignedArray<std::int64_t> pointers;
  UnalignedArray<std::int32_t> lengths;
  int unit_bits = 0;

  bool is_text() const { return pointers.size() == 0; }
};

inline constexpr std::uint8_t kPartStart = 0x80;

enum class TrainOn : int { kAnswers = 0, kLastAnswer = 1, kEverything = 2 };

inline bool is_prompt(std::uint8_t role) { return (role & ~kPartStart) == 0; }

// The first place from `from` on, or `to`, whose token is a prompt, or is none.
template <bool kPrompt>
std::int64_t find_role(const std::uint8_t* roles, std::int64_t from, std::int64_t to) {
  constexpr std::uint64_t kLow = 0x7f7f7f7f7f7f7f7fULL;
  for (; from + 8 <= to; from += 8) {
    std::uint64_t word;
    std::memcpy(&word, roles + from, 8);
    const std::uint64_t others = ((word & kLow) + kLow) & ~kLow;  // the highest bit of each byte that is no prompt
    const std::uint64_t found = kPrompt ? others ^ ~kLow : others;
    if (found != 0) return from + std::countr_zero(found) / 8;
  }
  while (from < to && is_prompt(roles[from]) != kPrompt) ++from;
  return from;
}

// The roles of a sequence, which must be there.
inline std::span<const std::uint8_t> roles_of(const Roles& roles, std::int64_t sequence) {
  if (sequence < 0 || sequence >= static_cast<std::int64_t>(roles.lengths.size()))
    throw std::out_of_range("sequence " + std::to_string(sequence) + " of " + std::to_string(roles.lengths.size()));
  const std::int64_t start = roles.pointers[static_cast<std::size_t>(sequence)] >> roles.unit_bits;
  const std::int64_t length = roles.lengths[static_cast<std::size_t>(sequence)];
  const auto size = static_cast<std::int64_t>(roles.bytes.size());
  if (start < 0 || length < 0 || start > size || length > size - start)
    throw std::out_of_range("sequence " + std::to_string(sequence) + " has roles " + std::to_string(start) + ", +" +
                            std::to_string(length) + " of " + std::to_string(size));
  return roles.bytes.subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(length));
}

// Calls `visit(start, stop)` for each trained run of tokens of a sequence, cut to its first `available` tokens. Token 0
// is never in it: nothing comes before it that could predict it.
template <typename Visit>
void for_each_trained(const Roles& roles, std::int64_t sequence, std::int64_t available, TrainOn train_on,
                      Visit&& visit) {
  if (train_on == TrainOn::kEverything || roles.is_text()) {
    if (available > 1) visit(std::int64_t{1}, available);
    return;
  }
  const std::span<const std::uint8_t> found = roles_of(roles, sequence);
  const std::uint8_t* of = found.data();
  const auto length = static_cast<std::int64_t>(found.size());
  const std::int64_t limit = std::min(length, available);
  if (train_on == TrainOn::kLastAnswer) {
    std::int64_t last = length - 1;
    while (last >= 0 && is_prompt(of[last])) --last;
    std::int64_t first = last;
    while (first > 0 && (of[first] & kPartStart) == 0) --first;
    const std::int64_t from = std::max<std::int64_t>(first, 1);
    const std::int64_t to = std::min(last + 1, limit);
    if (from < to) visit(from, to);
    return;
  }
  for (std::int64_t from = 1; (from = find_role<false>(of, from, limit)) < limit;) {
    const std::int64_t to = find_role<true>(of, from, limit);
    visit(from, to);
    from = to;
  }
}

// counts[i]: the trained tokens among the first available[i] of sequence sequences[i].
inline void count_trained(const Roles& roles, std::span<const std::int64_t> sequences,
                          std::span<const std::int64_t> available, TrainOn train_on, std::span<std::int64_t> counts) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::int64_t count = 0;
    for_each_trained(roles, sequences[i], available[i], train_on,
                     [&](std::int64_t from, std::int64_t to) { count += to - from; });
    counts[i] = count;
  }
}

// A row that items join: how full it is, below 0 if none has been begun, and how many it holds.
struct OpenRow {
  std::int64_t filled;
  std::int64_t num_items;
};

// Next fit: each item joins the current row, or begins a new one when it does not fit or the row holds `most_items`.
// Appends the items that begin rows; returns the last row.
inline OpenRow next_fit(std::span<const std::int32_t> slots, std::int64_t capacity, std::int64_t most_items,
                        OpenRow row, std::vector<std::int64_t>& starts) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t size = slots[i];
    if (size < 0 || size > capacity)
      throw std::out_of_range("item " + std::to_string(i) + " needs " + std::to_string(size) + " of " +
                              std::to_string(capacity) + " slots");
    if (row.filled < 0 || size > capacity - row.filled || row.num_items == most_items) {
      starts.push_back(static_cast<std::int64_t>(i));
      row = {0, 0};
    }
    row.filled += size;
    ++row.num_items;
  }
  return row;
}

// One conversation of a row.
struct Segment {
  std::int64_t sequence;
  std::int64_t num_inputs;  // slots with tokens
  std::int64_t available;   // tokens at hand, num_inputs or one more: the last label
  std::int64_t num_slots;   // with padding
};

// One row of each output; cu_seqlens and max_seqlen are null where they are not wanted.
struct ChatRow {
  std::int64_t* tokens;
  std::int64_t* labels;
  float* loss_mask;
  std::int64_t* position_ids;
  std::int32_t* cu_seqlens;  // [length + 1]
  std::int32_t* max_seqlen;
};

inline constexpr std::int64_t kUntrainedLabel = -100;

// Fills one row from the tokens of its segments, back to back; returns how many tokens that were. Labels never reach
// from one conversation into the next. Slots behind the last conversation count as its padding.
template <typename Token>
std::int64_t fill_chat_row(const Roles& roles, std::span<const Token> text, std::span<const Segment> segments,
                           TrainOn train_on, std::int64_t pad_id, std::int64_t length, const ChatRow& row) {
  // Without loss; every position is written once.
  const auto leave_out = [&](std::int64_t from, std::int64_t to) {
    std::fill(row.labels + from, row.labels + to, kUntrainedLabel);
    std::fill(row.loss_mask + from, row.loss_mask + to, 0.0F);
  };
  std::int64_t begin = 0;
  std::int64_t read = 0;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (segment.num_inputs < 0 || segment.num_inputs > segment.available ||
        segment.available > segment.num_inputs + 1 || segment.num_inputs > segment.num_slots ||
        segment.num_slots > length - begin || segment.available > static_cast<std::int64_t>(text.size()) - read)
      throw std::out_of_range("segment " + std::to_string(i) + " does not fit its row");
    const Token* source = text.data() + read;
    for (std::int64_t k = 0; k < segment.num_inputs; ++k) row.tokens[begin + k] = static_cast<std::int64_t>(source[k]);
    const std::int64_t end = i + 1 == segments.size() ? length : begin + segment.num_slots;
    std::fill(row.tokens + begin + segment.num_inputs, row.tokens + end, pad_id);
    std::int64_t done = begin;
    for_each_trained(roles, segment.sequence, segment.available, train_on, [&](std::int64_t from, std::int64_t to) {
      leave_out(done, begin + from - 1);
      for (std::int64_t k = from; k < to; ++k) row.labels[begin + k - 1] = static_cast<std::int64_t>(source[k]);
      std::fill(row.loss_mask + begin + from - 1, row.loss_mask + begin + to - 1, 1.0F);
      done = begin + to - 1;
    });
    leave_out(done, end);
    for (std::int64_t k = begin; k < end; ++k) row.position_ids[k] = k - begin;
    if (row.cu_seqlens != nullptr) row.cu_seqlens[i] = static_cast<std::int32_t>(begin);
    longest = std::max(longest, end - begin);
    begin = end;
    read += segment.available;
  }
  if (segments.empty()) {
    std::fill(row.tokens, row.tokens + length, pad_id);
    leave_out(0, length);
    for (std::int64_t k = 0; k < length; ++k) row.position_ids[k] = k;
  }
  if (row.cu_seqlens != nullptr) {
    if (segments.empty()) row.cu_seqlens[0] = 0;
    const std::size_t used = std::max<std::size_t>(segments.size(), 1);
    std::fill(row.cu_seqlens + used, row.cu_seqlens + length + 1, static_cast<std::int32_t>(length));
  }
  if (row.max_seqlen != nullptr) *row.max_seqlen = static_cast<std::int32_t>(segments.empty() ? length : longest);
  return read;
}

}  // namespace tokenloom
