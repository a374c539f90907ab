// Documents that are looked for in the walks of a source: which pairs and blocks they lie in, and what comes before those
// in an order that is computed, without keeping anything of a walk.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "permutation.hpp"
#include "source_sections.hpp"

namespace tokenloom {

// A place of a document in the samples of a walk.
struct Occurrence {
  std::int64_t walk;
  std::int64_t document;
  std::int64_t window;
  std::int64_t start;   // tokens from the start of the document
  std::int64_t length;  // tokens
  std::int64_t slot;    // tokens of the sample before it
};

// A document that is looked for.
struct SoughtDocument {
  std::int64_t number;   // in the source
  std::int64_t section;  // that it lies in
  std::int64_t own;      // its number there
  std::int64_t length;   // tokens

  std::int64_t block() const { return own / kBlockDocuments; }
};

// Returns those of some documents, of rising numbers, that walks read: not those held out, nor empty ones. Throws
// std::out_of_range for a document that is not there, and SectionNeeded for a pair that is not open.
inline std::vector<SoughtDocument> sought_documents(const SourceSections& sections,
                                                    std::span<const std::int64_t> documents) {
  std::vector<SoughtDocument> sought;
  for (const std::int64_t document : documents) {
    if (document < 0 || document >= sections.num_documents())
      throw std::out_of_range("there is no document " + std::to_string(document));
    if (!sought.empty() && document <= sought.back().number)
      throw std::invalid_argument("expected documents of rising numbers");
    const std::int64_t number = sections.holding(document);
    const Section& section = sections[number];
    const std::int64_t own = document - section.first_document();
    if (section.reads(own) && section.length(own) > 0) sought.push_back({document, number, own, section.length(own)});
  }
  return sought;
}

// Adds up the sizes of what comes before some things in an order. The order is streamed from its nearer end, hundreds of
// places at a time: 0.9 ns each, of which none is kept.
class SumsBefore {
 public:
  // sizes: of all things; total: their sum; things: different ones. What it returns is valid until it is asked again.
  std::span<const std::int64_t> of(const Permutation& order, std::span<const std::int64_t> sizes, std::int64_t total,
                                   std::span<const std::int64_t> things) {
    places_.clear();
    for (std::size_t i = 0; i < things.size(); ++i) places_.emplace_back(order.inverse(things[i]), i);
    std::sort(places_.begin(), places_.end());
    sums_.resize(things.size());
    if (places_.empty()) return sums_;
    const auto count = static_cast<std::int64_t>(sizes.size());
    const bool from_front = places_.back().first <= count - places_.front().first;
    std::int64_t at = from_front ? 0 : places_.front().first;
    const std::int64_t stop = from_front ? places_.back().first : count;
    std::int64_t sum = 0;
    auto next = places_.begin();
    while (at < stop) {
      const auto length = std::min(static_cast<std::int64_t>(chunk_.size()), stop - at);
      const auto chunk = std::span(chunk_).first(static_cast<std::size_t>(length));
      order.forward_range(at, chunk);
      std::int64_t done = 0;
      for (; next != places_.end() && next->first < at + length; ++next) {
        sum += added(sizes, chunk, done, next->first - at);
        done = next->first - at;
        sums_[next->second] = sum;
      }
      sum += added(sizes, chunk, done, length);
      at += length;
    }
    for (; next != places_.end(); ++next) sums_[next->second] = sum;
    if (!from_front)
      for (std::int64_t& each : sums_) each += total - sum;
    return sums_;
  }

  // The same of things of rising numbers, in the order of their numbers.
  std::span<const std::int64_t> in_order(std::span<const std::int64_t> sizes, std::span<const std::int64_t> things) {
    sums_.clear();
    std::int64_t sum = 0, at = 0;
    for (const std::int64_t thing : things) {
      for (; at < thing; ++at) sum += sizes[static_cast<std::size_t>(at)];
      sums_.push_back(sum);
    }
    return sums_;
  }

 private:
  static std::int64_t added(std::span<const std::int64_t> sizes, std::span<const std::int64_t> things,
                            std::int64_t first, std::int64_t stop) {
    std::int64_t sum = 0;
    for (std::int64_t i = first; i < stop; ++i)
      sum += sizes[static_cast<std::size_t>(things[static_cast<std::size_t>(i)])];
    return sum;
  }

  std::array<std::int64_t, 512> chunk_;
  std::vector<std::pair<std::int64_t, std::size_t>> places_;
  std::vector<std::int64_t> sums_;
};

}  // namespace tokenloom
