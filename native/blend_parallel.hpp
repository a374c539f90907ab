// A blend by several threads, exactly.
//
// What a blend does from step s on depends on nothing but how many samples each dataset has given by then, and it forgets
// small differences: started from counts that are about right, it soon does what it would have done from the exact ones
// (mostly within a few thousand steps, whatever the weights). So each thread fills a segment of its own, from counts that
// are guessed some way before the segment. Afterwards, in order, the counts with which a segment began are compared with
// those with which the one before it ended. Where they are equal the segment is exact; where not, it is filled again from
// the exact counts, up to the step at which the two meet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "blend.hpp"
#include "blend_few.hpp"

namespace tokenloom {

// About how many samples each dataset has given in the first `step` steps; they add up to that.
inline std::vector<std::int64_t> guess_counts(std::span<const double> weights, std::span<const std::int64_t> sizes,
                                              std::int64_t step) {
  std::vector<std::int64_t> counts(weights.size());
  std::vector<double> fractions(weights.size());
  std::int64_t missing = step;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] * static_cast<double>(step);
    counts[i] = static_cast<std::int64_t>(share);
    if (!sizes.empty()) counts[i] = std::min(counts[i], sizes[i]);
    fractions[i] = share - static_cast<double>(counts[i]);
    missing -= counts[i];
  }
  std::vector<std::size_t> by_fraction(weights.size());
  std::iota(by_fraction.begin(), by_fraction.end(), std::size_t{0});
  std::sort(by_fraction.begin(), by_fraction.end(), [&](std::size_t left, std::size_t right) {
    return fractions[left] != fractions[right] ? fractions[left] > fractions[right] : left < right;
  });
  for (const std::size_t i : by_fraction)
    if (missing > 0 && (sizes.empty() || counts[i] < sizes[i])) {
      ++counts[i];
      --missing;
    }
  return counts;
}

// Calls `run(blends, begins, size)` for pieces that cover [0, size): each blend chooses the next `size` samples, which are
// those from its begin on. Pieces of different segments run at once, and some run again: the last run of each is the
// exact one. Returns how many samples each dataset gave.
template <typename AnyBlend, typename Run>
std::vector<std::int64_t> blend_in_parallel(std::span<const double> weights, std::span<const std::int64_t> sizes,
                                            std::int64_t size, std::int64_t num_threads, std::int64_t warm_up,
                                            const Run& run) {
  struct Segment {
    std::int64_t begin, end;
    std::vector<std::int64_t> first, last;  // what each dataset had given at both ends; empty where that failed
  };
  const auto counts_of = [&](const AnyBlend& blend) {
    std::vector<std::int64_t> counts(weights.size());
    blend.counts(counts);
    return counts;
  };
  const auto run_one = [&](AnyBlend& blend, std::int64_t begin, std::int64_t end) {
    AnyBlend* const one = &blend;
    run(std::span<AnyBlend* const>(&one, 1), std::span<const std::int64_t>(&begin, 1), end - begin);
  };
  const auto skip_one = [](AnyBlend& blend, std::int64_t steps) {
    AnyBlend* const one = &blend;
    AnyBlend::skip(std::span<AnyBlend* const>(&one, 1), steps);
  };
  const auto fill = [&](std::span<Segment> together) {
    std::vector<AnyBlend> blends;
    std::vector<AnyBlend*> each;
    std::vector<std::int64_t> begins;
    blends.reserve(together.size());
    for (Segment& segment : together) {
      const std::int64_t start = std::max<std::int64_t>(segment.begin - warm_up, 0);
      blends.emplace_back(weights, sizes, start, guess_counts(weights, sizes, start));
      skip_one(blends.back(), segment.begin - start);
      segment.first = counts_of(blends.back());
      each.push_back(&blends.back());
      begins.push_back(segment.begin);
    }
    const std::int64_t shared = together[0].end - together[0].begin;  // the last one may be longer
    run(std::span<AnyBlend* const>(each), std::span<const std::int64_t>(begins), shared);
    Segment& last = together.back();
    run_one(blends.back(), last.begin + shared, last.end);
    for (std::size_t i = 0; i < together.size(); ++i) together[i].last = counts_of(blends[i]);
  };
  const auto try_to_fill = [&](std::span<Segment> together) {
    try {
      fill(together);
    } catch (...) {  // such as a guess that ran out of samples: these are filled again
      for (Segment& segment : together) segment.first.clear();
    }
  };
  // A stretch that is hardly longer than what it needs to begin gains nothing from others beside it.
  const auto at_once = static_cast<std::int64_t>(AnyBlend::kTogether);
  const std::int64_t together = size / (num_threads * at_once) >= 4 * warm_up ? at_once : 1;
  const std::int64_t num_segments = num_threads * together;
  std::vector<Segment> segments;
  for (std::int64_t i = 0; i < num_segments; ++i)
    segments.push_back(
        {size / num_segments * i, i + 1 < num_segments ? size / num_segments * (i + 1) : size, {}, {}});
  {
    std::vector<std::jthread> threads;
    const auto group = [&](std::int64_t i) {
      return std::span<Segment>(segments).subspan(static_cast<std::size_t>(i * together),
                                                  static_cast<std::size_t>(together));
    };
    for (std::int64_t i = 1; i < num_threads; ++i) threads.emplace_back([&try_to_fill, own = group(i)] { try_to_fill(own); });
    try_to_fill(group(0));
  }
  std::vector<std::int64_t> exact_counts(weights.size());
  for (Segment& segment : segments) {
    if (segment.first == exact_counts) {
      exact_counts = segment.last;
      continue;
    }
    AnyBlend exact(weights, sizes, segment.begin, exact_counts);
    if (segment.first.empty()) {
      run_one(exact, segment.begin, segment.end);
      exact_counts = counts_of(exact);
      continue;
    }
    AnyBlend assumed(weights, sizes, segment.begin, segment.first);
    std::int64_t stride = 4096;
    for (std::int64_t at = segment.begin; at < segment.end; stride *= 2) {
      const std::int64_t next = at + std::min(stride, segment.end - at);
      run_one(exact, at, next);
      skip_one(assumed, next - at);
      at = next;
      exact_counts = counts_of(exact);
      if (exact_counts == counts_of(assumed)) {
        exact_counts = segment.last;
        break;
      }
    }
  }
  return exact_counts;
}

// Whether the datasets are few, and differ: of equal ones only one can win, which `Blend` makes use of.
inline bool are_few(std::span<const double> weights) {
  if (weights.size() > FewBlend::kMost) return false;
  std::vector<double> sorted(weights.begin(), weights.end());
  std::sort(sorted.begin(), sorted.end());
  const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
  return weights.size() <= 16 || distinct >= 4;
}

}  // namespace tokenloom
