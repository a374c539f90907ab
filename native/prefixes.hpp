// Sequences depth first by the prefixes they share, and where such an order is cut into pieces.
//
// In depth-first order a sequence shares most with the one before it, so two numbers per sequence are the whole forest:
// its length, and how many tokens it shares with the sequence before. A token is compared once: tokens behind the place
// where a sequence leaves all others are never read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

namespace tokenloom {

template <typename Token>
std::int64_t shared_tokens(std::span<const Token> left, std::span<const Token> right, std::int64_t from) {
  constexpr std::int64_t kChunk = 256 / sizeof(Token);
  const auto stop = static_cast<std::int64_t>(std::min(left.size(), right.size()));
  while (from + kChunk <= stop && std::memcmp(left.data() + from, right.data() + from, 256) == 0) from += kChunk;
  while (from < stop && left[static_cast<std::size_t>(from)] == right[static_cast<std::size_t>(from)]) ++from;
  return from;
}

// Writes the order, and what each shares with the one before. The first of equal beginnings comes first, then those that
// leave it latest; those that leave it at one place, by their next token, in the order in which these tokens come.
template <typename Token>
void order_by_prefix(std::span<const std::span<const Token>> sequences, std::span<std::int64_t> order,
                     std::span<std::int64_t> shared) {
  struct Group {
    std::size_t begin, end;
    std::int64_t depth;  // tokens that all of the group share
  };
  struct Leaver {
    std::int64_t depth;   // where it leaves the first of the group
    std::int64_t leader;  // the first sequence with its next token; -1 where it has none
    Token token;
    std::int64_t number;
  };
  const auto at = [&](std::int64_t number) { return sequences[static_cast<std::size_t>(number)]; };
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::vector<Group> groups{{0, order.size(), 0}};
  std::vector<Leaver> leavers;
  while (!groups.empty()) {
    const Group group = groups.back();
    groups.pop_back();
    if (group.end - group.begin < 2) continue;
    const auto first = at(order[group.begin]);
    leavers.clear();
    for (std::size_t i = group.begin + 1; i < group.end; ++i) {
      const auto sequence = at(order[i]);
      const std::int64_t depth = shared_tokens(first, sequence, group.depth);
      const bool ends = depth == static_cast<std::int64_t>(sequence.size());
      leavers.push_back({depth, ends ? -1 : 0, ends ? Token{} : sequence[static_cast<std::size_t>(depth)], order[i]});
    }
    std::sort(leavers.begin(), leavers.end(), [](const Leaver& left, const Leaver& right) {
      return std::tuple(-left.depth, left.leader, left.token, left.number) <
             std::tuple(-right.depth, right.leader, right.token, right.number);
    });
    for (std::size_t i = 0; i < leavers.size(); ++i) {
      if (leavers[i].leader < 0) continue;
      const bool follows = i > 0 && leavers[i - 1].depth == leavers[i].depth && leavers[i - 1].leader >= 0 &&
                           leavers[i - 1].token == leavers[i].token;
      leavers[i].leader = follows ? leavers[i - 1].leader : leavers[i].number;
    }
    std::sort(leavers.begin(), leavers.end(), [](const Leaver& left, const Leaver& right) {
      return std::tuple(-left.depth, left.leader, left.number) < std::tuple(-right.depth, right.leader, right.number);
    });
    for (std::size_t i = 0; i < leavers.size();) {
      std::size_t end = i + 1;
      while (end < leavers.size() && leavers[end].depth == leavers[i].depth && leavers[end].leader == leavers[i].leader) ++end;
      for (std::size_t k = i; k < end; ++k) {
        order[group.begin + 1 + k] = leavers[k].number;
        shared[group.begin + 1 + k] = leavers[k].depth;
      }
      if (leavers[i].leader >= 0) groups.push_back({group.begin + 1 + i, group.begin + 1 + end, leavers[i].depth + 1});
      i = end;
    }
  }
  if (!shared.empty()) shared[0] = 0;
}

// Pieces of trees: runs of sequences in depth-first order, none over two trees.
struct CuttingTask {
  std::span<const std::int64_t> lengths;  // of the sequences in depth-first order, none above the capacity
  std::span<const std::int64_t> shared;   // with the sequence before; 0 where a tree begins
  std::span<const std::int64_t> costs;    // of each sequence alone
  std::span<const std::int64_t> prefix_costs;  // of what it shares
  std::int64_t capacity;                  // tokens of a piece, at most
  std::int64_t limit;                     // cost of a piece, at most, but for single sequences
};

// Returns where pieces begin, such that the fewest tokens are repeated: a piece repeats what its first sequence shares
// with the one before.
inline std::vector<std::int64_t> cut_forest(const CuttingTask& task) {
  const std::size_t count = task.lengths.size();
  std::vector<std::int64_t> repeated(count + 1, 0);  // least number of tokens with the sequences before
  std::vector<std::size_t> begin(count + 1, 0);      // of the last piece
  std::deque<std::size_t> best;                      // where that piece may begin, fewest repeated tokens first
  std::int64_t tokens = 0;                           // of the sequences from `first` on
  std::int64_t cost = 0;
  std::size_t first = 0;
  const auto with = [&](std::size_t i) { return repeated[i] + task.shared[i]; };
  for (std::size_t last = 0; last < count; ++last) {
    if (task.shared[last] == 0) {
      first = last;
      tokens = cost = 0;
      best.clear();
    }
    tokens += task.lengths[last] - (last == first ? 0 : task.shared[last]);
    cost += task.costs[last] - (last == first ? 0 : task.prefix_costs[last]);
    while (!best.empty() && with(best.back()) > with(last)) best.pop_back();
    best.push_back(last);
    while (first < last && (tokens > task.capacity || cost > task.limit)) {
      tokens -= task.lengths[first] - task.shared[first + 1];
      cost -= task.costs[first] - task.prefix_costs[first + 1];
      if (best.front() == first) best.pop_front();
      ++first;
    }
    begin[last + 1] = best.front();
    repeated[last + 1] = with(best.front());
  }
  std::vector<std::int64_t> begins;
  for (std::size_t end = count; end > 0; end = begin[end]) begins.push_back(static_cast<std::int64_t>(begin[end]));
  std::reverse(begins.begin(), begins.end());
  return begins;
}

// Returns where runs of the whole forest begin, over trees too, such that the costliest costs least; at most so many.
// Empty, if not all fit into so many runs of the capacity.
inline std::vector<std::int64_t> cut_evenly(const CuttingTask& task, std::int64_t most_runs) {
  const auto cut = [&](std::int64_t limit, std::vector<std::int64_t>& begins) {
    begins.clear();
    std::int64_t tokens = 0;
    std::int64_t cost = 0;
    for (std::size_t i = 0; i < task.lengths.size(); ++i) {
      tokens += task.lengths[i] - task.shared[i];
      cost += task.costs[i] - task.prefix_costs[i];
      if (i > 0 && tokens <= task.capacity && cost <= limit) continue;
      tokens = task.lengths[i];
      cost = task.costs[i];
      begins.push_back(static_cast<std::int64_t>(i));
      if (static_cast<std::int64_t>(begins.size()) > most_runs) return false;
    }
    return true;
  };
  std::vector<std::int64_t> begins;
  std::int64_t low = *std::max_element(task.costs.begin(), task.costs.end());
  std::int64_t high = std::accumulate(task.costs.begin(), task.costs.end(), std::int64_t{0});
  if (!cut(high, begins)) return {};
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (cut(middle, begins)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  cut(low, begins);
  return begins;
}

}  // namespace tokenloom
