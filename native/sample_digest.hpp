// What names a sample that was handed out: 128 bits of its position and tokens, and sums of these over many samples. Not
// a cryptographic hash: it finds accidents, not adversaries.
//
// Tokens are hashed in blocks of 512 by NH, the inner hash of UMAC (Black et al., 1999): a sum of products
// (a + key of a) * (b + key of b), which costs little more than reading the tokens: 0.6 us for 8192 of 64 bits in the first-
// level cache, 0.8 us in the second. Keys lie in [2^30, 2^31), more than 2^20 apart. So no factor of a token in
// (-2^30, 2^31) is 0, and no two factors of tokens in [0, 2^20] are equal: one changed token, and two that changed
// places, always change the sum of their block. What of a token lies beyond 32 bits is added up apart, where there is any.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(TOKENLOOM_ONLY_BASELINE)
#include <immintrin.h>
#define TOKENLOOM_DIGEST_BY_AVX2 1
#endif

namespace tokenloom {

struct SampleDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

namespace detail {

inline constexpr std::int64_t kDigestBlock = 512;  // tokens
inline constexpr std::int64_t kDigestGroup = 8;    // tokens; the first four are multiplied with the last four
inline constexpr std::uint64_t kDigestStep = 0x9E3779B97F4A7C15;
inline constexpr std::uint64_t kLowHalf = 0xFFFFFFFF;

// The finaliser of SplitMix64, a permutation of 64 bits.
constexpr std::uint64_t stirred(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// 2^30 + 2^21 * (a shuffled number below 512) + (a random number below 2^20).
inline constexpr auto kDigestKeys = [] {
  std::array<std::uint64_t, kDigestBlock> keys{};
  std::uint64_t state = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  for (std::size_t i = keys.size() - 1; i > 0; --i) std::swap(keys[i], keys[stirred(state += kDigestStep) % (i + 1)]);
  for (std::uint64_t& key : keys) key = (1U << 30) + (key << 21) + (stirred(state += kDigestStep) >> 44);
  return keys;
}();

struct BlockSum {
  std::uint64_t products = 0;
  std::uint64_t beyond = 0;  // of what lies beyond 32 bits
};

struct NoCopy {};

template <typename Integer>
std::uint64_t word_of(Integer token) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(token));
}

// count: at most a block; what is missing of the last group counts as zeros.
template <typename Integer>
BlockSum sum_block(const Integer* tokens, std::int64_t count) {
  BlockSum sum;
  for (std::int64_t group = 0; group < count; group += kDigestGroup) {
    std::uint64_t words[kDigestGroup];
    for (std::int64_t i = 0; i < kDigestGroup; ++i) {
      const std::uint64_t key = kDigestKeys[static_cast<std::size_t>(group + i)];
      words[i] = (group + i < count ? word_of(tokens[group + i]) : 0) + key;
      sum.beyond += (words[i] >> 32) * ((key * kDigestStep) | 1);
    }
    for (std::int64_t i = 0; i < kDigestGroup / 2; ++i)
      sum.products += (words[i] & kLowHalf) * (words[i + kDigestGroup / 2] & kLowHalf);
  }
  return sum;
}

#ifdef TOKENLOOM_DIGEST_BY_AVX2

__attribute__((target("avx2"))) inline __m256i load_words(const std::int64_t* tokens) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens));
}

__attribute__((target("avx2"))) inline __m256i load_words(const std::int32_t* tokens) {
  return _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens)));
}

__attribute__((target("avx2"))) inline __m256i load_words(const std::uint16_t* tokens) {
  return _mm256_cvtepu16_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(tokens)));
}

__attribute__((target("avx2"))) inline void store_words(__m256i words, std::int64_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), words);
}

__attribute__((target("avx2"))) inline void store_words(__m256i words, std::int32_t* out) {
  const __m256i halves = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(halves));
}

// Sums of `kBlocks` blocks one after the other, of `count` tokens each, a multiple of a group; a block if there are
// several. Copies them to `out` besides, if that is a pointer. Whether all keep to 32 bits; else the sums are without
// what lies beyond.
template <int kBlocks, typename Integer, typename Out>
__attribute__((target("avx2"))) bool sum_blocks(const Integer* tokens, std::int64_t count, BlockSum* sums, Out out) {
  __m256i sum[kBlocks], seen = _mm256_setzero_si256();
  for (int block = 0; block < kBlocks; ++block) sum[block] = _mm256_setzero_si256();
  for (std::int64_t at = 0; at < count; at += kDigestGroup) {
    const __m256i first_keys = load_words(reinterpret_cast<const std::int64_t*>(kDigestKeys.data()) + at);
    const __m256i last_keys = load_words(reinterpret_cast<const std::int64_t*>(kDigestKeys.data()) + at + 4);
    for (int block = 0; block < kBlocks; ++block) {
      const Integer* group = tokens + block * kDigestBlock + at;
      __m256i first = load_words(group), last = load_words(group + 4);
      if constexpr (!std::is_same_v<Out, NoCopy>) {
        store_words(first, out + block * kDigestBlock + at);
        store_words(last, out + block * kDigestBlock + at + 4);
      }
      first = _mm256_add_epi64(first, first_keys);
      last = _mm256_add_epi64(last, last_keys);
      if constexpr (sizeof(Integer) > sizeof(std::uint16_t)) seen = _mm256_or_si256(seen, _mm256_or_si256(first, last));
      sum[block] = _mm256_add_epi64(sum[block], _mm256_mul_epu32(first, last));
    }
  }
  alignas(32) std::uint64_t lanes[4];
  for (int block = 0; block < kBlocks; ++block) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum[block]);
    sums[block] = {lanes[0] + lanes[1] + lanes[2] + lanes[3], 0};
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), seen);
  return ((lanes[0] | lanes[1] | lanes[2] | lanes[3]) >> 32) == 0;
}

inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

#endif

inline void take_in(SampleDigest& digest, const BlockSum& sum) {
  digest.low = stirred((digest.low ^ (sum.beyond * kDigestStep)) + sum.products);
  digest.high = stirred((digest.high + sum.beyond) ^ std::rotl(sum.products, 32));
}

// Takes in as many tokens as there are fast ways for, and copies them to `out` if that is a pointer; returns how many.
template <typename Integer, typename Out>
std::int64_t take_in_fast(SampleDigest& digest, const Integer* tokens, std::int64_t count, Out out) {
  std::int64_t at = 0;
#ifdef TOKENLOOM_DIGEST_BY_AVX2
  constexpr bool kCopies = !std::is_same_v<Out, NoCopy>;
  constexpr int kTogether = kCopies ? 1 : 4;  // blocks, for which keys are loaded once
  const auto behind = [&] {
    if constexpr (kCopies) {
      return out + at;
    } else {
      return out;
    }
  };
  if (!has_avx2()) return 0;
  BlockSum sums[kTogether];
  for (; count - at >= kTogether * kDigestBlock; at += kTogether * kDigestBlock) {
    const bool is_narrow = sum_blocks<kTogether>(tokens + at, kDigestBlock, sums, behind());
    for (int block = 0; block < kTogether; ++block)
      take_in(digest, is_narrow ? sums[block] : sum_block(tokens + at + block * kDigestBlock, kDigestBlock));
  }
  while (count - at >= kDigestGroup) {
    const std::int64_t size = count - at < kDigestBlock ? count - at : kDigestBlock;
    if (size % kDigestGroup != 0 || !sum_blocks<1>(tokens + at, size, sums, behind())) break;
    take_in(digest, sums[0]);
    at += size;
  }
#else
  static_cast<void>(digest), static_cast<void>(tokens), static_cast<void>(count), static_cast<void>(out);
#endif
  return at;
}

// Types that there are fast ways for.
template <typename Integer>
inline constexpr bool kIsDigestedFast = std::is_same_v<Integer, std::uint16_t> ||
                                        std::is_same_v<Integer, std::int32_t> || std::is_same_v<Integer, std::int64_t>;

inline SampleDigest begin_digest(std::int64_t count) {
  return {stirred(static_cast<std::uint64_t>(count)), stirred(~static_cast<std::uint64_t>(count))};
}

}  // namespace detail

// Of the values of tokens, whatever their width.
template <typename Integer>
SampleDigest digest_tokens(const Integer* tokens, std::int64_t count) {
  SampleDigest digest = detail::begin_digest(count);
  std::int64_t at = 0;
  if constexpr (detail::kIsDigestedFast<Integer>) at = detail::take_in_fast(digest, tokens, count, detail::NoCopy());
  for (; at < count; at += detail::kDigestBlock)
    take_in(digest, detail::sum_block(tokens + at, std::min(count - at, detail::kDigestBlock)));
  return digest;
}

// The same, and copies the tokens to `out`, which they must fit, while they pass by: 1 to 3% of the time that filling a
// sample takes, where reading them again takes 5 to 9%.
template <typename Integer, typename Out>
SampleDigest digest_and_copy(const Integer* tokens, std::int64_t count, Out* out) {
  SampleDigest digest = detail::begin_digest(count);
  std::int64_t at = 0;
  if constexpr (detail::kIsDigestedFast<Integer>) at = detail::take_in_fast(digest, tokens, count, out);
  for (std::int64_t i = at; i < count; ++i) out[i] = static_cast<Out>(tokens[i]);
  for (; at < count; at += detail::kDigestBlock)
    take_in(digest, detail::sum_block(tokens + at, std::min(count - at, detail::kDigestBlock)));
  return digest;
}

// Of a sample: a position and the digest of its tokens.
inline SampleDigest digest_at(std::int64_t position, const SampleDigest& tokens) {
  const std::uint64_t name = detail::stirred(static_cast<std::uint64_t>(position) * detail::kDigestStep);
  SampleDigest digest;
  digest.high = detail::stirred(tokens.high + std::rotl(name, 32));
  digest.low = detail::stirred(detail::stirred(tokens.low ^ name) ^ std::rotl(digest.high, 17));
  return digest;
}

}  // namespace tokenloom
