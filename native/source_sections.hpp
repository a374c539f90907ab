// The documents of a source whose order is computed: the pairs that they lie in, and which of them are held out.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "fork_locks.hpp"
#include "permutation.hpp"
#include "spans.hpp"

namespace tokenloom {

// Documents of a block: blocks are in file order, and documents are shuffled within theirs.
inline constexpr std::int64_t kBlockDocuments = 256;

// A sample is named by its walk and the window in it.
inline constexpr int kWindowBits = 40;
inline constexpr std::int64_t kMostWindows = std::int64_t{1} << kWindowBits;

// A pair is opened when the first of its samples is asked for; this is who must be opened now.
struct SectionNeeded {
  std::int64_t section;
};

// Of a number of tokens that is told by no one, and does not matter: what is read is counted in packs.
inline constexpr std::int64_t kNotKnown = -1;

// What is known of a pair before it is opened.
struct SectionFacts {
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;      // of the documents that are read: those held out, or all others; kNotKnown
  std::int64_t held_blocks = 0;     // blocks held out, or
  std::int64_t held_documents = 0;  // documents held out
};

// The documents of one pair.
class Section {
 public:
  Section(const SectionFacts& facts, std::int64_t first_document, Key holdout, bool reads_held)
      : facts_(facts), first_(first_document), holdout_(holdout), reads_held_(reads_held) {}

  std::int64_t first_document() const { return first_; }
  std::int64_t num_documents() const { return facts_.num_documents; }
  std::int64_t num_tokens() const { return facts_.num_tokens; }
  std::int64_t num_blocks() const { return (facts_.num_documents + kBlockDocuments - 1) / kBlockDocuments; }
  std::int64_t block_size(std::int64_t block) const {
    return std::min(kBlockDocuments, facts_.num_documents - block * kBlockDocuments);
  }
  std::int64_t length(std::int64_t document) const { return lengths_[static_cast<std::size_t>(document)]; }

  // The tokens of some documents, given as numbers from `first` on.
  std::int64_t tokens_of(std::int64_t first, const std::uint16_t* numbers, std::int64_t count) const {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += length(first + numbers[i]);
    return sum;
  }

  // The same of those that `is_read` marks.
  std::int64_t tokens_of(std::int64_t first, const std::uint16_t* numbers, std::int64_t count, const bool* is_read) const {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += is_read[numbers[i]] ? length(first + numbers[i]) : 0;
    return sum;
  }

  // Asks for the lengths of a block, which lie side by side.
  void prefetch(std::int64_t block) const {
    const std::uint8_t* begin = lengths_.address(static_cast<std::size_t>(block * kBlockDocuments));
    const std::uint8_t* end = begin + block_size(block) * 4;
    for (; begin < end; begin += 64) __builtin_prefetch(begin, 0);
  }

  bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  // Called once, before anything below is asked. Adds up the lengths of each block: one pass over them.
  void open(UnalignedArray<std::int32_t> lengths) {
    if (static_cast<std::int64_t>(lengths.size()) != facts_.num_documents)
      throw std::out_of_range("expected " + std::to_string(facts_.num_documents) + " documents, found " +
                              std::to_string(lengths.size()));
    lengths_ = lengths;
    choose_held();
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(num_blocks()));
    std::int64_t total = 0;
    for (std::int64_t block = 0; block < num_blocks(); ++block) {
      tokens[static_cast<std::size_t>(block)] = count_tokens(block);
      total += tokens[static_cast<std::size_t>(block)];
    }
    if (facts_.num_tokens != kNotKnown && total != facts_.num_tokens)
      throw std::out_of_range("expected documents of " + std::to_string(facts_.num_tokens) + " tokens, found " +
                              std::to_string(total));
    block_tokens_ = std::move(tokens);
    is_open_.store(true, std::memory_order_release);
  }

  // Tokens that are read of each block.
  const std::vector<std::int64_t>& block_tokens() const { return block_tokens_; }

  // Whether a document is read.
  bool reads(std::int64_t document) const {
    if (!held_blocks_.empty())
      return held_blocks_[static_cast<std::size_t>(document / kBlockDocuments)] == reads_held_;
    if (held_.empty()) return !reads_held_;
    return std::binary_search(held_.begin(), held_.end(), document) == reads_held_;
  }

  // Marks the documents of a block that are read; returns whether all of them are, and then marks none.
  bool reads_whole(std::int64_t block, std::span<bool> is_read) const {
    if (!held_blocks_.empty() && held_blocks_[static_cast<std::size_t>(block)] == reads_held_) return true;
    const std::int64_t begin = block * kBlockDocuments;
    auto next = std::lower_bound(held_.begin(), held_.end(), begin);
    const std::int64_t end = begin + block_size(block);
    if (held_blocks_.empty() && !reads_held_ && (next == held_.end() || *next >= end)) return true;
    std::fill(is_read.begin(), is_read.end(), held_blocks_.empty() && !reads_held_);
    for (; next != held_.end() && *next < end; ++next) is_read[static_cast<std::size_t>(*next - begin)] = reads_held_;
    return false;
  }

 private:
  void choose_held() {
    if (facts_.held_blocks > 0) {
      const Permutation order(num_blocks(), holdout_);
      held_blocks_.assign(static_cast<std::size_t>(num_blocks()), false);
      for (std::int64_t place = 0; place < std::min(facts_.held_blocks, num_blocks()); ++place)
        held_blocks_[static_cast<std::size_t>(order.inverse(place))] = true;
    } else if (facts_.held_documents > 0) {
      const Permutation order(facts_.num_documents, holdout_);
      for (std::int64_t place = 0; place < std::min(facts_.held_documents, facts_.num_documents); ++place)
        held_.push_back(order.inverse(place));
      std::sort(held_.begin(), held_.end());
    }
  }

  std::int64_t count_tokens(std::int64_t block) const {
    const std::int64_t begin = block * kBlockDocuments;
    const std::int64_t end = begin + block_size(block);
    std::int64_t all = 0;
    std::int32_t signs = 0;
    for (std::int64_t document = begin; document < end; ++document) {
      const std::int32_t length = lengths_[static_cast<std::size_t>(document)];
      all += length;
      signs |= length;
    }
    if (signs < 0) throw std::out_of_range("a document between " + std::to_string(begin) + " and " +
                                           std::to_string(end) + " has a negative number of tokens");
    if (!held_blocks_.empty()) return held_blocks_[static_cast<std::size_t>(block)] == reads_held_ ? all : 0;
    std::int64_t held = 0;
    for (auto next = std::lower_bound(held_.begin(), held_.end(), begin); next != held_.end() && *next < end; ++next)
      held += length(*next);
    return reads_held_ ? held : all - held;
  }

  SectionFacts facts_;
  std::int64_t first_;
  Key holdout_;
  bool reads_held_;
  UnalignedArray<std::int32_t> lengths_;
  std::vector<std::int64_t> block_tokens_;
  std::vector<bool> held_blocks_;
  std::vector<std::int64_t> held_;  // documents, sorted
  std::atomic<bool> is_open_{false};
};

// All pairs of a source, in the order in which their documents are numbered.
class SourceSections {
 public:
  SourceSections(const std::vector<SectionFacts>& facts, Key source, bool reads_held) {
    std::int64_t first = 0;
    for (const SectionFacts& each : facts) {
      if (each.num_documents < 0 || each.num_tokens < kNotKnown || each.held_blocks < 0 || each.held_documents < 0 ||
          first > INT64_MAX / 4 - each.num_documents)
        throw std::invalid_argument("counts of a section must not be negative, nor too large");
      const Key holdout = derive(source, purpose::kHoldout, sections_.size());
      sections_.push_back(std::make_unique<Section>(each, first, holdout, reads_held));
      first += each.num_documents;
    }
    num_documents_ = first;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(sections_.size()); }
  std::int64_t num_documents() const { return num_documents_; }

  // Throws SectionNeeded for one that is not open.
  const Section& operator[](std::int64_t number) const {
    const Section& section = *sections_[static_cast<std::size_t>(number)];
    if (!section.is_open()) [[unlikely]] throw SectionNeeded{number};
    return section;
  }

  // The same, of which only what is known before is asked.
  Section& closed(std::int64_t number) const { return *sections_[static_cast<std::size_t>(number)]; }

  // The section that a document of the source lies in.
  std::int64_t holding(std::int64_t document) const {
    const auto after = std::upper_bound(
        sections_.begin(), sections_.end(), document,
        [](std::int64_t value, const std::unique_ptr<Section>& section) { return value < section->first_document(); });
    return after - sections_.begin() - 1;
  }

  // Returns whether it was not open yet, so that these lengths are kept.
  bool open(std::int64_t number, UnalignedArray<std::int32_t> lengths) {
    const std::scoped_lock lock(ForkLocks::of(this));
    if (number < 0 || number >= size()) throw std::out_of_range("there is no section " + std::to_string(number));
    if (closed(number).is_open()) return false;
    closed(number).open(lengths);
    return true;
  }

 private:
  std::vector<std::unique_ptr<Section>> sections_;
  std::int64_t num_documents_ = 0;
};

}  // namespace tokenloom
