// Windows of a source without an index: a walk's order of pairs, blocks, documents and windows is computed.
//
// The stream of a walk: its pairs in an order of the walk, the blocks of each in an order of the walk, the documents of
// each block likewise; cut every `window_length` tokens, and the windows permuted. What is kept of a walk is a prefix sum
// per block of the pairs that were read, made when they are first read.
//
// Where windows of several lengths share a pass, the stream is cut into stretches as long as the longest of them, which
// are permuted. A walk over a part of the pass has windows of its length from some stretches on (`WindowOrder`).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "document_search.hpp"
#include "fork_locks.hpp"
#include "permutation.hpp"
#include "source_sections.hpp"
#include "spans.hpp"

namespace tokenloom {

// What a walk is of a pass that windows of several lengths share. All is counted in tokens but for `num_first`.
struct PassPart {
  std::int64_t pass_walk = -1;       // the walk that began the pass, whose orders it has; -1 for the walk itself
  std::int64_t first_token = 0;      // those before its first window, in the order of stretches
  std::int64_t num_tokens = 0;       // those of the pass, without what the last window reads beyond its length
  std::int64_t stretch_length = 0;   // 0: the walk has the pass alone, and permutes its windows
  std::int64_t num_first = 0;        // windows that are permuted among themselves, before the others

  bool operator==(const PassPart&) const = default;
};

// Consecutive walks over the same pairs.
struct WalkFamily {
  std::int64_t first_walk = 0;
  std::int64_t first_section = 0;
  std::int64_t last_section = 0;  // one past
  std::int64_t num_windows = 0;
  PassPart part{};

  std::int64_t pass_walk(std::int64_t walk) const { return part.pass_walk < 0 ? walk : part.pass_walk; }

  bool operator==(const WalkFamily&) const = default;
};

// All walks of a source; more may be added while samples are read.
class WalkFamilies {
 public:
  explicit WalkFamilies(const std::vector<WalkFamily>& families) {
    for (const WalkFamily& family : families) add(family);
  }

  // Adds walks, or says the same again.
  void add(const WalkFamily& family) {
    if (family.first_walk < 0 || family.num_windows < 0 || family.num_windows > kMostWindows ||
        family.first_section < 0 || family.last_section < family.first_section)
      throw std::invalid_argument("a family of walks has impossible numbers");
    const std::scoped_lock lock(ForkLocks::of(this));
    families_[family.first_walk] = family;
  }

  // The family of a walk: the last one that begins with it or before it. Throws std::out_of_range if there is none.
  WalkFamily of(std::int64_t walk) const {
    const std::scoped_lock lock(ForkLocks::of(this));
    const auto after = families_.upper_bound(walk);
    if (after == families_.begin()) throw std::out_of_range("there is no walk " + std::to_string(walk));
    return std::prev(after)->second;
  }

 private:
  std::map<std::int64_t, WalkFamily> families_;
};

// A few things made on demand by number, the oldest of which makes room. Safe from several threads.
template <typename Value, std::size_t kKept>
class FewKept {
 public:
  template <typename Make>
  std::shared_ptr<Value> get(std::int64_t number, Make&& make) {
    {
      const std::scoped_lock lock(ForkLocks::of(this));
      for (const auto& entry : kept_)
        if (entry.second && entry.first == number) return entry.second;
    }
    std::shared_ptr<Value> made = make();  // by several threads at once at worst: they make the same
    const std::scoped_lock lock(ForkLocks::of(this));
    for (const auto& entry : kept_)
      if (entry.second && entry.first == number) return entry.second;
    kept_[next_] = {number, made};
    next_ = (next_ + 1) % kKept;
    return made;
  }

 private:
  std::array<std::pair<std::int64_t, std::shared_ptr<Value>>, kKept> kept_;
  std::size_t next_ = 0;
};

// The pairs of a walk in its order, and how much of it, in tokens or packs, lies before each.
class PairOrder {
 public:
  // size(section): how much of the walk lies in it.
  template <typename Size>
  PairOrder(const WalkFamily& family, Key source, std::int64_t walk, bool is_shuffled, Size&& size)
      : first_section_(family.first_section) {
    const std::int64_t count = family.last_section - family.first_section;
    const Permutation order(count, derive(source, purpose::kPairs, static_cast<std::uint64_t>(walk)));
    before_.push_back(0);
    places_.resize(static_cast<std::size_t>(count));
    for (std::int64_t place = 0; place < count; ++place) {
      const std::int64_t chosen = is_shuffled && count > 1 ? order(place) : place;
      order_.push_back(static_cast<std::int32_t>(chosen));
      places_[static_cast<std::size_t>(chosen)] = static_cast<std::int32_t>(place);
      before_.push_back(before_.back() + size(first_section_ + chosen));
    }
  }

  std::int64_t num_places() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t section_at(std::int64_t place) const { return first_section_ + order_[static_cast<std::size_t>(place)]; }
  std::int64_t place_of(std::int64_t section) const { return places_[static_cast<std::size_t>(section - first_section_)]; }
  std::int64_t before(std::int64_t place) const { return before_[static_cast<std::size_t>(place)]; }
  std::int64_t total() const { return before_.back(); }

  // The place whose section holds a token, or a pack, of the walk.
  std::int64_t place_holding(std::int64_t number) const {
    return std::upper_bound(before_.begin(), before_.end(), number) - before_.begin() - 1;
  }

 private:
  std::int64_t first_section_;
  std::vector<std::int32_t> order_, places_;
  std::vector<std::int64_t> before_;  // before each place, and all
};

// The documents of a block in the order of a walk, made as far as they are asked for: a Fisher-Yates shuffle from the
// front, whose first places are final first. Most windows begin in the middle of a block and end a little later.
class DocumentOrder {
 public:
  DocumentOrder(std::int64_t size, bool is_shuffled, Key key) : size_(static_cast<std::uint32_t>(size)), key_(key) {
    static constexpr auto kInOrder = [] {
      std::array<std::uint16_t, kBlockDocuments> numbers{};
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i);
      return numbers;
    }();
    order_ = kInOrder;
    if (!is_shuffled) num_made_ = size_;
  }

  std::int64_t operator[](std::int64_t place) {
    if (place >= num_made_) [[unlikely]] make(static_cast<std::uint32_t>(place) + kChunk);
    return order_[static_cast<std::size_t>(place)];
  }

  // Makes the first `count` places, which may be read from then on: or one more, since places are made in pairs, of one
  // random word each.
  void make(std::uint32_t count) {
    count = std::min(count, size_);
    while (num_made_ < count) {
      std::uint64_t word = detail::stream_word(key_, num_drawn_++);
      for (int half = 0; half < 2 && num_made_ < size_; ++half, word >>= 32) {
        const std::uint32_t bound = size_ - num_made_;
        std::uint64_t product = (word & 0xffffffffU) * bound;
        while (static_cast<std::uint32_t>(product) < bound) [[unlikely]] {  // it may favour some numbers
          if (static_cast<std::uint32_t>(product) >= (std::uint64_t{1} << 32) % bound) break;
          product = (detail::stream_word(key_, kSpare + num_spare_++) & 0xffffffffU) * bound;
        }
        std::swap(order_[num_made_], order_[num_made_ + (product >> 32)]);
        ++num_made_;
      }
    }
  }

  const std::uint16_t* data() const { return order_.data(); }

  static constexpr std::uint32_t kChunk = 64;

 private:
  static constexpr std::uint64_t kSpare = std::uint64_t{1} << 32;  // words for draws that are made again

  std::array<std::uint16_t, kBlockDocuments> order_;
  std::uint32_t size_;
  std::uint32_t num_made_ = 0;
  Key key_;
  std::uint64_t num_drawn_ = 0;
  std::uint64_t num_spare_ = 0;
};

// The blocks of one pair in the order of a walk, and the tokens before each.
struct BlockOrder {
  Permutation blocks;                // place in the walk -> block; the identity in file order
  bool is_shuffled;
  std::vector<std::int64_t> before;  // [num_blocks + 1]

  std::int64_t block_at(std::int64_t place) const { return is_shuffled ? blocks(place) : place; }
  std::int64_t place_of(std::int64_t block) const { return is_shuffled ? blocks.inverse(block) : block; }
};

// The tokens that are read of a pair, which windows need to know before it is opened.
inline std::int64_t known_tokens(const Section& section) {
  if (section.num_tokens() == kNotKnown)
    throw std::invalid_argument("windows need to know how many tokens a section has");
  return section.num_tokens();
}

// How the stream of a walk over windows is cut and shuffled.
class WalkRule {
 public:
  WalkRule(Key source, std::int64_t number, bool is_shuffled)
      : source_(source), number_(static_cast<std::uint64_t>(number)), is_shuffled_(is_shuffled) {}

  Permutation windows(std::int64_t num_windows) const { return {num_windows, derive(source_, purpose::kWindows, number_)}; }

  // The order of the pairs; in file order it is not asked.
  Permutation pairs(std::int64_t count) const { return {count, derive(source_, purpose::kPairs, number_)}; }

  // The order of the blocks of a section; in file order it is of none.
  Permutation blocks(std::int64_t section, std::int64_t num_blocks) const {
    const Key key = derive(source_, purpose::kBlocks, number_);
    return {is_shuffled_ ? num_blocks : 0, derive(key, purpose::kBlocks, static_cast<std::uint64_t>(section))};
  }

  // The order of the documents of a block, as numbers within it.
  DocumentOrder documents(std::int64_t section, std::int64_t block, std::int64_t size) const {
    const Key all = derive(source_, purpose::kDocuments, number_);
    const Key own = derive(all, purpose::kDocuments, static_cast<std::uint64_t>(section));
    return {size, is_shuffled_, derive(own, purpose::kDocuments, static_cast<std::uint64_t>(block))};
  }

  // The token of the stream at which the first window begins. In file order that is another one in every walk that has
  // its pass alone; shuffled documents move the cut by themselves. Throws std::out_of_range if there are too few tokens.
  std::int64_t start(std::int64_t num_tokens, const WalkFamily& family, std::int64_t window_length,
                     std::int64_t extra) const {
    const bool is_part = family.part.stretch_length != 0;
    const std::int64_t cut = is_part ? family.part.num_tokens : family.num_windows * window_length;
    const std::int64_t covered = cut == 0 ? 0 : cut + extra;
    const std::int64_t slack = num_tokens - covered;
    if (slack < 0)
      throw std::out_of_range("expected a walk of " + std::to_string(covered) + " tokens, found " +
                              std::to_string(num_tokens));
    return is_shuffled_ || is_part ? 0 : below(derive(source_, purpose::kPhase, number_).low, slack + 1);
  }

  bool is_shuffled() const { return is_shuffled_; }

 private:
  // A number below `bound` from 64 random bits.
  __extension__ using Wide = unsigned __int128;
  static std::int64_t below(std::uint64_t random, std::int64_t bound) {
    return static_cast<std::int64_t>((static_cast<Wide>(random) * static_cast<std::uint64_t>(bound)) >> 64);
  }

  Key source_;
  std::uint64_t number_;
  bool is_shuffled_;
};

// Which cut of the stream each window of a walk is. Cuts are counted from where the first window of the pass begins.
//
// A walk that has its pass alone permutes its windows. Else the stretches of the pass are permuted, and windows within
// groups of `kGroupStretches` of them: so what a part has read is whole stretches, and the next part goes on behind them.
// What is left behind the last whole stretch comes last.
class WindowOrder {
 public:
  static constexpr std::int64_t kGroupStretches = 1024;

  WindowOrder(const WalkRule& pass, Key source, std::int64_t walk, const WalkFamily& family, std::int64_t window_length)
      : num_windows_(family.num_windows),
        num_first_(family.part.num_first),
        key_(derive(source, purpose::kParts, static_cast<std::uint64_t>(walk))),
        order_(pass.windows(0)) {
    const PassPart& part = family.part;
    if (part.stretch_length != 0) {
      per_stretch_ = part.stretch_length / window_length;
      first_ = part.first_token / window_length;
      if (per_stretch_ < 1 || part.stretch_length % window_length != 0 || part.first_token % window_length != 0 ||
          first_ < 0 || first_ + num_windows_ > part.num_tokens / window_length || num_first_ < 0 || num_first_ > num_windows_)
        throw std::invalid_argument("a part of a pass has impossible numbers");
    }
    order_ = pass.windows(per_stretch_ == 0 ? num_windows_ : part.num_tokens / part.stretch_length);
  }

  std::int64_t num_windows() const { return num_windows_; }

  std::int64_t cut(std::int64_t window) const {
    if (per_stretch_ == 0) return order_(window);
    const std::int64_t place = first_ + (per_stretch_ == 1 ? window : in_group(window, [](const auto& group, auto at) {
      return group(at);
    }));
    return moved(place, [&](std::int64_t stretch) { return order_(stretch); });
  }

  // The window that a cut is; -1 if it is none of this walk.
  std::int64_t window(std::int64_t cut) const {
    if (per_stretch_ == 0) return order_.inverse(cut);
    const std::int64_t place = moved(cut, [&](std::int64_t stretch) { return order_.inverse(stretch); }) - first_;
    if (place < 0 || place >= num_windows_) return -1;
    return per_stretch_ == 1 ? place : in_group(place, [](const auto& group, auto at) { return group.inverse(at); });
  }

 private:
  // A place among the windows of the pass, in one order of its stretches, as that in the other.
  template <typename Move>
  std::int64_t moved(std::int64_t place, Move&& move) const {
    const std::int64_t stretch = place / per_stretch_;
    return stretch < order_.size() ? move(stretch) * per_stretch_ + place % per_stretch_ : place;
  }

  template <typename Move>
  std::int64_t in_group(std::int64_t window, Move&& move) const {
    const std::int64_t begin = window < num_first_ ? 0 : num_first_;
    const std::int64_t end = window < num_first_ ? num_first_ : num_windows_;
    const std::int64_t size = kGroupStretches * per_stretch_;
    const std::int64_t first = begin + (window - begin) / size * size;
    const auto group = groups_.get(first, [&] {
      return std::make_shared<Permutation>(std::min(size, end - first),
                                           derive(key_, purpose::kParts, static_cast<std::uint64_t>(first)));
    });
    return first + move(*group, window - first);
  }

  std::int64_t num_windows_;
  std::int64_t per_stretch_ = 0;  // windows of a stretch; 0 where there are none
  std::int64_t first_ = 0;        // windows of the pass before the first of this walk
  std::int64_t num_first_;
  Key key_;
  Permutation order_;  // of stretches, or of windows
  mutable FewKept<Permutation, 4> groups_;
};

// What is kept of a walk.
class Walk {
 public:
  Walk(const SourceSections& sections, const WalkFamily& family, Key source, std::int64_t number, bool is_shuffled,
       std::int64_t window_length, std::int64_t extra)
      : rule_(source, family.pass_walk(number), is_shuffled),
        windows_(rule_, source, number, family, window_length),
        pairs_(family, source, family.pass_walk(number), is_shuffled,
               [&](std::int64_t section) { return known_tokens(sections.closed(section)); }) {
    start_ = rule_.start(pairs_.total(), family, window_length, extra);
    blocks_.resize(static_cast<std::size_t>(pairs_.num_places()));
  }

  std::int64_t start() const { return start_; }
  const PairOrder& pairs() const { return pairs_; }
  const WindowOrder& windows() const { return windows_; }

  // The blocks of the section at a place; made once.
  std::shared_ptr<const BlockOrder> blocks(const SourceSections& sections, std::int64_t place) {
    {
      const std::scoped_lock lock(ForkLocks::of(this));
      if (auto& kept = blocks_[static_cast<std::size_t>(place)]) return kept;
    }
    const std::int64_t number = pairs_.section_at(place);
    const Section& section = sections[number];
    auto made = std::make_shared<BlockOrder>(
        BlockOrder{rule_.blocks(number, section.num_blocks()), rule_.is_shuffled(), {}});
    made->before.reserve(static_cast<std::size_t>(section.num_blocks()) + 1);
    made->before.push_back(0);
    std::array<std::int64_t, 512> order;  // some at a time, for the CPU's vector registers
    for (std::int64_t at = 0; at < section.num_blocks(); at += static_cast<std::int64_t>(order.size())) {
      const auto count = std::min(order.size(), static_cast<std::size_t>(section.num_blocks() - at));
      if (rule_.is_shuffled()) made->blocks.forward_range(at, std::span(order).first(count));
      else std::iota(order.begin(), order.begin() + count, at);
      for (std::size_t i = 0; i < count; ++i)
        made->before.push_back(made->before.back() + section.block_tokens()[static_cast<std::size_t>(order[i])]);
    }
    const std::scoped_lock lock(ForkLocks::of(this));
    auto& kept = blocks_[static_cast<std::size_t>(place)];
    if (!kept) kept = std::move(made);
    return kept;
  }

  // The order of the documents of a block, as numbers within it.
  DocumentOrder documents(std::int64_t section, std::int64_t block, std::int64_t size) const {
    return rule_.documents(section, block, size);
  }

 private:
  WalkRule rule_;
  WindowOrder windows_;
  PairOrder pairs_;  // by tokens
  std::int64_t start_ = 0;
  std::vector<std::shared_ptr<const BlockOrder>> blocks_;
};

// Positions, which are walk << kWindowBits | window, into spans.
class WindowWalks final : public SpanSource {
 public:
  WindowWalks(const SourceSections& sections, WalkFamilies families, Key source, bool is_shuffled,
              std::int64_t window_length, std::int64_t extra)
      : sections_(sections),
        families_(std::move(families)),
        source_(source),
        is_shuffled_(is_shuffled),
        window_length_(window_length),
        extra_(extra) {
    if (window_length < 1 || extra < 0 || extra > 1)
      throw std::invalid_argument("window_length must be at least 1, and extra 0 or 1");
  }

  std::int64_t num_sequences() const override { return sections_.num_documents(); }

  WalkFamilies& families() { return families_; }

  void append_spans(std::int64_t position, bool keep_empty, std::vector<Span>& spans) const override {
    const std::int64_t number = position >> kWindowBits;
    const std::int64_t window = position & (kMostWindows - 1);
    const std::shared_ptr<Walk> walk = get(number);
    const WindowOrder& windows = walk->windows();
    if (window >= windows.num_windows())
      throw std::out_of_range("window " + std::to_string(window) + " of walk " + std::to_string(number) + ", which has " +
                              std::to_string(windows.num_windows()));
    std::int64_t token = walk->start() + windows.cut(window) * window_length_;
    std::int64_t wanted = window_length_ + extra_;
    std::int64_t place = walk->pairs().place_holding(token);
    token -= walk->pairs().before(place);
    for (; wanted > 0 && place < walk->pairs().num_places(); ++place, token = 0)
      append_of_section(*walk, place, token, wanted, keep_empty, spans);
    if (wanted > 0)
      throw std::out_of_range("the documents of walk " + std::to_string(number) + " end " + std::to_string(wanted) +
                              " tokens early");
  }

  // Appends where the tokens of documents, of rising numbers, are read in walks, walk by walk; nowhere if they are held
  // out, or behind the last window. Nothing is kept of a walk, and of those that are kept nothing is asked.
  void find(std::span<const std::int64_t> walks, std::span<const std::int64_t> documents,
            std::vector<Occurrence>& found) const {
    const std::vector<SoughtDocument> sought = sought_documents(sections_, documents);
    WalkFamily family{-1, 0, 0, 0, {}};
    std::vector<std::int64_t> sizes;   // tokens of each pair of the family
    std::vector<std::int64_t> begins;  // of each document in the stream
    std::span<const SoughtDocument> inside;
    std::int64_t total = 0;
    SumsBefore sums;
    for (const std::int64_t number : walks) {
      const WalkFamily own = families_.of(number);
      const WalkRule rule(source_, own.pass_walk(number), is_shuffled_);
      if (own != family) {
        if (own.last_section > sections_.size()) throw std::out_of_range("a walk names a section that is not there");
        family = own;
        sizes.clear();
        for (std::int64_t section = own.first_section; section < own.last_section; ++section)
          sizes.push_back(known_tokens(sections_.closed(section)));
        total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
        inside = within(sought, own);
        begins.clear();
      }
      if (is_shuffled_ || begins.empty()) find_begins(rule, family, sizes, total, inside, sums, begins);
      const std::int64_t start = rule.start(total, family, window_length_, extra_);
      const std::size_t first = found.size();
      const bool is_part = family.part.stretch_length != 0;
      const std::int64_t num_cuts = is_part ? family.part.num_tokens / window_length_ : family.num_windows;
      for (std::size_t i = 0; i < inside.size(); ++i) append_cuts(number, inside[i], begins[i] - start, num_cuts, found);
      if (found.size() == first) continue;
      const WindowOrder windows(rule, source_, number, family, window_length_);
      for (std::size_t i = first; i < found.size(); ++i) found[i].window = windows.window(found[i].window);
      if (is_part)
        found.erase(std::remove_if(found.begin() + static_cast<std::ptrdiff_t>(first), found.end(),
                                   [](const Occurrence& each) { return each.window < 0; }),
                    found.end());
    }
  }

 private:
  static std::int64_t floor_div(std::int64_t value, std::int64_t divisor) {
    return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
  }

  std::shared_ptr<Walk> get(std::int64_t number) const {
    return walks_.get(number, [&] {
      const WalkFamily family = families_.of(number);
      if (family.last_section > sections_.size()) throw std::out_of_range("a walk names a section that is not there");
      return std::make_shared<Walk>(sections_, family, source_, number, is_shuffled_, window_length_,
                                    extra_);
    });
  }

  // Appends spans of the section at a place, from its token `token` on, until it ends or nothing more is wanted.
  void append_of_section(Walk& walk, std::int64_t place, std::int64_t token, std::int64_t& wanted, bool keep_empty,
                         std::vector<Span>& spans) const {
    const std::int64_t number = walk.pairs().section_at(place);
    if (sections_.closed(number).num_tokens() == 0) return;
    const Section& section = sections_[number];
    const std::shared_ptr<const BlockOrder> blocks = walk.blocks(sections_, place);
    const auto& before = blocks->before;
    std::int64_t at = std::upper_bound(before.begin(), before.end(), token) - before.begin() - 1;
    token -= before[static_cast<std::size_t>(at)];
    for (; wanted > 0 && at < section.num_blocks(); ++at, token = 0) {
      const std::int64_t block = blocks->block_at(at);
      if (section.block_tokens()[static_cast<std::size_t>(block)] == 0 && !keep_empty) continue;
      append_of_block(walk, number, section, block, token, wanted, keep_empty, spans);
    }
  }

  void append_of_block(const Walk& walk, std::int64_t number, const Section& section, std::int64_t block,
                       std::int64_t token, std::int64_t& wanted, bool keep_empty, std::vector<Span>& spans) const {
    const std::int64_t size = section.block_size(block);
    const std::int64_t first = block * kBlockDocuments;
    DocumentOrder order = walk.documents(number, block, size);
    std::array<bool, kBlockDocuments> is_read;
    const bool whole = section.reads_whole(block, is_read);
    std::int64_t at = 0;
    if (token > 0) {  // a chunk at a time: lengths lie scattered, but in one page or two
      section.prefetch(block);
      for (;;) {
        const std::int64_t stop = std::min<std::int64_t>(at + DocumentOrder::kChunk, size);
        order.make(static_cast<std::uint32_t>(stop));
        const std::uint16_t* chunk = order.data() + at;
        const std::int64_t skipped = whole ? section.tokens_of(first, chunk, stop - at)
                                           : section.tokens_of(first, chunk, stop - at, is_read.data());
        if (skipped > token || stop == size) break;
        token -= skipped;
        at = stop;
      }
    }
    bool begun = token == 0;
    for (; at < size && wanted > 0; ++at) {
      const std::int64_t own = order[at];
      if (!whole && !is_read[static_cast<std::size_t>(own)]) continue;
      const std::int64_t length = section.length(first + own);
      if (!begun && token >= length) {
        token -= length;
        begun = token == 0;
        continue;
      }
      begun = true;
      const std::int64_t taken = std::min(length - token, wanted);
      if (taken > 0 || keep_empty) spans.push_back({section.first_document() + first + own, token, taken});
      wanted -= taken;
      token = 0;
    }
    if (token > 0) throw std::out_of_range("the lengths of block " + std::to_string(block) + " changed");
  }

  // Those of some documents that lie in the pairs of a family.
  static std::span<const SoughtDocument> within(std::span<const SoughtDocument> sought, const WalkFamily& family) {
    const auto by_section = [](const SoughtDocument& each, std::int64_t section) { return each.section < section; };
    const auto first = std::lower_bound(sought.begin(), sought.end(), family.first_section, by_section);
    const auto stop = std::lower_bound(first, sought.end(), family.last_section, by_section);
    return {first, stop};
  }

  // The tokens of the stream of a walk at which documents begin.
  void find_begins(const WalkRule& rule, const WalkFamily& family, std::span<const std::int64_t> sizes,
                   std::int64_t total, std::span<const SoughtDocument> sought, SumsBefore& sums,
                   std::vector<std::int64_t>& begins) const {
    std::vector<std::int64_t> things;
    begins.resize(sought.size());
    for (const SoughtDocument& each : sought)
      if (const std::int64_t pair = each.section - family.first_section; things.empty() || things.back() != pair)
        things.push_back(pair);
    const Permutation none(0, {});
    const auto count = static_cast<std::int64_t>(sizes.size());
    const bool moves_pairs = rule.is_shuffled() && count > 1;
    const auto before = [&](const Permutation& order, bool moves, std::span<const std::int64_t> of, std::int64_t sum) {
      return moves ? sums.of(order, of, sum, things) : sums.in_order(of, things);
    };
    const auto of_pairs = before(moves_pairs ? rule.pairs(count) : none, moves_pairs, sizes, total);
    const std::vector<std::int64_t> pairs_before(of_pairs.begin(), of_pairs.end());
    std::size_t place = 0;
    for (std::size_t at = 0; at < sought.size(); ++place) {  // pair by pair
      const std::int64_t number = sought[at].section;
      const Section& section = sections_[number];
      std::size_t stop = at;
      things.clear();
      for (; stop < sought.size() && sought[stop].section == number; ++stop)
        if (things.empty() || things.back() != sought[stop].block()) things.push_back(sought[stop].block());
      const auto of_blocks = before(rule.blocks(number, section.num_blocks()), rule.is_shuffled(),
                                    section.block_tokens(), section.num_tokens());
      for (std::size_t block = 0; at < stop; ++block) {  // block by block
        const std::int64_t offset = pairs_before[place] + of_blocks[block];
        at = find_in_block(rule, section, sought, at, number, offset, begins);
      }
    }
  }

  // The same of the documents of one block, which begins at `offset`; returns the first document behind them.
  std::size_t find_in_block(const WalkRule& rule, const Section& section, std::span<const SoughtDocument> sought,
                            std::size_t at, std::int64_t number, std::int64_t offset,
                            std::vector<std::int64_t>& begins) const {
    const std::int64_t block = sought[at].block();
    const std::int64_t first = block * kBlockDocuments;
    std::size_t stop = at;
    std::array<std::int32_t, kBlockDocuments> wanted;  // which of those sought a document of the block is; -1 for others
    wanted.fill(-1);
    for (; stop < sought.size() && sought[stop].section == number && sought[stop].block() == block; ++stop)
      wanted[static_cast<std::size_t>(sought[stop].own - first)] = static_cast<std::int32_t>(stop - at);
    DocumentOrder order = rule.documents(number, block, section.block_size(block));
    std::array<bool, kBlockDocuments> is_read;
    const bool whole = section.reads_whole(block, is_read);
    for (std::size_t left = stop - at, place = 0; left > 0; ++place) {
      const auto own = static_cast<std::size_t>(order[static_cast<std::int64_t>(place)]);
      if (wanted[own] >= 0) {
        begins[at + static_cast<std::size_t>(wanted[own])] = offset;
        --left;
      }
      if (whole || is_read[own]) offset += section.length(first + static_cast<std::int64_t>(own));
    }
    return stop;
  }

  // Appends what the cuts of a walk hold of a document, with the number of the cut as the window. `from` is where it
  // begins, counted from where the first window does: window c reads [c * S, (c + 1) * S + extra).
  void append_cuts(std::int64_t walk, const SoughtDocument& document, std::int64_t from, std::int64_t num_cuts,
                   std::vector<Occurrence>& found) const {
    const std::int64_t length = document.length;
    const std::int64_t first = std::max<std::int64_t>(0, floor_div(from - extra_, window_length_));
    const std::int64_t last = std::min(num_cuts - 1, floor_div(from + length - 1, window_length_));
    for (std::int64_t cut = first; cut <= last; ++cut) {
      const std::int64_t start = std::max<std::int64_t>(0, cut * window_length_ - from);
      const std::int64_t stop = std::min(length, (cut + 1) * window_length_ + extra_ - from);
      if (stop > start)
        found.push_back({walk, document.number, cut, start, stop - start, from + start - cut * window_length_});
    }
  }

  const SourceSections& sections_;
  WalkFamilies families_;
  Key source_;
  bool is_shuffled_;
  std::int64_t window_length_;
  std::int64_t extra_;
  mutable FewKept<Walk, 4> walks_;
};

}  // namespace tokenloom
