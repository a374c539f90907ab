// The blend of `blend.hpp` for few datasets, which are all tried at every step.
//
// What a step costs is waiting: the choice decides the counts that the next choice begins with. So nothing on that way is
// a branch on data, which is as good as random. Counts of up to 16 datasets stay in registers, since reading counts
// together right after one of them was written waits for that. And several stretches of the order are filled in turn,
// each of which is waited for while the others go on; `blend_parallel.hpp` says how a stretch may begin in the middle.
//
// Compile with contraction off: a fused multiply-add rounds once where the reference rounds twice. Comparisons and
// selections are exact, so the clones for AVX2 choose as the others do.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>

#include "clones.hpp"

namespace tokenloom {

// A stretch of the order: where its choices go, and what they begin from. Entries beyond the datasets have a weight of 0
// and a count of infinity, so that they never win, as those that gave all they have.
struct FewStretch {
  std::int64_t step;    // of the first choice
  double* count;        // samples that each dataset has given, for comparing
  std::int64_t* given;  // the same
  std::int16_t* dataset_index;
  std::int64_t* sample_index;
};

// Chooses the next `size` samples of some stretches, among 4 * kQuads datasets.
template <std::size_t kQuads, std::size_t kStretches>
TOKENLOOM_CLONES void choose_among_few(const double* weights, std::int64_t size,
                                       const std::array<FewStretch, kStretches>& stretches) {
  typedef double Quad __attribute__((vector_size(32)));
  typedef std::int64_t Bits __attribute__((vector_size(32)));
  const Quad one = {1.0, 1.0, 1.0, 1.0};
  const Quad none = {1e300, 1e300, 1e300, 1e300};
  Quad weight[kQuads], number[kQuads], count[kStretches][kQuads];
  for (std::size_t quad = 0; quad < kQuads; ++quad)
    for (std::size_t lane = 0; lane < 4; ++lane) {
      weight[quad][lane] = weights[4 * quad + lane];
      number[quad][lane] = static_cast<double>(4 * quad + lane);
      for (std::size_t k = 0; k < kStretches; ++k) count[k][quad][lane] = stretches[k].count[4 * quad + lane];
    }
  for (std::int64_t i = 0; i < size; ++i) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kStretches; ++k) {
      const double time = static_cast<double>(std::max<std::int64_t>(stretches[k].step + i, 1));
      const Quad times = {time, time, time, time};
      Quad error[kQuads];
#pragma GCC unroll 12
      for (std::size_t quad = 0; quad < kQuads; ++quad) {
        const Quad product = weight[quad] * times;
        error[quad] = product - count[k][quad];
      }
      Quad best = error[0];
#pragma GCC unroll 12
      for (std::size_t quad = 1; quad < kQuads; ++quad) best = error[quad] > best ? error[quad] : best;
      Quad other = {best[2], best[3], best[0], best[1]};
      best = other > best ? other : best;
      other = Quad{best[1], best[0], best[3], best[2]};
      best = other > best ? other : best;
      Quad lowest = error[0] == best ? number[0] : none;  // of equals the lowest number wins
#pragma GCC unroll 12
      for (std::size_t quad = 1; quad < kQuads; ++quad) {
        other = error[quad] == best ? number[quad] : none;
        lowest = other < lowest ? other : lowest;
      }
      other = Quad{lowest[2], lowest[3], lowest[0], lowest[1]};
      lowest = other < lowest ? other : lowest;
      other = Quad{lowest[1], lowest[0], lowest[3], lowest[2]};
      lowest = other < lowest ? other : lowest;
#pragma GCC unroll 12
      for (std::size_t quad = 0; quad < kQuads; ++quad)
        count[k][quad] += reinterpret_cast<Quad>((number[quad] == lowest) & reinterpret_cast<Bits>(one));
      const auto chosen = static_cast<std::size_t>(lowest[0]);
      stretches[k].dataset_index[i] = static_cast<std::int16_t>(chosen);
      stretches[k].sample_index[i] = stretches[k].given[chosen]++;
    }
  }
  for (std::size_t k = 0; k < kStretches; ++k)
    for (std::size_t quad = 0; quad < kQuads; ++quad)
      for (std::size_t lane = 0; lane < 4; ++lane) stretches[k].count[4 * quad + lane] = count[k][quad][lane];
}

// The same among any number of datasets, whose counts do not fit into registers. A count that was written is read again
// when the other stretches have had their turn.
template <std::size_t kStretches>
TOKENLOOM_CLONES void choose_among(const double* weights, std::size_t num_quads, std::int64_t size,
                                   const std::array<FewStretch, kStretches>& stretches) {
  typedef double Quad __attribute__((vector_size(32)));
  typedef std::int64_t Numbers __attribute__((vector_size(32)));
  for (std::int64_t i = 0; i < size; ++i) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kStretches; ++k) {
      const double time = static_cast<double>(std::max<std::int64_t>(stretches[k].step + i, 1));
      const Quad times = {time, time, time, time};
      const double* const count = stretches[k].count;
      const auto find_error = [&](std::size_t quad, Quad& error) __attribute__((always_inline)) {
        Quad weight, given;  // copied, because nothing aligns them
        std::memcpy(&weight, weights + 4 * quad, sizeof weight);
        std::memcpy(&given, count + 4 * quad, sizeof given);
        const Quad product = weight * times;
        error = product - given;
      };
      Numbers number[2] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
      Numbers lowest[2] = {number[0], number[1]};
      Quad best[2];
      find_error(0, best[0]);
      find_error(1, best[1]);
      for (std::size_t quad = 2; quad < num_quads; quad += 2)
#pragma GCC unroll 2
        for (std::size_t side = 0; side < 2; ++side) {  // two chains, as each waits for itself
          number[side] += 8;
          Quad error;
          find_error(quad + side, error);
          const Numbers is_better = error > best[side];  // of equals the lowest number wins
          best[side] = is_better ? error : best[side];
          lowest[side] = is_better ? number[side] : lowest[side];
        }
      const auto take_better = [&](const Quad& error, const Numbers& numbers) __attribute__((always_inline)) {
        const Numbers is_better = (error > best[0]) | ((error == best[0]) & (numbers < lowest[0]));
        best[0] = is_better ? error : best[0];
        lowest[0] = is_better ? numbers : lowest[0];
      };
      take_better(best[1], lowest[1]);
      take_better(Quad{best[0][2], best[0][3], best[0][0], best[0][1]},
                  Numbers{lowest[0][2], lowest[0][3], lowest[0][0], lowest[0][1]});
      take_better(Quad{best[0][1], best[0][0], best[0][3], best[0][2]},
                  Numbers{lowest[0][1], lowest[0][0], lowest[0][3], lowest[0][2]});
      const auto chosen = static_cast<std::size_t>(lowest[0][0]);
      stretches[k].dataset_index[i] = static_cast<std::int16_t>(chosen);
      stretches[k].sample_index[i] = stretches[k].given[chosen]++;
      stretches[k].count[chosen] += 1.0;
    }
  }
}

class FewBlend {
 public:
  static constexpr std::size_t kMost = 256;    // datasets; from there on putting them aside is faster
  static constexpr std::size_t kTogether = 4;  // stretches in turn

  // By weight: each dataset exactly sizes[i] times, or without end if there are no sizes. Goes on where `step` samples
  // were given, `given[i]` of them by dataset i.
  FewBlend(std::span<const double> weights, std::span<const std::int64_t> sizes, std::int64_t step,
           std::span<const std::int64_t> given)
      : size_(weights.size()), step_(step), has_limits_(!sizes.empty()) {
    count_.fill(std::numeric_limits<double>::infinity());
    std::copy(weights.begin(), weights.end(), weight_.begin());
    std::copy(given.begin(), given.end(), given_.begin());
    if (has_limits_) std::copy(sizes.begin(), sizes.end(), limit_.begin());
    for (std::size_t i = 0; i < size_; ++i)
      if (!has_limits_ || given_[i] < limit_[i]) count_[i] = static_cast<double>(given_[i]);
  }

  // Chooses the next `size` samples of each blend, all of the same weights: whose they are, and how many it gave before.
  static void fill(std::span<FewBlend* const> blends, std::int64_t size, std::int16_t* const* dataset_index,
                   std::int64_t* const* sample_index) {
    for (std::int64_t done = 0; done < size;) {
      std::int64_t stride = size - done;
      for (FewBlend* blend : blends) stride = std::min(stride, blend->steps_without_end());
      std::array<FewStretch, kTogether> stretches;
      for (std::size_t k = 0; k < blends.size(); ++k)
        stretches[k] = {blends[k]->step_, blends[k]->count_.data(), blends[k]->given_.data(), dataset_index[k] + done,
                        sample_index[k] + done};
      if (blends.size() == kTogether) {
        blends[0]->choose(stride, stretches);
      } else {
        for (std::size_t k = 0; k < blends.size(); ++k)
          blends[k]->choose(stride, std::array<FewStretch, 1>{stretches[k]});
      }
      for (FewBlend* blend : blends) blend->pass(stride);
      done += stride;
    }
  }

  // As `fill`, without writing anything.
  static void skip(std::span<FewBlend* const> blends, std::int64_t size) {
    constexpr std::int64_t kAtOnce = 1024;
    std::array<std::array<std::int16_t, kAtOnce>, kTogether> datasets;
    std::array<std::array<std::int64_t, kAtOnce>, kTogether> samples;
    std::array<std::int16_t*, kTogether> dataset_index;
    std::array<std::int64_t*, kTogether> sample_index;
    for (std::size_t k = 0; k < kTogether; ++k) {
      dataset_index[k] = datasets[k].data();
      sample_index[k] = samples[k].data();
    }
    for (std::int64_t done = 0; done < size; done += kAtOnce)
      fill(blends, std::min(kAtOnce, size - done), dataset_index.data(), sample_index.data());
  }

  // Samples that each dataset has given so far.
  void counts(std::span<std::int64_t> out) const { std::copy_n(given_.begin(), size_, out.begin()); }

 private:
  template <std::size_t kStretches>
  void choose(std::int64_t size, const std::array<FewStretch, kStretches>& stretches) const {
    const double* weights = weight_.data();
    if (size_ <= 4) return choose_among_few<1>(weights, size, stretches);
    if (size_ <= 8) return choose_among_few<2>(weights, size, stretches);
    if (size_ <= 12) return choose_among_few<3>(weights, size, stretches);
    if (size_ <= 16) return choose_among_few<4>(weights, size, stretches);
    choose_among(weights, (size_ + 7) / 8 * 2, size, stretches);
  }

  // Steps in which no dataset can give more than it has.
  std::int64_t steps_without_end() const {
    if (!has_limits_) return std::numeric_limits<std::int64_t>::max();
    std::int64_t least = 0;
    for (std::size_t i = 0; i < size_; ++i)
      if (const std::int64_t left = limit_[i] - given_[i]; left > 0 && (least == 0 || left < least)) least = left;
    if (least == 0) throw std::out_of_range("no dataset has samples left");
    return least;
  }

  void pass(std::int64_t steps) {
    step_ += steps;
    if (!has_limits_) return;
    for (std::size_t i = 0; i < size_; ++i)
      if (given_[i] == limit_[i]) count_[i] = std::numeric_limits<double>::infinity();
  }

  std::size_t size_;
  std::int64_t step_;
  bool has_limits_;
  std::array<double, kMost> weight_{};
  std::array<double, kMost> count_;
  std::array<std::int64_t, kMost> given_{};
  std::array<std::int64_t, kMost> limit_{};
};

}  // namespace tokenloom
