// The greedy blend of Megatron-Core, exactly, at a cost per sample that grows like the square root of the datasets.
//
// At step s the dataset with the largest error fl(fl(w * max(s, 1)) - count) gives the next sample; ties go to the lowest
// number. Trying all of them costs O(datasets) per sample: 1.7 us at 1000. Two facts make almost all of that needless.
//
// Datasets of equal weight take turns: only the one with the least count, then the lowest number, can win. So classes of
// equal weight compete, not datasets.
//
// Errors of winners lie in a narrow band near the top (about 1/sqrt(datasets) wide), and a loser's error is a rising
// function of s alone until it wins: rounding is monotone. So below a threshold under that band, a class can be put
// aside until a step before which it provably cannot reach the threshold. As long as the winner is at or above the
// threshold, every class put aside is strictly below the winner, and the choice is the reference's, rounding and ties
// included. When a winner falls below it, everything is looked at anew and the threshold is lowered.
//
// Compile with contraction off: a fused multiply-add rounds once where the reference rounds twice.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tokenloom {

class Blend {
 public:
  static constexpr std::size_t kTogether = 1;  // blends that gain from being filled in turn

  // By weight: each dataset exactly sizes[i] times, or without end if there are no sizes. Goes on where `step` samples
  // were given, `given[i]` of them by dataset i.
  Blend(std::span<const double> weights, std::span<const std::int64_t> sizes, std::int64_t step,
        std::span<const std::int64_t> given) {
    group(weights, sizes);
    step_ = step;
    for (Class& each : classes_) {
      std::int64_t total = 0;
      for (const std::int64_t member : each.members) total += given[static_cast<std::size_t>(member)];
      const auto num_members = static_cast<std::int64_t>(each.members.size());
      each.count = total / num_members;
      each.head = static_cast<std::size_t>(total % num_members);  // they take turns
      each.id = each.members[each.head];
      if (each.count == each.limit) {
        each.alive = false;
        --num_alive_;
      }
    }
    look_at_all();
  }

  // Chooses the next `size` samples of each blend: whose they are, and how many it gave before.
  template <typename DatasetId>
  static void fill(std::span<Blend* const> blends, std::int64_t size, DatasetId* const* dataset_index,
                   std::int64_t* const* sample_index) {
    for (std::size_t k = 0; k < blends.size(); ++k)
      for (std::int64_t i = 0; i < size; ++i) {
        const auto [dataset, count] = blends[k]->take(blends[k]->next());
        dataset_index[k][i] = static_cast<DatasetId>(dataset);
        sample_index[k][i] = count;
      }
  }

  // As `fill`, without writing anything.
  static void skip(std::span<Blend* const> blends, std::int64_t size) {
    for (Blend* blend : blends)
      for (std::int64_t i = 0; i < size; ++i) blend->take(blend->next());
  }

  // Samples that each dataset has given so far.
  void counts(std::span<std::int64_t> out) const {
    for (const Class& each : classes_)
      for (std::size_t i = 0; i < each.members.size(); ++i)
        out[static_cast<std::size_t>(each.members[i])] = each.count + (i < each.head ? 1 : 0);
  }

 private:
  static constexpr std::size_t kLanes = 4;
  static constexpr std::int64_t kNeverStep = std::numeric_limits<std::int64_t>::max();
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr std::size_t kFew = 16;  // so few classes are all tried at every step

  struct Class {
    double weight;
    double steps_per_sample;
    std::int64_t limit;  // samples per member, -1 without end
    std::int64_t count;  // samples that the head gave
    std::size_t head;    // whose turn it is, within members
    std::int64_t next;   // in its bucket of the calendar
    bool alive;
    std::int64_t id;  // of the head
    std::vector<std::int64_t> members;
  };

  void group(std::span<const double> weights, std::span<const std::int64_t> sizes) {
    std::unordered_map<double, std::size_t> known;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto [entry, is_new] = known.try_emplace(weights[i], classes_.size());
      if (is_new) classes_.push_back(
          {weights[i], 1.0 / weights[i], sizes.empty() ? -1 : sizes[i], 0, 0, -1, true, static_cast<std::int64_t>(i), {}});
      classes_[entry->second].members.push_back(static_cast<std::int64_t>(i));
    }
    num_alive_ = classes_.size();
    buckets_.assign(2, -1);
    while (buckets_.size() < 2 * classes_.size()) buckets_.resize(2 * buckets_.size(), -1);
    look_at_all();
  }

  // --- candidates: the classes tried at every step, in padded columns -------------------------------------------

  void push_candidate(std::size_t number) {
    if (num_candidates_ == weight_.size()) {
      weight_.resize(num_candidates_ + kLanes, 0.0);
      count_.resize(num_candidates_ + kLanes, kNever);
      id_.resize(num_candidates_ + kLanes, kNever);
      class_of_.resize(num_candidates_ + kLanes, 0);
      scratch_.resize(num_candidates_ + kLanes);
    }
    weight_[num_candidates_] = classes_[number].weight;
    class_of_[num_candidates_] = number;
    ++num_candidates_;
    refresh(num_candidates_ - 1);
  }

  void refresh(std::size_t slot) {
    const Class& chosen = classes_[class_of_[slot]];
    count_[slot] = static_cast<double>(chosen.count);
    id_[slot] = static_cast<double>(chosen.id);
  }

  void drop_candidate(std::size_t slot) {
    --num_candidates_;
    weight_[slot] = weight_[num_candidates_];
    count_[slot] = count_[num_candidates_];
    id_[slot] = id_[num_candidates_];
    class_of_[slot] = class_of_[num_candidates_];
    weight_[num_candidates_] = 0.0;
    count_[num_candidates_] = kNever;
    id_[num_candidates_] = kNever;
  }

  // The slot with the largest error, the lowest dataset on ties; its error in `best_error_`. Two passes, neither with a
  // branch on data: which slot wins is as good as random, and a misprediction costs more than a scan.
  std::size_t scan(double time) {
    const std::size_t padded = weight_.size();
#if defined(__SSE2__)
    const __m128d now = _mm_set1_pd(time);
    __m128d even = _mm_set1_pd(-kNever);
    __m128d odd = even;
    const auto error_at = [&](std::size_t i) {
      const __m128d product = _mm_mul_pd(_mm_loadu_pd(weight_.data() + i), now);
      const __m128d error = _mm_sub_pd(product, _mm_loadu_pd(count_.data() + i));
      _mm_storeu_pd(scratch_.data() + i, error);
      return error;
    };
    for (std::size_t i = 0; i < padded; i += kLanes) {
      even = _mm_max_pd(error_at(i), even);
      odd = _mm_max_pd(error_at(i + 2), odd);
    }
    even = _mm_max_pd(even, odd);
    even = _mm_max_sd(even, _mm_unpackhi_pd(even, even));
    best_error_ = _mm_cvtsd_f64(even);
    if (padded <= 64) {
      const __m128d best = _mm_set1_pd(best_error_);
      std::uint64_t matches = 0;
      for (std::size_t i = 0; i < padded; i += 2) {
        const __m128d equal = _mm_cmpeq_pd(_mm_loadu_pd(scratch_.data() + i), best);
        matches |= static_cast<std::uint64_t>(_mm_movemask_pd(equal)) << i;
      }
      if (std::has_single_bit(matches)) return static_cast<std::size_t>(std::countr_zero(matches));
    }
#else
    best_error_ = -kNever;
    for (std::size_t i = 0; i < padded; ++i) {
      const double product = weight_[i] * time;
      scratch_[i] = product - count_[i];
      best_error_ = scratch_[i] > best_error_ ? scratch_[i] : best_error_;
    }
#endif
    return lowest_of_equal();
  }

  // The same for few classes: guessing the winner from the last one (a branch) beats waiting for all of them.
  std::size_t scan_few(double time) const {
    std::size_t slot = 0;
    double best = -kNever;
    for (std::size_t i = 0; i < num_candidates_; ++i) {
      const double product = weight_[i] * time;
      const double error = product - count_[i];
      if (error > best || (error == best && id_[i] < id_[slot])) {
        best = error;
        slot = i;
      }
    }
    return slot;
  }

  // A tie: the lowest dataset of those with the best error.
  std::size_t lowest_of_equal() const {
    std::size_t slot = 0;
    double lowest = kNever;
    for (std::size_t i = 0; i < num_candidates_; ++i)
      if (scratch_[i] == best_error_ && id_[i] < lowest) {
        lowest = id_[i];
        slot = i;
      }
    return slot;
  }

  // --- the calendar of classes put aside ------------------------------------------------------------------------

  // A step before which the class stays below the threshold. One step early, which covers the rounding of this very
  // computation up to 2^50 steps; never, beyond that.
  std::int64_t wake_step(const Class& chosen) const {
    const double missing = threshold_ + static_cast<double>(chosen.count);
    if (missing <= 0.0) return 0;
    const double step = missing * chosen.steps_per_sample;  // infinite for a weight of zero
    return step < 0x1p50 ? static_cast<std::int64_t>(step) - 1 : kNeverStep;
  }

  // Puts a class aside until `wake`; false if that is now.
  bool put_aside(std::size_t number, std::int64_t wake) {
    if (wake <= step_ + 1) return false;
    if (wake >= step_ + static_cast<std::int64_t>(buckets_.size())) {
      far_.push_back({wake, number});
    } else {
      std::int64_t& bucket = buckets_[static_cast<std::size_t>(wake) & (buckets_.size() - 1)];
      classes_[number].next = bucket;
      bucket = static_cast<std::int64_t>(number);
    }
    return true;
  }

  void wake_up() {
    if ((static_cast<std::size_t>(step_) & (buckets_.size() / 2 - 1)) == 0) {
      std::vector<Far> far;
      far.swap(far_);
      for (const Far& entry : far)
        if (!put_aside(entry.number, entry.wake)) push_candidate(entry.number);
    }
    std::int64_t& bucket = buckets_[static_cast<std::size_t>(step_) & (buckets_.size() - 1)];
    for (std::int64_t number = bucket; number >= 0; number = classes_[static_cast<std::size_t>(number)].next)
      push_candidate(static_cast<std::size_t>(number));
    bucket = -1;
  }

  // Chooses threshold and candidates anew from all classes.
  void look_at_all() {
    num_candidates_ = 0;
    weight_.clear();
    count_.clear();
    id_.clear();
    class_of_.clear();
    std::fill(buckets_.begin(), buckets_.end(), -1);
    far_.clear();
    few_ = num_alive_ <= kFew;
    if (!few_) {
      const double time = static_cast<double>(std::max<std::int64_t>(step_, 1));
      errors_.clear();
      for (const Class& each : classes_)
        if (each.alive) {
          const double product = each.weight * time;
          errors_.push_back(product - static_cast<double>(each.count));
        }
      const auto wanted = std::min(errors_.size(), static_cast<std::size_t>(
                                                       generosity_ * std::sqrt(static_cast<double>(num_alive_)))) - 1;
      std::nth_element(errors_.begin(), errors_.begin() + static_cast<std::ptrdiff_t>(wanted), errors_.end(),
                       std::greater<>());
      threshold_ = errors_[wanted];
    }
    for (std::size_t number = 0; number < classes_.size(); ++number) {
      if (!classes_[number].alive) continue;
      if (few_ || !put_aside(number, wake_step(classes_[number]))) push_candidate(number);
    }
    most_candidates_ = 2 * num_candidates_ + kLanes;
    last_look_ = step_;
  }

  std::size_t next() {
    const double time = static_cast<double>(std::max<std::int64_t>(step_, 1));
    if (num_alive_ == 0) throw std::out_of_range("no dataset has samples left");
    if (few_) return scan_few(time);
    wake_up();
    // A threshold that held for long is higher next time: a shorter list at every step for a look at all now and then.
    if (step_ - last_look_ > 2 * static_cast<std::int64_t>(classes_.size())) {
      generosity_ = std::max(generosity_ / 1.1, 0.3);
      look_at_all();
    } else if (num_candidates_ > most_candidates_) {
      look_at_all();
    }
    std::size_t slot = scan(time);
    if (!(best_error_ >= threshold_)) {
      generosity_ = std::min(generosity_ * 1.15, std::sqrt(static_cast<double>(num_alive_)));
      look_at_all();
      slot = scan(time);
    }
    return slot;
  }

  struct Choice {
    std::int64_t dataset;
    std::int64_t count;
  };

  Choice take(std::size_t slot) {
    const std::size_t number = class_of_[slot];
    Class& chosen = classes_[number];
    const Choice choice{chosen.id, chosen.count};
    const bool all_had_it = ++chosen.head == chosen.members.size();
    if (all_had_it) chosen.head = 0;
    chosen.id = chosen.members[chosen.head];
    if (all_had_it) {
      ++chosen.count;
      if (chosen.count == chosen.limit) {
        chosen.alive = false;
        --num_alive_;
        drop_candidate(slot);
        ++step_;
        if (num_alive_ == kFew) look_at_all();
        return choice;
      }
      if (!few_ && put_aside(number, wake_step(chosen))) {
        drop_candidate(slot);
        ++step_;
        return choice;
      }
    }
    refresh(slot);
    ++step_;
    return choice;
  }

  struct Far {
    std::int64_t wake;
    std::size_t number;
  };

  std::vector<Class> classes_;
  std::size_t num_alive_ = 0;
  std::int64_t step_ = 0;
  bool few_ = true;
  double threshold_ = 0.0;
  double generosity_ = 1.5;  // candidates after a look at all, in square roots of the number of classes
  double best_error_ = 0.0;
  std::int64_t last_look_ = 0;

  std::size_t num_candidates_ = 0;
  std::size_t most_candidates_ = 0;
  std::vector<double> weight_, count_, id_, scratch_;
  std::vector<std::size_t> class_of_;
  std::vector<std::int64_t> buckets_;
  std::vector<Far> far_;
  std::vector<double> errors_;
};

}  // namespace tokenloom
