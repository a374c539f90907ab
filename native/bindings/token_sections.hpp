// The tokens of several mapped files, or a column beside them, whose sequences are numbered one after the other; each is given when it is needed.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../gpt.hpp"
#include "../source_sections.hpp"
#include "arrays.hpp"
#include "watch.hpp"

namespace tokenloom {

class TokenSections {
 public:
  // firsts: [num_sections + 1], the first sequence of each section, and how many there are.
  TokenSections(const std::vector<std::int64_t>& firsts, int dtype_code) : firsts_(firsts), dtype_code_(dtype_code) {
    if (firsts.empty() || firsts.front() != 0 || !std::is_sorted(firsts.begin(), firsts.end()))
      throw nb::value_error("firsts must rise from 0");
    for (std::size_t i = 0; i + 1 < firsts.size(); ++i) sections_.push_back(std::make_unique<Opened>());
    with_token_type(dtype_code, [&](auto zero) { itemsize_ = sizeof(zero); });
  }

  // The same of a column of so many bytes for each token; pointers count `unit` bytes for a token.
  TokenSections(const std::vector<std::int64_t>& firsts, std::int64_t width, std::int64_t unit)
      : TokenSections(firsts, 1) {
    if (width < 1 || width > kMostWidth || unit < 1 || !std::has_single_bit(static_cast<std::uint64_t>(unit)))
      throw nb::value_error("expected a width of at least a byte, and a unit that is a power of 2");
    itemsize_ = width;
    unit_bits_ = std::countr_zero(static_cast<std::uint64_t>(unit));
    scale_ = width;
  }

  std::int64_t itemsize() const { return itemsize_; }

  static constexpr std::int64_t kMostWidth = 1 << 15;

  TokenSections(const TokenSections&) = delete;
  TokenSections& operator=(const TokenSections&) = delete;

  std::int64_t num_sequences() const { return firsts_.back(); }
  int dtype_code() const { return dtype_code_; }

  // Gives the tokens of a section; with the GIL held.
  void open(std::size_t number, Array<const std::uint8_t> bytes, Array<const std::int64_t> pointers) {
    if (number >= sections_.size()) throw nb::index_error("there is no such section");
    if (static_cast<std::int64_t>(pointers.size()) != firsts_[number + 1] - firsts_[number])
      throw nb::value_error("pointers must be as many as the sequences of the section");
    Opened& section = *sections_[number];
    if (section.is_open) return;
    section.bytes = std::move(bytes);
    section.pointers = std::move(pointers);
    section.tokens = {section.bytes.data(), static_cast<std::int64_t>(section.bytes.size()),
                      as_unaligned(section.pointers), itemsize_, unit_bits_, scale_};
    section.watch.add(section.pointers.data(), section.pointers.nbytes());
    section.watch.add(section.bytes.data(), section.bytes.size());
    section.is_open.store(true, std::memory_order_release);
  }

  // Gives rows that all tokens of a sequence have: row `of_sequences[i]` for sequence i, or row i, or the only one.
  void open_rows(std::size_t number, Array<const std::uint8_t> bytes, std::optional<Array<const std::int64_t>> of_sequences) {
    if (number >= sections_.size()) throw nb::index_error("there is no such section");
    const std::int64_t count = firsts_[number + 1] - firsts_[number];
    const std::int64_t num_rows = static_cast<std::int64_t>(bytes.size()) / itemsize_;
    if (of_sequences ? static_cast<std::int64_t>(of_sequences->size()) != count : num_rows != 1 && num_rows != count)
      throw nb::value_error("expected a row for each sequence of the section, or one for all");
    Opened& section = *sections_[number];
    if (section.is_open) return;
    section.bytes = std::move(bytes);
    section.num_rows = num_rows;
    if (of_sequences) section.pointers = std::move(*of_sequences);
    section.watch.add(section.bytes.data(), section.bytes.size());
    section.is_open.store(true, std::memory_order_release);
  }

 private:
  static constexpr std::int64_t kTokens = -1;

  struct Opened {
    Array<const std::uint8_t> bytes;
    Array<const std::int64_t> pointers;
    MappedTokens tokens;
    std::int64_t num_rows = kTokens;  // of `open_rows`
    Watch watch;
    std::atomic<bool> is_open{false};
  };

 public:
  // What one call reads with; it knows which files that were.
  class Cursor {
   public:
    explicit Cursor(const TokenSections& sections) : sections_(sections) {}

    const std::uint8_t* at(const Span& span) {
      const Opened& section = holding(span.sequence);
      return section.tokens.at({span.sequence - sections_.firsts_[last_], span.start, span.length});
    }

    // The row that all tokens of a span have; null where each has its own.
    const std::uint8_t* row_of(const Span& span) {
      const Opened& section = holding(span.sequence);
      if (section.num_rows == kTokens) return nullptr;
      std::int64_t row = section.num_rows == 1 ? 0 : span.sequence - sections_.firsts_[last_];
      if (section.pointers.is_valid()) row = section.pointers.data()[span.sequence - sections_.firsts_[last_]];
      if (row < 0 || row >= section.num_rows) throw std::out_of_range("there is no row " + std::to_string(row));
      return section.bytes.data() + row * sections_.itemsize_;
    }

    // Throws DamagedFile if a file that was read is not what it was.
    void check() const {
      for (const std::size_t number : touched_) sections_.sections_[number]->watch.check();
    }

   private:
    const Opened& holding(std::int64_t sequence) {
      const auto& firsts = sections_.firsts_;
      if (last_ == kNone || sequence < firsts[last_] || sequence >= firsts[last_ + 1]) {
        last_ = static_cast<std::size_t>(std::upper_bound(firsts.begin(), firsts.end(), sequence) - firsts.begin()) - 1;
        const Opened& section = *sections_.sections_.at(last_);
        if (!section.is_open.load(std::memory_order_acquire)) {
          const auto needed = static_cast<std::int64_t>(last_);
          last_ = kNone;
          throw SectionNeeded{needed};
        }
        if (std::find(touched_.begin(), touched_.end(), last_) == touched_.end()) touched_.push_back(last_);
      }
      return *sections_.sections_[last_];
    }

    static constexpr std::size_t kNone = SIZE_MAX;
    const TokenSections& sections_;
    std::size_t last_ = kNone;
    std::vector<std::size_t> touched_;
  };

 private:
  std::vector<std::int64_t> firsts_;
  int dtype_code_;
  std::int64_t itemsize_ = 0;
  int unit_bits_ = 0;
  std::int64_t scale_ = 1;
  std::vector<std::unique_ptr<Opened>> sections_;
};

}  // namespace tokenloom
