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

// Calls `run(blend, begin, end)` for pieces that cover [0, size); each has its blend choose the samples of that piece.
// Pieces of different segments run at once, and some run again: the last run of each is the exact one. Returns how many
// samples each dataset gave.
template <typename Run>
std::vector<std::int64_t> blend_in_parallel(std::span<const double> weights, std::span<const std::int64_t> sizes,
                                            std::int64_t size, std::int64_t num_threads, std::int64_t warm_up,
                                            const Run& run) {
  struct Segment {
    std::int64_t begin, end;
    std::vector<std::int64_t> first, last;  // what each dataset had given at both ends
  };
  const auto counts_of = [&](const Blend& blend) {
    std::vector<std::int64_t> counts(weights.size());
    blend.counts(counts);
    return counts;
  };
  const auto fill = [&](Segment& segment) {
    const std::int64_t start = std::max<std::int64_t>(segment.begin - warm_up, 0);
    Blend blend(weights, sizes, start, guess_counts(weights, sizes, start));
    blend.skip(segment.begin - start);
    segment.first = counts_of(blend);
    run(blend, segment.begin, segment.end);
    segment.last = counts_of(blend);
  };
  std::vector<Segment> segments;
  for (std::int64_t i = 0; i < num_threads; ++i)
    segments.push_back({size / num_threads * i, i + 1 < num_threads ? size / num_threads * (i + 1) : size, {}, {}});
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < segments.size(); ++i)
      threads.emplace_back([&fill, &segment = segments[i]] {
        try {
          fill(segment);
        } catch (...) {  // such as a guess that ran out of samples: this segment is filled again
          segment.first.clear();
        }
      });
    fill(segments[0]);
  }
  std::vector<std::int64_t> exact_counts = segments[0].last;
  for (std::size_t i = 1; i < segments.size(); ++i) {
    Segment& segment = segments[i];
    if (segment.first == exact_counts) {
      exact_counts = segment.last;
      continue;
    }
    Blend exact(weights, sizes, segment.begin, exact_counts);
    if (segment.first.empty()) {
      run(exact, segment.begin, segment.end);
      exact_counts = counts_of(exact);
      continue;
    }
    Blend assumed(weights, sizes, segment.begin, segment.first);
    std::int64_t stride = 4096;
    for (std::int64_t at = segment.begin; at < segment.end; stride *= 2) {
      const std::int64_t next = at + std::min(stride, segment.end - at);
      run(exact, at, next);
      assumed.skip(next - at);
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

}  // namespace tokenloom
