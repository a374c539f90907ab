// Permutations of n things that are computed, not stored: place -> thing and back, from a key of 128 bits.
//
// Up to 1,024 things: an exact Fisher-Yates shuffle, as a table made in about 2 us. More: a Feistel network on Z_a x Z_b,
// a = ceil(sqrt(n)), b = ceil(n / a). A round adds a function of one half to the other, modulo that half's size, so it is
// undone by subtracting. The few values from n on (less than 1 / sqrt(n) of all) go through the network again until they
// are below n. It has no state beyond its keys and costs the same for any n; small networks are visibly not uniform, which
// is why they are tables. Integers only. What comes out of a key is golden: it stays so for ever.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "clones.hpp"

namespace tokenloom {

struct Key {
  std::uint64_t low;
  std::uint64_t high;
  bool operator==(const Key&) const = default;
};

// What a key is derived for: the second argument of `derive`.
namespace purpose {
inline constexpr std::uint64_t kHoldout = 1;
inline constexpr std::uint64_t kPairs = 2;
inline constexpr std::uint64_t kBlocks = 3;
inline constexpr std::uint64_t kDocuments = 4;
inline constexpr std::uint64_t kWindows = 5;
inline constexpr std::uint64_t kPhase = 6;
inline constexpr std::uint64_t kMixing = 7;
inline constexpr std::uint64_t kPackGroups = 8;
inline constexpr std::uint64_t kPacks = 9;
inline constexpr std::uint64_t kSamples = 10;
inline constexpr std::uint64_t kParts = 11;
}  // namespace purpose

namespace detail {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, the step of splitmix64
inline constexpr std::uint64_t kFirst = 0xbf58476d1ce4e5b9U;   // multipliers of splitmix64's finaliser
inline constexpr std::uint64_t kSecond = 0x94d049bb133111ebU;

inline std::uint64_t finalise(std::uint64_t z) {
  z = (z ^ (z >> 30)) * kFirst;
  z = (z ^ (z >> 27)) * kSecond;
  return z ^ (z >> 31);
}

// Word `number` of the random stream of a key: splitmix64 from `low` on, with `high` put in midway.
inline std::uint64_t stream_word(Key key, std::uint64_t number) {
  std::uint64_t z = key.low + (number + 1) * kGolden;
  z = ((z ^ (z >> 30)) * kFirst) ^ key.high;
  z = (z ^ (z >> 27)) * kSecond;
  return z ^ (z >> 31);
}

}  // namespace detail

// A key for one purpose and number; both halves depend on all that goes in. Of one key, no two numbers of a purpose, nor
// two purposes of a number, give the same.
inline Key derive(Key key, std::uint64_t purpose, std::uint64_t number) {
  using detail::finalise, detail::kGolden;
  std::uint64_t low = key.low + finalise(number + kGolden);
  std::uint64_t high = key.high + finalise(purpose + 2 * kGolden);
  high ^= finalise(low + 3 * kGolden);
  low ^= finalise(high + 4 * kGolden);
  high ^= finalise(low + 5 * kGolden);
  low ^= finalise(high + 6 * kGolden);
  return {low, high};
}

inline constexpr std::int64_t kMostShuffled = 1024;
inline constexpr std::int64_t kMostPermuted = std::int64_t{1} << 60;

namespace detail {

// Draw `number` of 32 bits from the stream of a key: the lower half of a word comes before the upper.
inline std::uint64_t stream_draw(Key key, std::uint64_t number) {
  const std::uint64_t word = stream_word(key, number / 2);
  return number % 2 == 0 ? word & 0xffffffffU : word >> 32;
}

// Draws for each place from the last to the second a partner at or before it (Lemire 2019: what would favour some
// partners is drawn again). All of them ahead and without a branch, as if nothing were drawn again, which is wrong for one
// table of 16,000: that one is drawn by the loop below.
inline void choose_partners(Key key, std::span<std::uint32_t> partners) {
  const std::size_t size = partners.size();
  std::array<std::uint32_t, kMostShuffled> draws;
  for (std::size_t i = 0; i < size; i += 2) {
    const std::uint64_t word = stream_word(key, i / 2);
    draws[i] = static_cast<std::uint32_t>(word);
    draws[i + 1] = static_cast<std::uint32_t>(word >> 32);
  }
  bool some_again = false;
  for (std::size_t i = 0; i + 1 < size; ++i) {
    const std::uint64_t bound = size - i;
    const std::uint64_t product = draws[i] * bound;
    some_again |= static_cast<std::uint32_t>(product) < bound;
    partners[size - 1 - i] = static_cast<std::uint32_t>(product >> 32);
  }
  if (!some_again) [[likely]] return;
  std::uint64_t drawn = 0;
  for (std::uint64_t bound = size; bound > 1; --bound) {
    std::uint64_t product = 0;
    do product = stream_draw(key, drawn++) * bound;
    while (static_cast<std::uint32_t>(product) < (std::uint64_t{1} << 32) % bound);
    partners[bound - 1] = static_cast<std::uint32_t>(product >> 32);
  }
}

}  // namespace detail

// Fills `out`, of at most 1,024 places, with a permutation of 0, 1, 2, ...: every one is as likely as any other.
inline void fisher_yates(Key key, std::span<std::uint16_t> out) {
  if (out.size() > static_cast<std::size_t>(kMostShuffled)) throw std::invalid_argument("expected at most 1024 things");
  std::array<std::uint32_t, kMostShuffled> partners;
  detail::choose_partners(key, std::span(partners).first(out.size()));
  std::iota(out.begin(), out.end(), std::uint16_t{0});
  for (std::size_t last = out.size(); last-- > 1;) std::swap(out[last], out[partners[last]]);
}

// A Feistel network on Z_a x Z_b, which permutes [0, a * b): the part of `Permutation` that knows no n.
class Feistel {
 public:
  Feistel() = default;
  Feistel(std::int64_t n, Key key) : num_rounds_(n < kFew ? kRoundsOfFew : kRounds) {
    std::uint64_t root = 0;
    for (std::uint64_t bit = std::uint64_t{1} << 30; bit > 0; bit >>= 1)
      if ((root + bit) * (root + bit) < static_cast<std::uint64_t>(n)) root += bit;
    a_ = static_cast<std::uint32_t>(root + 1);  // the least whose square is n or more
    b_ = static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) + a_ - 1) / a_);
    reciprocal_ = ~std::uint64_t{0} / b_;
    for (std::size_t i = 0; i < num_rounds_; ++i) {
      const std::uint64_t word = detail::stream_word(key, i);
      keys_[i] = {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
    }
  }

  std::uint64_t forward(std::uint64_t value) const {
    auto [left, right] = split(value);
    for (std::size_t i = 0; i < num_rounds_; i += 2) {
      left = plus(left, step(right, keys_[i], a_), a_);
      right = plus(right, step(left, keys_[i + 1], b_), b_);
    }
    return join(left, right);
  }

  std::uint64_t inverse(std::uint64_t value) const {
    auto [left, right] = split(value);
    for (std::size_t i = num_rounds_; i > 0; i -= 2) {
      right = minus(right, step(left, keys_[i - 1], b_), b_);
      left = minus(left, step(right, keys_[i - 2], a_), a_);
    }
    return join(left, right);
  }

  static constexpr std::size_t kLanes = 64;

  // As `forward`, for up to `kLanes` values at once, in the CPU's vector registers; in place.
  TOKENLOOM_CLONES void forward_lanes(std::span<std::uint64_t, kLanes> values) const {
    std::array<std::uint32_t, kLanes> left, right;
    split_lanes(values, left, right);
    forward_rounds(left, right);
    for (std::size_t j = 0; j < kLanes; ++j) values[j] = join(left[j], right[j]);
  }

  // The same of `first` and the values after it: what follows each other is split without dividing. Returns whether all
  // that comes out is below `n`.
  TOKENLOOM_CLONES bool forward_lanes_from(std::uint64_t first, std::int64_t n, std::int64_t* out) const {
    std::array<std::uint32_t, kLanes> left, right;
    const auto [left_of_first, right_of_first] = split(first);
    for (std::uint32_t j = 0; j < kLanes; ++j) {  // b > 31: the sum is less than three times that
      const std::uint32_t sum = right_of_first + j;
      const std::uint32_t carried = (sum >= b_) + (sum >= 2 * b_);
      left[j] = left_of_first + carried;
      right[j] = sum - carried * b_;
    }
    forward_rounds(left, right);
    std::int64_t beyond = 0;
    for (std::size_t j = 0; j < kLanes; ++j) {
      out[j] = static_cast<std::int64_t>(join(left[j], right[j]));
      beyond |= n - 1 - out[j];  // negative where it is not below n
    }
    return beyond >= 0;
  }

  TOKENLOOM_CLONES void inverse_lanes(std::span<std::uint64_t, kLanes> values) const {
    std::array<std::uint32_t, kLanes> left, right;
    split_lanes(values, left, right);
    for (std::size_t i = num_rounds_; i > 0; i -= 2) {
      for (std::size_t j = 0; j < kLanes; ++j) right[j] = minus(right[j], step(left[j], keys_[i - 1], b_), b_);
      for (std::size_t j = 0; j < kLanes; ++j) left[j] = minus(left[j], step(right[j], keys_[i - 2], a_), a_);
    }
    for (std::size_t j = 0; j < kLanes; ++j) values[j] = join(left[j], right[j]);
  }

 private:
  static constexpr std::int64_t kFew = 65536;
  static constexpr std::size_t kRounds = 6;  // four pass the tests that we know, two do not
  static constexpr std::size_t kRoundsOfFew = 10;  // eight pass, six do not

  struct RoundKey {
    std::uint32_t first;
    std::uint32_t second;
  };

  // What a round adds: a hash of 32 bits (the constants of lowbias32), with a key before and within, brought into [0, bound).
  static std::uint32_t step(std::uint32_t half, RoundKey key, std::uint32_t bound) {
    std::uint32_t hash = half ^ key.first;
    hash = (hash ^ (hash >> 16)) * 0x21f0aaadU;
    hash = (hash ^ (hash >> 15) ^ key.second) * 0x735a2d97U;
    hash ^= hash >> 15;
    return static_cast<std::uint32_t>((std::uint64_t{hash} * bound) >> 32);
  }

  // Both below `bound`, which is at most 2^30 + 1.
  static std::uint32_t plus(std::uint32_t half, std::uint32_t added, std::uint32_t bound) {
    const std::uint32_t sum = half + added;
    return std::min(sum, sum - bound);  // the difference wraps round to a large number unless the sum is too large
  }
  static std::uint32_t minus(std::uint32_t half, std::uint32_t added, std::uint32_t bound) {
    const std::uint32_t difference = half - added;
    return std::min(difference, difference + bound);
  }

  std::pair<std::uint32_t, std::uint32_t> split(std::uint64_t value) const {
    __extension__ using Wide = unsigned __int128;
    std::uint64_t quotient = static_cast<std::uint64_t>((Wide{value} * reciprocal_) >> 64);  // or one too few
    std::uint64_t rest = value - quotient * b_;
    const bool few = rest >= b_;
    quotient += few;
    rest -= few ? b_ : 0;
    return {static_cast<std::uint32_t>(quotient), static_cast<std::uint32_t>(rest)};
  }
  std::uint64_t join(std::uint32_t left, std::uint32_t right) const { return std::uint64_t{left} * b_ + right; }

  void split_lanes(std::span<const std::uint64_t, kLanes> values, std::array<std::uint32_t, kLanes>& left,
                   std::array<std::uint32_t, kLanes>& right) const {
    for (std::size_t j = 0; j < kLanes; ++j) std::tie(left[j], right[j]) = split(values[j]);
  }

  // Within a function that is compiled several times.
  [[gnu::always_inline]] inline void forward_rounds(std::array<std::uint32_t, kLanes>& left,
                                                    std::array<std::uint32_t, kLanes>& right) const {
    for (std::size_t i = 0; i < num_rounds_; i += 2) {
      for (std::size_t j = 0; j < kLanes; ++j) left[j] = plus(left[j], step(right[j], keys_[i], a_), a_);
      for (std::size_t j = 0; j < kLanes; ++j) right[j] = plus(right[j], step(left[j], keys_[i + 1], b_), b_);
    }
  }

  std::array<RoundKey, kRoundsOfFew> keys_{};
  std::uint64_t reciprocal_ = 0;
  std::uint32_t a_ = 0;
  std::uint32_t b_ = 0;
  std::size_t num_rounds_ = 0;
};

// A permutation of [0, n), n <= 2^60, and its inverse. A few dozen ns to make for n > 1,024, else 3 us and 4 n bytes.
// Values outside [0, n) are the caller's bug. Any number of threads may ask at once.
class Permutation {
 public:
  Permutation(std::int64_t n, Key key) : n_(n) {
    if (n < 0 || n > kMostPermuted) throw std::invalid_argument("expected between 0 and 2**60 things");
    if (n > kMostShuffled) {
      network_ = Feistel(n, key);
      return;
    }
    const auto size = static_cast<std::size_t>(n);
    tables_.resize(2 * size);
    fisher_yates(key, std::span(tables_).first(size));
    for (std::size_t i = 0; i < size; ++i) tables_[size + tables_[i]] = static_cast<std::uint16_t>(i);
  }

  std::int64_t size() const { return n_; }

  std::int64_t operator()(std::int64_t place) const {
    if (n_ <= kMostShuffled) return tables_[static_cast<std::size_t>(place)];
    auto value = static_cast<std::uint64_t>(place);
    do value = network_.forward(value);
    while (value >= static_cast<std::uint64_t>(n_));
    return static_cast<std::int64_t>(value);
  }

  std::int64_t inverse(std::int64_t thing) const {
    if (n_ <= kMostShuffled) return tables_[static_cast<std::size_t>(n_ + thing)];
    auto value = static_cast<std::uint64_t>(thing);
    do value = network_.inverse(value);
    while (value >= static_cast<std::uint64_t>(n_));
    return static_cast<std::int64_t>(value);
  }

  // The same for many, several times faster than one by one. `out` is as long as what goes in, and may be the same.
  void forward(std::span<const std::int64_t> places, std::int64_t* out) const {
    many(places, out, [&](std::int64_t place) { return (*this)(place); },
         [&](std::span<std::uint64_t, Feistel::kLanes> lanes) { network_.forward_lanes(lanes); });
  }
  // The same of places [first, first + out.size()), twice as fast.
  void forward_range(std::int64_t first, std::span<std::int64_t> out) const {
    std::size_t i = 0;
    if (n_ > kMostShuffled) {
      for (; i + Feistel::kLanes <= out.size(); i += Feistel::kLanes) {
        const auto lanes = out.subspan(i, Feistel::kLanes);
        if (network_.forward_lanes_from(static_cast<std::uint64_t>(first) + i, n_, lanes.data())) [[likely]] continue;
        for (std::int64_t& value : lanes)
          if (value >= n_) value = (*this)(value);
      }
    }
    for (; i < out.size(); ++i) out[i] = (*this)(first + static_cast<std::int64_t>(i));
  }
  void inverse(std::span<const std::int64_t> things, std::int64_t* out) const {
    many(things, out, [&](std::int64_t thing) { return inverse(thing); },
         [&](std::span<std::uint64_t, Feistel::kLanes> lanes) { network_.inverse_lanes(lanes); });
  }

 private:
  template <typename One, typename Lanes>
  void many(std::span<const std::int64_t> values, std::int64_t* out, One&& one, Lanes&& together) const {
    std::size_t i = 0;
    if (n_ > kMostShuffled) {
      std::array<std::uint64_t, Feistel::kLanes> lanes;
      for (; i + lanes.size() <= values.size(); i += lanes.size()) {
        for (std::size_t j = 0; j < lanes.size(); ++j) lanes[j] = static_cast<std::uint64_t>(values[i + j]);
        together(std::span<std::uint64_t, Feistel::kLanes>(lanes));
        for (std::size_t j = 0; j < lanes.size(); ++j) {
          const auto value = static_cast<std::int64_t>(lanes[j]);
          out[i + j] = value < n_ ? value : one(value);
        }
      }
    }
    for (; i < values.size(); ++i) out[i] = one(values[i]);
  }

  std::int64_t n_;
  Feistel network_;
  std::vector<std::uint16_t> tables_;  // of few things: forward, then inverse
};

}  // namespace tokenloom
