// Which source each position of a mixture comes from, and which of that source's samples it is; and back. Computed in
// O(log sources) for any position, where the greedy blend of `blend.hpp` must walk through all positions before it.
//
// The sources are leaves of a Huffman tree over their weights. Of the first k positions that come to an inner node,
// round(k p / 2^64) go left, where p / 2^64 is the left side's share of the node, so position k goes left where that
// count rises from k to k + 1, and its place on its side is how many went there before. The place at the leaf is the
// sample. A node misses its share by 1/2 at most through its own rounding, and by its part of what the node above it
// misses. An uncle in a Huffman tree is no lighter than his nephews, so nodes upwards weigh at least 1, 2, 3, 5, 8, ...
// times a leaf, and the leaf misses its share by less than (1 + 1 + 1/2 + 1/3 + 1/5 + ...) / 2 = 1.68 samples, at any k.
// Where k times all shares are whole, the counts are exact, for k up to 2^60: a share is stored to 2^-65.
// A share follows from the ratio of the weights alone, never from a length: a longer mixture begins as a shorter one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "permutation.hpp"

namespace tokenloom {

class Mixture {
 public:
  static constexpr std::int64_t kMostWeight = std::int64_t{1} << 60;   // the sum of all weights
  static constexpr std::int64_t kPositions = std::int64_t{1} << 62;    // what `locate` takes and `position` gives is less

  // One positive weight per leaf.
  explicit Mixture(std::span<const std::int64_t> weights) {
    const std::size_t num_leaves = weights.size();
    if (num_leaves == 0 || num_leaves >= std::size_t{1} << 30) throw std::invalid_argument("expected 1 to 2**30 weights");
    num_inner_ = static_cast<std::uint32_t>(num_leaves - 1);
    nodes_.resize(2 * num_leaves - 1);
    parents_.resize(2 * num_leaves - 1);
    std::uint64_t sum = 0;
    std::vector<Root> roots;
    for (std::size_t i = 0; i < num_leaves; ++i) {
      if (weights[i] < 1 || weights[i] > kMostWeight) throw std::invalid_argument("expected weights in [1, 2**60]");
      sum += static_cast<std::uint64_t>(weights[i]);
      if (sum > static_cast<std::uint64_t>(kMostWeight)) throw std::invalid_argument("expected a sum of at most 2**60");
      const auto leaf = static_cast<std::uint32_t>(num_inner_ + i);
      nodes_[leaf] = {0, {leaf, leaf}};  // whoever is at a leaf stays there, at the same place
      roots.emplace_back(static_cast<std::uint64_t>(weights[i]), static_cast<std::uint32_t>(i), leaf);
    }
    std::priority_queue heaviest_last(std::greater<Root>{}, std::move(roots));
    const auto take = [&] {
      const Root lightest = heaviest_last.top();
      heaviest_last.pop();
      return lightest;
    };
    for (std::uint32_t node = num_inner_; node-- > 0;) {  // the root becomes node 0, heavy nodes are its neighbours
      const auto [left_weight, left_number, left] = take();
      const auto [right_weight, right_number, right] = take();
      const std::uint64_t weight = left_weight + right_weight;
      const Wide share = ((Wide{left_weight} << 65) + weight) / (Wide{weight} << 1);  // rounded, half up
      nodes_[node] = {static_cast<std::uint64_t>(share), {right, left}};
      parents_[left] = node << 1 | 1;
      parents_[right] = node << 1;
      heaviest_last.emplace(weight, std::min(left_number, right_number), node);
    }
  }

  std::size_t num_leaves() const { return num_inner_ + std::size_t{1}; }

  // The leaf and its sample of each position, all in [0, 2^62). The outputs are as long as what goes in; `takes` may be it.
  void locate(std::span<const std::int64_t> positions, std::int32_t* leaves, std::int64_t* takes) const {
    std::size_t i = 0;
    for (; i + kLanes <= positions.size(); i += kLanes) descend<kLanes>(positions.data() + i, leaves + i, takes + i);
    for (; i < positions.size(); ++i) descend<1>(positions.data() + i, leaves + i, takes + i);
  }

  // The position of a leaf's sample, both not negative; -1 from position 2^62 on.
  std::int64_t position(std::int32_t leaf, std::int64_t take) const {
    auto place = static_cast<std::uint64_t>(take);
    for (std::uint32_t node = num_inner_ + static_cast<std::uint32_t>(leaf); node != 0;) {
      const std::uint32_t parent = parents_[node];
      node = parent >> 1;
      const std::uint64_t share = nodes_[node].share;
      // Pick j of the left side is at the least k with (k + 1) p >= j 2^64 + 2^63, and of the right side at the least k
      // with (k + 1) (2^64 - p) > j 2^64 + 2^63.
      const std::uint64_t is_left = parent & 1;
      const std::uint64_t divisor = is_left ? share : -share;
      if (place >= divisor) return -1;  // the quotient has more than 64 bits
      place = static_cast<std::uint64_t>((Wide{place} << 64 | (kHalf - is_left)) / divisor);
    }
    return place < static_cast<std::uint64_t>(kPositions) ? static_cast<std::int64_t>(place) : -1;
  }

  // How many of the first `size` positions, at most 2^62, come from each leaf.
  void counts(std::int64_t size, std::span<std::int64_t> out) const {
    std::vector<std::int64_t> at(nodes_.size());
    at[0] = size;
    for (std::uint32_t node = 0; node < num_inner_; ++node) {  // parents come before their children
      const auto [share, children] = nodes_[node];
      const auto left = static_cast<std::int64_t>((Wide{static_cast<std::uint64_t>(at[node])} * share + kHalf) >> 64);
      at[children[1]] = left;
      at[children[0]] = at[node] - left;
    }
    std::copy(at.begin() + num_inner_, at.end(), out.begin());
  }

 private:
  __extension__ using Wide = unsigned __int128;
  using Root = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;  // weight, lowest leaf, node
  static constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
  static constexpr std::size_t kLanes = 8;  // positions that go down together: one alone waits for memory and products

  struct Node {
    std::uint64_t share;                    // of the left side, in 2^-64; 0 at a leaf
    std::array<std::uint32_t, 2> children;  // right, left
  };

  // All lanes go down until the last has come to its leaf, without a branch that depends on one position.
  template <std::size_t kCount>
  void descend(const std::int64_t* positions, std::int32_t* leaves, std::int64_t* takes) const {
    std::array<std::uint64_t, kCount> place;
    std::array<std::uint32_t, kCount> node{};
    for (std::size_t i = 0; i < kCount; ++i) place[i] = static_cast<std::uint64_t>(positions[i]);
    bool all_there = false;
    while (!all_there) {
      all_there = true;
      for (std::size_t i = 0; i < kCount; ++i) {
        const Node& at = nodes_[node[i]];
        const Wide product = Wide{place[i]} * at.share + kHalf;
        const auto left = static_cast<std::uint64_t>(product >> 64);
        const bool goes_left = static_cast<std::uint64_t>(product) + at.share < at.share;  // one more p, one more left
        place[i] = goes_left ? left : place[i] - left;
        node[i] = at.children[goes_left];
        all_there &= node[i] >= num_inner_;
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      leaves[i] = static_cast<std::int32_t>(node[i] - num_inner_);
      takes[i] = static_cast<std::int64_t>(place[i]);
    }
  }

  std::vector<Node> nodes_;             // inner nodes, the root first; then the leaves by number
  std::vector<std::uint32_t> parents_;  // of each node, times two; one more if it is the left child
  std::uint32_t num_inner_ = 0;
};

// A mixture whose positions are permuted within blocks, so that an even order does not beat with the topology of a run:
// of two equal sources on two ranks each rank would see one for ever. Offsets count from the position `start`; block b
// begins at offset b * block, the last one may be shorter and is permuted by its own length. What a block holds does not
// change. Any number of threads may ask at once.
class MixedStage {
 public:
  MixedStage(std::span<const std::int64_t> weights, std::int64_t start, std::int64_t size, std::int64_t block, Key key)
      : mixture_(weights), start_(start), size_(size), block_(block), key_(key), identity_(next_identity()) {
    if (start < 0 || size < 0 || size > Mixture::kPositions - start)
      throw std::invalid_argument("expected start and size from 0, and together at most 2**62");
    if (block < 1 || std::min(block, size) > kMostPermuted) throw std::invalid_argument("expected blocks of 1 to 2**60");
  }

  const Mixture& mixture() const { return mixture_; }
  std::int64_t size() const { return size_; }

  // The leaf and its sample of each offset, all in [0, size). The outputs are as long as what goes in; `takes` may be it.
  void locate(std::span<const std::int64_t> offsets, std::int32_t* leaves, std::int64_t* takes) const {
    if (block_ == 1) return mixture_.locate(offsets, leaves, takes);
    Block at;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      if (!at.holds(offsets[i])) at = block_of(offsets[i]);
      takes[i] = at.begin + (*at.permutation)(offsets[i] - at.begin);
    }
    mixture_.locate({takes, offsets.size()}, leaves, takes);
  }

  // The offset of each of these samples, -1 where it comes later than this stage.
  void offsets(std::span<const std::int32_t> leaves, std::span<const std::int64_t> takes, std::int64_t* out) const {
    Block at;
    for (std::size_t i = 0; i < takes.size(); ++i) {
      const std::int64_t position = mixture_.position(leaves[i], takes[i]);
      if (position < 0 || position >= size_) {
        out[i] = -1;
      } else if (block_ == 1) {
        out[i] = position;
      } else {
        if (!at.holds(position)) at = block_of(position);
        out[i] = at.begin + at.permutation->inverse(position - at.begin);
      }
    }
  }

 private:
  struct Block {
    std::int64_t begin = 0;
    std::int64_t length = 0;
    const Permutation* permutation = nullptr;

    bool holds(std::int64_t offset) const { return offset >= begin && offset - begin < length; }
  };

  // A permutation that this thread used lately: a table of 1,024 takes 3 us to make.
  struct Remembered {
    std::uint64_t stage = 0;
    std::int64_t begin = 0;
    std::optional<Permutation> permutation;
  };
  static constexpr std::size_t kRemembered = 16;  // 64 kB of tables per thread

  static std::uint64_t next_identity() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  // Valid until this thread asks again.
  Block block_of(std::int64_t offset) const {
    thread_local std::array<Remembered, kRemembered> remembered;
    const std::int64_t number = offset / block_;
    const std::int64_t begin = number * block_;
    const std::int64_t length = std::min(block_, size_ - begin);
    Remembered& slot = remembered[(static_cast<std::uint64_t>(number) + 5 * identity_) % kRemembered];
    if (slot.stage != identity_ || slot.begin != begin) {
      slot.stage = 0;  // in case there is no memory for the table
      slot.permutation.emplace(length, derive(key_, purpose::kMixing, static_cast<std::uint64_t>(start_ + begin)));
      slot.stage = identity_;
      slot.begin = begin;
    }
    return {begin, length, &*slot.permutation};
  }

  Mixture mixture_;
  std::int64_t start_;
  std::int64_t size_;
  std::int64_t block_;
  Key key_;
  std::uint64_t identity_;  // tells this stage from all others of the process, even those that are gone
};

}  // namespace tokenloom
