// Whether the rows of an index are those of sequences that lie back to back; stops at the first that is not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spans.hpp"

namespace tokenloom {

struct RowsEnd {
  std::size_t row;       // the first wrong one, or how many there are
  std::int64_t pointer;  // where it should begin, or the last one ends
};

// A row is wrong if its length is negative, or it does not begin where the one before ended, the first at `start`.
inline RowsEnd check_rows(const UnalignedArray<std::int32_t>& lengths, const UnalignedArray<std::int64_t>& pointers,
                          std::int64_t start, std::int64_t itemsize) {
  auto expected = static_cast<std::uint64_t>(start);  // wraps around, where signed integers must not overflow
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    const std::int32_t length = lengths[row];
    if (length < 0 || static_cast<std::uint64_t>(pointers[row]) != expected)
      return {row, static_cast<std::int64_t>(expected)};
    expected += static_cast<std::uint64_t>(length) * static_cast<std::uint64_t>(itemsize);
  }
  return {lengths.size(), static_cast<std::int64_t>(expected)};
}

// The first boundary that is below the one before it, or how many there are.
inline std::size_t first_fall(const UnalignedArray<std::int64_t>& boundaries) {
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    if (boundaries[i] < boundaries[i - 1]) return i;
  return boundaries.size();
}

}  // namespace tokenloom
