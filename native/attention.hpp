// What attention is told of the documents of a sample: the document of each token, and which blocks of the mask have work.
#pragma once

#include <algorithm>
#include <cstdint>
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

// A token sees those of its document up to itself, and of these the last `window`; 0 is all of them.
// `columns` are 0, 1, 2, … as many as there are blocks.
inline void fill_block_lists(Boundaries bounds, std::int64_t block, std::int64_t window,
                             std::span<const std::int32_t> columns, const BlockLists& out) {
  const std::int64_t length = bounds.back();
  const auto num_blocks = static_cast<std::int64_t>(columns.size());
  std::size_t document = 0;
  const auto first_seen = [&](std::int64_t token) {
    while (bounds[document + 1] <= token) ++document;
    return std::max<std::int64_t>(bounds[document], window > 0 ? token - window + 1 : 0);
  };
  const auto count_up = [&](std::int32_t*& at, std::int64_t begin, std::int64_t end) {
    if (begin < end) at = std::copy(columns.data() + begin, columns.data() + end, at);
  };
  for (std::int64_t row = 0; row < num_blocks; ++row) {
    const std::int64_t last = std::min((row + 1) * block, length) - 1;
    const std::int64_t first = first_seen(row * block) / block;
    // All tokens of the row see a block if its last one does; a row that the sample does not fill sees none as a whole.
    const bool is_whole = last == (row + 1) * block - 1;
    const std::int64_t full = is_whole ? std::min((first_seen(last) + block - 1) / block, row) : row;
    const std::int64_t diagonal = block == 1 ? row : row + 1;  // one past the partial block there; of single tokens none
    out.num_partial[row] = static_cast<std::int32_t>(full - first + diagonal - row);
    out.num_full[row] = static_cast<std::int32_t>(row - full + row + 1 - diagonal);
    std::int32_t* at = out.partial + row * num_blocks;
    count_up(at, first, full);
    count_up(at, row, diagonal);
    count_up(at, 0, first);
    count_up(at, full, row);
    count_up(at, diagonal, num_blocks);
    at = out.full + row * num_blocks;
    count_up(at, full, row + (row + 1 - diagonal));
    count_up(at, 0, full);
    count_up(at, row + (row + 1 - diagonal), num_blocks);
  }
}

}  // namespace tokenloom
