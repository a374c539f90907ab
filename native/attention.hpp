// What attention is told of the documents of a sample: the document of each token, and which blocks of the mask have work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace tokenloom {

// Where documents begin, from 0, and the end, rising; documents may be empty. The end may be repeated.
using Boundaries = std::span<const std::int32_t>;

// Whether they rise to the end; what follows that is not looked at.
inline bool rise(Boundaries bounds, std::int64_t length) {
  if (bounds.front() != 0 || bounds.back() != length) return false;
  std::size_t at = 1;
  while (bounds[at - 1] < length && bounds[at] >= bounds[at - 1]) ++at;
  return bounds[at - 1] == length;
}

inline void fill_document_ids(Boundaries bounds, std::int32_t* ids) {
  for (std::size_t document = 0; bounds[document] < bounds.back(); ++document)
    std::fill(ids + bounds[document], ids + bounds[document + 1], static_cast<std::int32_t>(document));
}

// The mask of a sample in square blocks: those in which some token sees another, and those in which all see all. Each
// row of blocks has how many there are, and all columns: those blocks first, then the others, both rising, as torch's
// FlexAttention has them.
struct BlockLists {
  std::int32_t* num_partial;   // [blocks]
  std::int32_t* partial;       // [blocks, blocks]
  std::int32_t* num_full;      // [blocks]
  std::int32_t* full;          // [blocks, blocks]
};

// Where what each token sees ends: behind itself, or behind the tokens of its document up to the first one with loss,
// which then see each other.
inline void fill_seen_stops(Boundaries bounds, const float* loss_mask, std::int32_t* stops) {
  for (std::size_t document = 0; bounds[document] < bounds.back(); ++document) {
    const float *begin = loss_mask + bounds[document], *end = loss_mask + bounds[document + 1];
    const float* first = std::find_if(begin, end, [](float loss) { return loss > 0; });
    const std::ptrdiff_t stop = first == end ? 0 : first - loss_mask + 1;
    for (std::int32_t token = bounds[document]; token < bounds[document + 1]; ++token)
      stops[token] = std::max(token + 1, static_cast<std::int32_t>(stop));
  }
}

inline constexpr std::int64_t kColumnsAtOnce = 8;

// A token sees those of its document up to itself, or up to its one of `stops`, which rise; and of these the last
// `window`, where 0 is all of them. `columns` are 0, 1, 2, … as many as there are blocks, and `kColumnsAtOnce` more.
inline void fill_block_lists(Boundaries bounds, std::int64_t block, std::int64_t window, const std::int32_t* stops,
                             std::span<const std::int32_t> columns, const BlockLists& out) {
  const std::int64_t length = bounds.back();
  const auto num_blocks = static_cast<std::int64_t>(columns.size()) - kColumnsAtOnce;
  std::size_t document = 0;
  const auto first_seen = [&](std::int64_t token) {
    while (bounds[document + 1] <= token) ++document;
    return std::max<std::int64_t>(bounds[document], window > 0 ? token - window + 1 : 0);
  };
  const auto seen_stop = [&](std::int64_t token) { return stops != nullptr ? stops[token] : token + 1; };
  for (std::int64_t row = 0; row < num_blocks; ++row) {
    // Most ranges are short, so whole groups are copied: what is too much is written over by the next range or row.
    const bool is_near_end = (num_blocks - row - 1) * num_blocks < kColumnsAtOnce;
    const auto count_up = [&](std::int32_t* at, std::int64_t from, std::int64_t to) {
      if (from >= to) return at;
      if (is_near_end) return std::copy(columns.data() + from, columns.data() + to, at);
      for (std::int64_t column = from; column < to; column += kColumnsAtOnce)
        std::memcpy(at + (column - from), columns.data() + column, kColumnsAtOnce * sizeof(std::int32_t));
      return at + (to - from);
    };
    const std::int64_t begin = row * block, last = std::min(begin + block, length) - 1;
    // From token to token what is seen begins later, and ends later: some token sees each block in [first, stop), and
    // all see those from where the last token begins to where the first one ends. A row that the sample does not fill
    // sees no block as a whole.
    const std::int64_t first = first_seen(begin) / block, stop = (seen_stop(last) + block - 1) / block;
    const bool is_whole = last == begin + block - 1;
    const std::int64_t full = is_whole ? std::min((first_seen(last) + block - 1) / block, stop) : stop;
    const std::int64_t full_stop = is_whole ? std::max(seen_stop(begin) / block, full) : stop;
    out.num_partial[row] = static_cast<std::int32_t>(full - first + stop - full_stop);
    out.num_full[row] = static_cast<std::int32_t>(full_stop - full);
    std::int32_t* at = out.partial + row * num_blocks;
    at = count_up(at, first, full);
    at = count_up(at, full_stop, stop);
    at = count_up(at, 0, first);
    at = count_up(at, full, full_stop);
    at = count_up(at, stop, num_blocks);
    at = out.full + row * num_blocks;
    at = count_up(at, full, full_stop);
    at = count_up(at, 0, full);
    at = count_up(at, full_stop, num_blocks);
  }
}

}  // namespace tokenloom
