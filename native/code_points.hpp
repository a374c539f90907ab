// Which texts hold a code point of some ranges. Nearly none does, so bytes are compared a kilobyte at a time with the first
// byte of these code points, then with their first two and three, by loops that the compiler makes vectors of; what is
// left is decoded. Code points of four bytes are rare in all texts, so each of them is decoded at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "clones.hpp"
#include "utf8.hpp"

namespace tokenloom {

// Code points [start, stop), beyond ASCII; rising and apart.
struct CodePointRange {
  std::uint32_t start, stop;
};

namespace detail {

// The first three bytes of some code points: two, and a third in [low, high].
struct Beginning {
  std::uint8_t first, second, low, high;
};

TOKENLOOM_CLONES
inline bool has_byte(const std::uint8_t* bytes, std::size_t count, std::uint8_t first) {
  std::uint8_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found |= bytes[i] == first;
  return found != 0;
}

TOKENLOOM_CLONES
inline bool has_pair(const std::uint8_t* bytes, std::size_t count, std::uint8_t first, std::uint8_t second) {
  std::uint8_t found = 0;
  for (std::size_t i = 0; i + 1 < count; ++i) found |= (bytes[i] == first) & (bytes[i + 1] == second);
  return found != 0;
}

TOKENLOOM_CLONES
inline bool has_beginning(const std::uint8_t* bytes, std::size_t count, Beginning wanted) {
  const std::uint8_t width = static_cast<std::uint8_t>(wanted.high - wanted.low);
  std::uint8_t found = 0;
  for (std::size_t i = 0; i + 2 < count; ++i) {
    const std::uint8_t beyond = static_cast<std::uint8_t>(bytes[i + 2] - wanted.low);
    found |= (bytes[i] == wanted.first) & (bytes[i + 1] == wanted.second) & (beyond <= width);
  }
  return found != 0;
}

// Whether a code point with one of the beginnings may begin in bytes [0, count), of which `more` can be read.
inline bool may_hold(const std::uint8_t* bytes, std::size_t count, std::size_t more,
                     std::span<const Beginning> beginnings) {
  bool holds_first = false, holds_second = false;
  std::uint16_t before = 0;  // ASCII, which begins none of ours
  for (const Beginning& each : beginnings) {
    const std::uint16_t pair = static_cast<std::uint16_t>(each.first << 8 | each.second);
    if (each.first != before >> 8) holds_first = has_byte(bytes, count, each.first);
    if (pair != before) holds_second = holds_first && has_pair(bytes, std::min(count + 1, more), each.first, each.second);
    before = pair;
    if (holds_second && (each.first < 0xe0 || has_beginning(bytes, std::min(count + 2, more), each))) return true;
  }
  return false;
}

// The first three bytes of a code point beyond ASCII, one after the other.
inline std::uint32_t first_bytes(std::uint32_t code_point) {
  const auto next = [code_point](int shift) { return 0x80 | (code_point >> shift & 0x3f); };
  if (code_point < 0x800) return (0xc0 | code_point >> 6) << 16 | next(0) << 8;
  if (code_point < 0x10000) return (0xe0 | code_point >> 12) << 16 | next(6) << 8 | next(0);
  return (0xf0 | code_point >> 18) << 16 | next(12) << 8 | next(6);
}

inline std::uint32_t code_point_at(const std::uint8_t* bytes) {
  const std::uint32_t first = bytes[0];
  if (first < 0xe0) return (first & 0x1f) << 6 | (bytes[1] & 0x3f);
  if (first < 0xf0) return (first & 0x0f) << 12 | (bytes[1] & 0x3f) << 6 | (bytes[2] & 0x3f);
  return (first & 0x07) << 18 | (bytes[1] & 0x3f) << 12 | (bytes[2] & 0x3f) << 6 | (bytes[3] & 0x3f);
}

inline std::vector<Beginning> beginnings_of(std::span<const CodePointRange> ranges) {
  std::vector<Beginning> found;
  for (const auto [start, stop] : ranges) {
    const std::uint32_t last = first_bytes(stop - 1);
    for (std::uint32_t at = first_bytes(start); at <= last; at = ((at >> 8) + 1) << 8) {
      const std::uint32_t high = at >> 8 == last >> 8 ? last & 0xff : 0xff;
      found.push_back({static_cast<std::uint8_t>(at >> 16), static_cast<std::uint8_t>(at >> 8),
                       static_cast<std::uint8_t>(at), static_cast<std::uint8_t>(high)});
    }
  }
  return found;
}

// A bit for each code point.
inline std::vector<std::uint64_t> bits_of(std::span<const CodePointRange> ranges) {
  std::vector<std::uint64_t> bits(0x110000 / 64);
  for (const auto [start, stop] : ranges) {
    for (std::uint32_t each = start; each < stop; ++each) bits[each / 64] |= std::uint64_t{1} << (each % 64);
  }
  return bits;
}

// Whether a code point of four bytes that begins in bytes [0, count) with `first` is one of the bits.
inline bool holds_long(const std::uint8_t* bytes, std::size_t count, std::uint8_t first,
                       const std::vector<std::uint64_t>& bits) {
  const std::uint8_t* const end = bytes + count;
  for (const std::uint8_t* at = bytes; at < end; ++at) {
    at = static_cast<const std::uint8_t*>(std::memchr(at, first, static_cast<std::size_t>(end - at)));
    if (at == nullptr) return false;
    const std::uint32_t code_point = code_point_at(at);
    if ((bits[code_point / 64] >> (code_point % 64) & 1) != 0) return true;
  }
  return false;
}

}  // namespace detail

// Returns which texts, of UTF-8 back to back in `content`, hold a code point of the ranges. Text i is
// content[offsets[i], offsets[i + 1]).
inline std::vector<std::int64_t> texts_with(std::span<const std::uint8_t> content,
                                            std::span<const std::int64_t> offsets,
                                            std::span<const CodePointRange> ranges) {
  constexpr std::size_t kStride = 1024;
  std::vector<detail::Beginning> beginnings = detail::beginnings_of(ranges);
  std::array<bool, 256> is_first{};
  for (const auto& each : beginnings) is_first[each.first] = true;
  std::erase_if(beginnings, [](const detail::Beginning& each) { return each.first >= 0xf0; });
  std::vector<std::uint64_t> bits;
  std::vector<std::int64_t> found;
  for (std::size_t at = 0; at < content.size(); at += kStride) {
    const std::uint8_t* const bytes = content.data() + at;
    const std::size_t more = content.size() - at, count = std::min(kStride, more);
    if (!detail::has_high_bytes(bytes, count)) continue;
    if (bits.empty()) bits = detail::bits_of(ranges);
    bool holds = detail::may_hold(bytes, count, more, beginnings);
    for (std::size_t first = 0xf0; !holds && first < 0xf5; ++first) {
      holds = is_first[first] && detail::holds_long(bytes, count, static_cast<std::uint8_t>(first), bits);
    }
    if (!holds) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_first[bytes[i]]) continue;
      const std::uint32_t code_point = detail::code_point_at(bytes + i);
      if ((bits[code_point / 64] >> (code_point % 64) & 1) == 0) continue;
      const auto text = std::upper_bound(offsets.begin(), offsets.end(), static_cast<std::int64_t>(at + i));
      const std::int64_t number = text - offsets.begin() - 1;
      if (found.empty() || found.back() != number) found.push_back(number);
    }
  }
  return found;
}

}  // namespace tokenloom
