// Best-fit packs of a source without an index: whole documents in each sample, in an order that is computed.
//
// Packs are made within groups of consecutive blocks of one pair, the same ones in every walk, when a sample of a group
// is asked for; the packs of some groups are kept. What is kept for good is how many packs each group has. The stream of
// a walk: its pairs in an order of the walk, the groups of each in an order of the walk. It is cut into pools of a few
// groups, and packs are permuted within their pool: so samples mix widely, while few groups are in use at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fork_locks.hpp"
#include "packs.hpp"
#include "permutation.hpp"
#include "source_sections.hpp"
#include "spans.hpp"
#include "walks.hpp"

namespace tokenloom {

// Both are part of the order: other numbers give other packs, or another order of them.
inline constexpr std::int64_t kGroupBlocks = 128;
inline constexpr std::int64_t kPoolGroups = 16;
inline constexpr std::int64_t kGroupDocuments = kGroupBlocks * kBlockDocuments;
static_assert(kGroupDocuments < std::numeric_limits<std::uint16_t>::max());

inline std::int64_t num_groups(std::int64_t num_documents) {
  return (num_documents + kGroupDocuments - 1) / kGroupDocuments;
}

// Calls each(document, place in the group) for the documents of a group that are read, in file order.
template <typename Each>
void each_document(const Section& section, std::int64_t group, Each&& each) {
  const std::int64_t first = group * kGroupDocuments;
  for (std::int64_t block = group * kGroupBlocks; block < std::min((group + 1) * kGroupBlocks, section.num_blocks());
       ++block) {
    if (section.block_tokens()[static_cast<std::size_t>(block)] == 0) continue;
    std::array<bool, kBlockDocuments> is_read;
    const bool whole = section.reads_whole(block, is_read);
    const std::int64_t begin = block * kBlockDocuments;
    for (std::int64_t document = begin; document < begin + section.block_size(block); ++document)
      if (whole || is_read[static_cast<std::size_t>(document - begin)])
        each(document, static_cast<std::uint16_t>(document - first));
  }
}

// Returns how many packs each group of a section has. Only the lengths that occur in a group cost time.
inline std::vector<std::int64_t> count_group_packs(const Section& section, const PieceRule& rule) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_groups(section.num_documents())));
  PackCounter rests(rule);
  for (std::size_t group = 0; group < counts.size(); ++group) {
    std::int64_t full = 0;
    each_document(section, static_cast<std::int64_t>(group), [&](std::int64_t document, std::uint16_t) {
      const std::int64_t length = section.length(document);
      full += rule.full_pieces(length);
      rests.add(rule.rest(length));
    });
    counts[group] = full + rests.count();
  }
  return counts;
}

// The packs of one group: first a row for each full piece of the documents that are longer than a sample, which are
// counted, not kept; then the rows of all other pieces. About 2 bytes per document.
class GroupPacks {
 public:
  GroupPacks(const Section& section, std::int64_t group, const PieceRule& rule, std::int64_t num_packs)
      : first_(group * kGroupDocuments), rule_(rule) {
    std::vector<std::int32_t> rests;
    std::vector<std::uint16_t> documents;
    full_before_.push_back(0);
    std::int64_t num_pieces = 0;
    each_document(section, group, [&](std::int64_t document, std::uint16_t at) {
      const std::int64_t length = section.length(document);
      if (const std::int64_t full = rule.full_pieces(length); full > 0) {
        split_.push_back(at);
        full_before_.push_back(full_before_.back() + full);
      }
      rests.push_back(static_cast<std::int32_t>(rule.rest(length)));
      documents.push_back(at);
      num_pieces += rests.back() > 0;
    });
    const std::int64_t num_rows = num_packs - full_before_.back();
    if (num_rows < 0) throw std::out_of_range("the lengths of group " + std::to_string(group) + " changed");
    std::vector<std::uint16_t> places(rests.size());
    std::iota(places.begin(), places.end(), std::uint16_t{0});
    std::vector<std::int32_t> rows(static_cast<std::size_t>(num_rows)), pieces(2 * static_cast<std::size_t>(num_pieces));
    const UnalignedArray<std::int32_t> lengths{reinterpret_cast<const std::uint8_t*>(rests.data()), rests.size()};
    pack_documents<std::uint16_t, std::int32_t>(lengths, places, rule, 0, rows, pieces);
    rows_.assign(rows.begin(), rows.end());
    rows_.push_back(static_cast<std::uint16_t>(num_pieces));
    for (std::size_t i = 0; i < pieces.size(); i += 2) pieces_.push_back(documents[static_cast<std::size_t>(pieces[i])]);
  }

  // Appends the pieces of a pack.
  void append(const Section& section, std::int64_t pack, std::vector<Span>& spans) const {
    const auto add = [&](std::uint16_t at, std::int64_t start, std::int64_t length) {
      spans.push_back({section.first_document() + first_ + at, start, length});
    };
    if (pack < full_before_.back()) {
      const auto after = std::upper_bound(full_before_.begin(), full_before_.end(), pack);
      const auto at = static_cast<std::size_t>(after - full_before_.begin()) - 1;
      add(split_[at], (pack - full_before_[at]) * rule_.sequence_length, rule_.capacity());
      return;
    }
    const auto row = static_cast<std::size_t>(pack - full_before_.back());
    for (std::size_t piece = rows_.at(row); piece < rows_.at(row + 1); ++piece) {
      const std::int64_t length = section.length(first_ + pieces_[piece]);
      const std::int64_t rest = rule_.rest(length);
      add(pieces_[piece], length - rest, rest);
    }
  }

  // Calls found(pack, start, length, slot) for each piece of a document; the slot is what lies before it in the pack.
  template <typename Found>
  void find(const Section& section, std::int64_t document, Found&& found) const {
    const auto at = static_cast<std::uint16_t>(document - first_);
    const std::int64_t length = section.length(document);
    if (const auto split = std::lower_bound(split_.begin(), split_.end(), at); split != split_.end() && *split == at) {
      const std::int64_t begin = full_before_[static_cast<std::size_t>(split - split_.begin())];
      for (std::int64_t piece = 0; piece < rule_.full_pieces(length); ++piece)
        found(begin + piece, piece * rule_.sequence_length, rule_.capacity(), std::int64_t{0});
    }
    const std::int64_t rest = rule_.rest(length);
    if (rest == 0) return;
    const auto piece = std::find(pieces_.begin(), pieces_.end(), at) - pieces_.begin();
    const auto row = std::upper_bound(rows_.begin(), rows_.end(), piece) - rows_.begin() - 1;
    std::int64_t slot = 0;
    for (std::int64_t i = rows_[static_cast<std::size_t>(row)]; i < piece; ++i)
      slot += rule_.rest(section.length(first_ + pieces_[static_cast<std::size_t>(i)]));
    found(full_before_.back() + row, length - rest, rest, slot);
  }

 private:
  std::int64_t first_;
  PieceRule rule_;
  std::vector<std::uint16_t> split_;      // documents with full pieces, rising
  std::vector<std::int64_t> full_before_;  // full pieces before those of each, and all
  std::vector<std::uint16_t> pieces_;     // documents, row by row
  std::vector<std::uint16_t> rows_;       // the first piece of each row, and the end
};

// The groups of one pair in the order of a walk, and the packs before each.
struct GroupOrder {
  Permutation groups;                // place in the walk -> group; the identity in file order
  bool is_shuffled;
  std::vector<std::int64_t> before;  // [num_groups + 1]

  std::int64_t size() const { return static_cast<std::int64_t>(before.size()) - 1; }
  std::int64_t group_at(std::int64_t place) const { return is_shuffled ? groups(place) : place; }
  std::int64_t place_of(std::int64_t group) const { return is_shuffled ? groups.inverse(group) : group; }
  std::int64_t place_holding(std::int64_t pack) const {
    return std::upper_bound(before.begin(), before.end(), pack) - before.begin() - 1;
  }
};

// Positions, which are walk << kWindowBits | window, into the spans of packs.
class PackWalks final : public SpanSource {
 public:
  // num_packs: of each section.
  PackWalks(const SourceSections& sections, WalkFamilies families, Key source, bool is_shuffled, PieceRule rule,
            std::vector<std::int64_t> num_packs)
      : sections_(sections),
        families_(std::move(families)),
        source_(source),
        is_shuffled_(is_shuffled),
        rule_(rule),
        num_packs_(std::move(num_packs)) {
    rule.check();
    if (static_cast<std::int64_t>(num_packs_.size()) != sections.size() ||
        std::any_of(num_packs_.begin(), num_packs_.end(), [](std::int64_t count) { return count < 0; }))
      throw std::invalid_argument("expected how many packs each section has");
    first_groups_.push_back(0);
    for (std::int64_t i = 0; i < sections.size(); ++i)
      first_groups_.push_back(first_groups_.back() + num_groups(sections.closed(i).num_documents()));
    counts_.resize(num_packs_.size());
  }

  std::int64_t num_sequences() const override { return sections_.num_documents(); }

  WalkFamilies& families() { return families_; }

  // No piece is empty.
  void append_spans(std::int64_t position, bool /*keep_empty*/, std::vector<Span>& spans) const override {
    const std::int64_t number = position >> kWindowBits;
    const std::int64_t window = position & (kMostWindows - 1);
    const std::shared_ptr<Walk> walk = get(number);
    if (window >= walk->pairs.total())
      throw std::out_of_range("window " + std::to_string(window) + " of walk " + std::to_string(number) + ", which has " +
                              std::to_string(walk->pairs.total()));
    const Pool pool = pool_holding(*walk, window);
    const std::int64_t pack = pool.begin + pool.packs()(window - pool.begin);
    const std::int64_t place = walk->pairs.place_holding(pack);
    const std::int64_t owner = walk->pairs.section_at(place);
    const std::shared_ptr<const GroupOrder> order = groups_of(*walk, place);
    const std::int64_t within = pack - walk->pairs.before(place);
    const std::int64_t at = order->place_holding(within);
    packs_of(owner, order->group_at(at))
        ->append(sections_[owner], within - order->before[static_cast<std::size_t>(at)], spans);
  }

  // Appends where the tokens of documents, of rising numbers, are read in walks, walk by walk; nowhere if they are held
  // out. Packs are the same in every walk, so what of a walk is worked out is where their group stands.
  void find(std::span<const std::int64_t> walks, std::span<const std::int64_t> documents,
            std::vector<Occurrence>& found) const {
    struct Piece {
      std::int64_t section, group, document, pack, start, length, slot;
    };
    std::vector<Piece> pieces;
    for (const SoughtDocument& each : sought_documents(sections_, documents)) {
      const std::int64_t group = each.own / kGroupDocuments;
      packs_of(each.section, group)
          ->find(sections_[each.section], each.own,
                 [&](std::int64_t pack, std::int64_t start, std::int64_t length, std::int64_t slot) {
                   pieces.push_back({each.section, group, each.number, pack, start, length, slot});
                 });
    }
    for (const std::int64_t number : walks) {
      const WalkFamily family = families_.of(number);
      const std::shared_ptr<Walk> walk = make(number, family);
      for (const Piece& piece : pieces) {
        if (piece.section < family.first_section || piece.section >= family.last_section) continue;
        const std::int64_t place = walk->pairs.place_of(piece.section);
        const std::shared_ptr<const GroupOrder> order = groups_of(*walk, place);
        const std::int64_t pack = walk->pairs.before(place) +
                                  order->before[static_cast<std::size_t>(order->place_of(piece.group))] + piece.pack;
        const Pool pool = pool_holding(*walk, pack);
        const std::int64_t window = pool.begin + pool.packs().inverse(pack - pool.begin);
        found.push_back({number, piece.document, window, piece.start, piece.length, piece.slot});
      }
    }
  }

 private:
  static constexpr std::size_t kGroupsKept = 3 * kPoolGroups;

  struct Walk {
    Walk(PairOrder order, Key of_groups, Key of_packs)
        : pairs(std::move(order)), groups_key(of_groups), packs_key(of_packs) {}

    PairOrder pairs;                  // by packs
    Key groups_key, packs_key;
    std::vector<std::int32_t> rooms;  // the first place of each room, and the end
    std::vector<std::shared_ptr<const GroupOrder>> groups;
  };

  struct Pool {
    std::int64_t begin;  // packs of the walk
    std::int64_t end;
    Key key;

    Permutation packs() const { return Permutation(end - begin, key); }
  };

  std::shared_ptr<Walk> get(std::int64_t number) const {
    return walks_.get(number, [&] { return make(number, families_.of(number)); });
  }

  std::shared_ptr<Walk> make(std::int64_t number, const WalkFamily& family) const {
    if (family.last_section > sections_.size()) throw std::out_of_range("a walk names a section that is not there");
    const auto derived = [&](std::uint64_t what) { return derive(source_, what, static_cast<std::uint64_t>(number)); };
    const auto packs = [&](std::int64_t section) { return num_packs_[static_cast<std::size_t>(section)]; };
    auto walk = std::make_shared<Walk>(PairOrder(family, source_, number, is_shuffled_, packs),
                                       derived(purpose::kPackGroups), derived(purpose::kPacks));
    if (walk->pairs.total() != family.num_windows)
      throw std::out_of_range("expected a walk of " + std::to_string(family.num_windows) + " packs, found " +
                              std::to_string(walk->pairs.total()));
    walk->groups.resize(static_cast<std::size_t>(walk->pairs.num_places()));
    // Small pairs that follow each other share a room, which is one pool; a pair of many groups has a room of its own.
    std::int64_t in_room = 0;
    for (std::int64_t place = 0; place < walk->pairs.num_places(); ++place) {
      const std::int64_t count = groups_in(walk->pairs.section_at(place));
      if (walk->rooms.empty() || in_room + count > kPoolGroups) {
        walk->rooms.push_back(static_cast<std::int32_t>(place));
        in_room = 0;
      }
      in_room += count;
    }
    walk->rooms.push_back(static_cast<std::int32_t>(walk->pairs.num_places()));
    return walk;
  }

  std::int64_t groups_in(std::int64_t section) const {
    return first_groups_[static_cast<std::size_t>(section) + 1] - first_groups_[static_cast<std::size_t>(section)];
  }

  // The pool that a pack of the stream lies in, before and after it is permuted.
  Pool pool_holding(Walk& walk, std::int64_t pack) const {
    const std::int64_t place = walk.pairs.place_holding(pack);
    const auto after = std::upper_bound(walk.rooms.begin(), walk.rooms.end(), place);
    const std::int64_t first = *(after - 1);
    const std::int64_t begin = walk.pairs.before(first);
    const std::int64_t section = walk.pairs.section_at(first);
    const Key room = derive(walk.packs_key, purpose::kPacks, static_cast<std::uint64_t>(section));
    const std::int64_t count = groups_in(walk.pairs.section_at(place));
    if (count <= kPoolGroups) return {begin, walk.pairs.before(*after), derive(room, purpose::kPacks, 0)};
    // Groups [i * count / pools, (i + 1) * count / pools) are pool i, so that all are of one size, or of one group more.
    const std::int64_t pools = (count + kPoolGroups - 1) / kPoolGroups;
    const std::shared_ptr<const GroupOrder> order = groups_of(walk, place);
    const std::int64_t pool = ((order->place_holding(pack - begin) + 1) * pools - 1) / count;
    const auto start = [&](std::int64_t i) { return begin + order->before[static_cast<std::size_t>(i * count / pools)]; };
    return {start(pool), start(pool + 1), derive(room, purpose::kPacks, static_cast<std::uint64_t>(pool))};
  }

  // The groups of the section at a place; made once for a walk.
  std::shared_ptr<const GroupOrder> groups_of(Walk& walk, std::int64_t place) const {
    {
      const std::scoped_lock lock(ForkLocks::of(&walk));
      if (const auto& kept = walk.groups[static_cast<std::size_t>(place)]) return kept;
    }
    const std::int64_t number = walk.pairs.section_at(place);
    const std::shared_ptr<const std::vector<std::int64_t>> counts = counts_of(number);
    const Key key = derive(walk.groups_key, purpose::kPackGroups, static_cast<std::uint64_t>(number));
    auto made = std::make_shared<GroupOrder>(
        GroupOrder{Permutation(is_shuffled_ ? groups_in(number) : 0, key), is_shuffled_, {}});
    made->before.reserve(counts->size() + 1);
    made->before.push_back(0);
    std::vector<std::int64_t> groups(counts->size());
    if (is_shuffled_) made->groups.forward_range(0, groups);
    else std::iota(groups.begin(), groups.end(), std::int64_t{0});
    for (const std::int64_t group : groups)
      made->before.push_back(made->before.back() + (*counts)[static_cast<std::size_t>(group)]);
    const std::scoped_lock lock(ForkLocks::of(&walk));
    auto& kept = walk.groups[static_cast<std::size_t>(place)];
    if (!kept) kept = std::move(made);
    return kept;
  }

  // The packs of each group of a section; counted once. Throws std::out_of_range if they are not as many as was said.
  std::shared_ptr<const std::vector<std::int64_t>> counts_of(std::int64_t number) const {
    const auto at = static_cast<std::size_t>(number);
    {
      const std::scoped_lock lock(ForkLocks::of(&counts_));
      if (counts_[at]) return counts_[at];
    }
    auto counts = std::make_shared<const std::vector<std::int64_t>>(count_group_packs(sections_[number], rule_));
    const std::int64_t total = std::accumulate(counts->begin(), counts->end(), std::int64_t{0});
    if (total != num_packs_[at])
      throw std::out_of_range("expected pair " + std::to_string(number) + " to make " + std::to_string(num_packs_[at]) +
                              " packs, found " + std::to_string(total));
    const std::scoped_lock lock(ForkLocks::of(&counts_));
    if (!counts_[at]) counts_[at] = std::move(counts);
    return counts_[at];
  }

  std::shared_ptr<const GroupPacks> packs_of(std::int64_t number, std::int64_t group) const {
    return packed_.get(first_groups_[static_cast<std::size_t>(number)] + group, [&] {
      const std::int64_t count = (*counts_of(number))[static_cast<std::size_t>(group)];
      return std::make_shared<const GroupPacks>(sections_[number], group, rule_, count);
    });
  }

  const SourceSections& sections_;
  WalkFamilies families_;
  Key source_;
  bool is_shuffled_;
  PieceRule rule_;
  std::vector<std::int64_t> num_packs_;
  std::vector<std::int64_t> first_groups_;  // of each section among all groups, and how many there are
  mutable std::vector<std::shared_ptr<const std::vector<std::int64_t>>> counts_;  // of each section that is open
  mutable FewKept<Walk, 4> walks_;
  mutable FewKept<const GroupPacks, kGroupsKept> packed_;
};

}  // namespace tokenloom
