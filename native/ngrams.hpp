// N-grams of words of some texts, such as benchmarks, and where they stand in tokenized documents.
//
// A word is a run of letters, digits and marks after NFKC and case folding; apostrophes are dropped, anything else ends
// a word. In scripts without spaces each code point is a word. ASCII is read by a table, the rest by the kinds of code
// points; a stretch with a code point that may merge with its neighbours is returned to the caller, who normalises it
// and calls again. An n-gram is found by a rolling hash of its words, once a filter has seen a part of it, and confirmed
// by comparing the words themselves.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tokenloom {

// What code points are to words.
enum CodePointKind : std::uint8_t {
  kBetween,  // ends a word
  kDropped,  // is left out
  kLetter,   // stands for itself
  kMark,     // the same, but begins no word
  kAlone,    // is a word of its own
  kFolded,   // stands for some of the others
  kCareful,  // may merge with its neighbours
};

constexpr std::size_t kMostNgramWords = 50;
constexpr std::size_t kTokenPadding = 16;   // bytes behind those of all tokens
constexpr std::uint8_t kPassageEnd = 0xff;  // the byte that special tokens stand for

// Texts back to back: text i is bytes [offsets[i], offsets[i + 1]).
struct TextsView {
  std::span<const std::uint8_t> content;
  std::span<const std::int64_t> offsets;

  std::size_t size() const { return offsets.size() - 1; }
  std::span<const std::uint8_t> operator[](std::size_t i) const {
    return content.subspan(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
};

// The kinds of all code points, and what those of kind kFolded stand for: rising code points and a text for each.
struct Folding {
  std::vector<std::uint8_t> kinds;
  std::vector<std::uint32_t> points;
  std::vector<std::int64_t> offsets;
  std::vector<std::uint8_t> content;

  std::span<const std::uint8_t> of(std::uint32_t point) const {
    const auto found = std::lower_bound(points.begin(), points.end(), point) - points.begin();
    return TextsView{content, offsets}[static_cast<std::size_t>(found)];
  }
};

// Careful stretches, and the words of each with a space between two.
using Learned = std::unordered_map<std::string_view, std::string_view>;

// Bytes that may have to become more.
class GrowingBytes {
 public:
  std::uint8_t* data() { return bytes_.get(); }

  // Makes room for `count` bytes, of which those before `used` are kept.
  void reserve(std::size_t count, std::size_t used) {
    if (count <= room_) return;
    const std::size_t room = std::max(count, 2 * room_);
    auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(room);
    if (used) std::memcpy(bytes.get(), bytes_.get(), used);
    bytes_ = std::move(bytes);
    room_ = room;
  }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
  std::size_t room_ = 0;
};

namespace detail {

// Letters and digits of ASCII in lower case; below '0' what is no letter.
constexpr std::uint8_t kAsciiBetween = 0, kAsciiDropped = 1, kNotAscii = 2;
constexpr std::array<std::uint8_t, 256> kAsciiLetters = [] {
  std::array<std::uint8_t, 256> letters{};
  for (int i = '0'; i <= '9'; ++i) letters[i] = static_cast<std::uint8_t>(i);
  for (int i = 'a'; i <= 'z'; ++i) letters[i] = letters[i - 'a' + 'A'] = static_cast<std::uint8_t>(i);
  for (int i = 0x80; i < 0x100; ++i) letters[i] = kNotAscii;
  letters['\''] = kAsciiDropped;
  return letters;
}();

#if defined(__SSE2__)
// 16 bytes of a text: letters in lower case, which bytes are letters or digits, and which end a word.
struct Block {
  explicit Block(const std::uint8_t* at) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    lower = _mm_or_si128(bytes, _mm_and_si128(within(bytes, 'A', 'Z'), _mm_set1_epi8(0x20)));
    letters = bits(_mm_or_si128(within(lower, 'a', 'z'), within(bytes, '0', '9')));
    between = ~(letters | bits(bytes) | bits(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\''))));
  }

  static __m128i within(__m128i bytes, char first, char last) {
    const __m128i above = _mm_sub_epi8(bytes, _mm_set1_epi8(first));
    return _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(static_cast<char>(last - first))), above);
  }

  static std::uint32_t bits(__m128i bytes) { return static_cast<std::uint32_t>(_mm_movemask_epi8(bytes)); }

  __m128i lower;
  std::uint32_t letters, between;  // a bit for each byte; of `between` the lowest 16 count
};
#endif

struct CodePoint {
  std::uint32_t value;  // beyond Unicode where there is none
  std::size_t size;
};

constexpr std::uint32_t kNoCodePoint = 0x110000;

// Returns the code point at `at`, of a byte with the top bit set; one byte that is none where UTF-8 is broken.
inline CodePoint code_point(const std::uint8_t* at, const std::uint8_t* end) {
  const std::size_t size = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
  const CodePoint none{kNoCodePoint, 1};
  if (at[0] < 0xc2 || at[0] > 0xf4 || static_cast<std::size_t>(end - at) < size) return none;
  std::uint32_t value = at[0] & (0x7fU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((at[i] & 0xc0) != 0x80) return none;
    value = value << 6 | (at[i] & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[size] || value >= kNoCodePoint || (value >= 0xd800 && value < 0xe000)) return none;
  return {value, size};
}

inline std::uint64_t mixed(std::uint64_t value) {
  value *= 0x9e3779b97f4a7c15U;
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93U;
  return value ^ value >> 29;
}

// Returns a hash of a word; up to seven bytes behind it are read.
inline std::uint64_t word_hash(const std::uint8_t* word, std::size_t size) {
  std::uint64_t hash = size, part;
  for (; size > 8; word += 8, size -= 8) {
    std::memcpy(&part, word, 8);
    hash = mixed(hash ^ part);
  }
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&part, word, 8);
    part &= ~std::uint64_t{0} >> (64 - 8 * size);
  } else {
    part = 0;
    std::memcpy(&part, word, size);
  }
  return mixed(hash ^ part);
}

}  // namespace detail

// Takes texts apart into words, which stand in `bytes()` with a space behind each.
class WordScanner {
 public:
  explicit WordScanner(const Folding& folding, const Learned& learned) : folding_(folding), learned_(learned) {}

  std::uint8_t* bytes() { return normal_.data(); }

  // Stretches that nobody has normalised yet.
  std::vector<std::string>& unknown() { return unknown_; }

  // Calls `sink.word(start, stop, raw_start, raw_stop)` for each word, the places of its normal form and of the text it
  // was made of, and `sink.end_passage()` where no n-gram may go over: at kPassageEnd, which no text has.
  template <typename Sink>
  void scan(std::span<const std::uint8_t> text, Sink& sink) {
    text_ = text.data();
    end_ = text.data() + text.size();
    normal_.reserve(text.size() + kRoom, 0);
    start_ = out_ = 0;
    const std::uint8_t* at = text_;
    while (at != end_) {
      if (out_ == start_) raw_start_ = at;
      at = take_letters(at);
      if (at == end_) break;
      const std::uint8_t letter = detail::kAsciiLetters[*at];
      if (letter == detail::kNotAscii) {
        at = beyond_ascii(at, sink);
      } else if (letter == detail::kAsciiDropped) {
        ++at;
      } else {
        end_word(at, sink);
        at = behind_ascii_between(at + 1);
      }
    }
    end_word(end_, sink);
  }

 private:
  static constexpr std::size_t kRoom = 64;

  // Appends letters and digits of ASCII; returns where there is another byte.
  const std::uint8_t* take_letters(const std::uint8_t* at) {
    std::uint8_t* out = normal_.data() + out_;
#if defined(__SSE2__)
    while (end_ - at >= 16) {  // byte by byte it takes a third longer
      const detail::Block block(at);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), block.lower);
      const int count = std::countr_one(block.letters);
      out += count;
      at += count;
      if (count < 16) break;
    }
#endif
    std::uint8_t letter;
    while (at != end_ && (letter = detail::kAsciiLetters[*at]) >= '0') {
      *out++ = letter;
      ++at;
    }
    out_ = static_cast<std::size_t>(out - normal_.data());
    return at;
  }

  // Returns where the next byte is that ends no word, or some place before it.
  const std::uint8_t* behind_ascii_between(const std::uint8_t* at) const {
#if defined(__SSE2__)
    if (end_ - at >= 16) return at + std::min(16, std::countr_one(detail::Block(at).between));
#endif
    return at;
  }

  template <typename Sink>
  void end_word(const std::uint8_t* raw_stop, Sink& sink) {
    if (out_ == start_) return;
    const std::size_t stop = out_;
    normal_.data()[out_++] = ' ';
    sink.word(start_, stop, static_cast<std::size_t>(raw_start_ - text_), static_cast<std::size_t>(raw_stop - text_));
    start_ = out_;
  }

  void append(std::span<const std::uint8_t> bytes, const std::uint8_t* raw) {
    if (out_ == start_) raw_start_ = raw;
    std::memcpy(normal_.data() + out_, bytes.data(), bytes.size());
    out_ += bytes.size();
  }

  // Makes room for some bytes, and as many as the rest of the text may take.
  void make_room(std::size_t count, const std::uint8_t* at) {
    normal_.reserve(out_ + count + static_cast<std::size_t>(end_ - at) + kRoom, out_);
  }

  // Reads from a byte beyond ASCII up to where words end for sure; returns where that is.
  template <typename Sink>
  const std::uint8_t* beyond_ascii(const std::uint8_t* at, Sink& sink) {
    const std::uint8_t* stop = at;
    bool is_careful = false;
    while (stop != end_) {
      if (*stop < 0x80) {
        if (detail::kAsciiLetters[*stop] == detail::kAsciiBetween) break;
        ++stop;
        continue;
      }
      const detail::CodePoint point = detail::code_point(stop, end_);
      const std::uint8_t kind = folding_.kinds[point.value];
      if (kind == kBetween) break;
      is_careful |= kind == kCareful;
      stop += point.size;
    }
    if (stop == at) {  // nothing but what ends a word
      end_word(at, sink);
      if (*at == kPassageEnd) sink.end_passage();
      return at + detail::code_point(at, end_).size;
    }
    if (is_careful) {
      take_learned(out_ == start_ ? at : raw_start_, stop, sink);
    } else {
      make_room(0, at);
      take({at, stop}, nullptr, sink);
    }
    return stop;
  }

  // Takes code points, none of them careful; `raw` is where they stand in the text if they are not of it themselves.
  template <typename Sink>
  void take(std::span<const std::uint8_t> bytes, const std::uint8_t* raw, Sink& sink) {
    const std::uint8_t* const end = bytes.data() + bytes.size();
    for (const std::uint8_t* at = bytes.data(); at != end;) {
      const std::uint8_t* const place = raw ? raw : at;
      if (*at < 0x80) {
        const std::uint8_t letter = detail::kAsciiLetters[*at++];
        if (letter >= '0') append({&letter, 1}, place);
        if (letter == detail::kAsciiBetween) end_word(place, sink);
        continue;
      }
      const detail::CodePoint point = detail::code_point(at, end);
      const std::span<const std::uint8_t> own{at, point.size};
      at += point.size;
      const std::uint8_t* const behind = raw ? raw : at;
      switch (folding_.kinds[point.value]) {
        case kMark:
          if (out_ == start_) break;
          [[fallthrough]];
        case kLetter: append(own, place); break;
        case kAlone:
          end_word(place, sink);
          make_room(own.size() + 1, place);
          append(own, place);
          end_word(behind, sink);
          break;
        case kFolded: {
          const auto folded = folding_.of(point.value);
          make_room(2 * folded.size(), place);
          take(folded, place, sink);
          break;
        }
        case kBetween: end_word(place, sink); break;
        default: break;
      }
    }
  }

  template <typename Sink>
  void take_learned(const std::uint8_t* raw, const std::uint8_t* stop, Sink& sink) {
    const std::string_view stretch(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(stop - raw));
    out_ = start_;
    const auto found = learned_.find(stretch);
    if (found == learned_.end()) {
      unknown_.emplace_back(stretch);
      return;
    }
    std::string_view words = found->second;
    make_room(words.size() + 1, raw);
    while (!words.empty()) {
      const std::string_view word = words.substr(0, words.find(' '));
      append({reinterpret_cast<const std::uint8_t*>(word.data()), word.size()}, raw);
      end_word(stop, sink);
      words.remove_prefix(std::min(words.size(), word.size() + 1));
    }
  }

  const Folding& folding_;
  const Learned& learned_;
  GrowingBytes normal_;
  std::vector<std::string> unknown_;
  const std::uint8_t* text_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  const std::uint8_t* raw_start_ = nullptr;  // of the word that is read
  std::size_t start_ = 0, out_ = 0;          // of that word in `normal_`
};

// An n-gram that was found.
struct NgramHit {
  std::int64_t document;
  std::int64_t word;         // of the document, the last of the n-gram; words count from 1
  std::int64_t start, stop;  // tokens of the document
  std::int64_t gram;
};

// The n-grams of some texts: of `length` words, or of all words of a text with fewer, if it has at least `least`. Equal
// ones have one number, in the order in which they are first met. Safe from several threads once it is built.
class NgramIndex {
 public:
  NgramIndex(Folding folding, std::size_t length, std::size_t least)
      : folding_(std::move(folding)), length_(length), least_(least) {
    if (folding_.kinds.size() != detail::kNoCodePoint + 1 || folding_.offsets.size() != folding_.points.size() + 1)
      throw std::invalid_argument("expected a kind for each code point and for none, and a text for each folded one");
    if (least < 1 || length < least || length > kMostNgramWords)
      throw std::invalid_argument("expected n-grams of 1 to 50 words");
    for (std::size_t i = 1; i < powers_.size(); ++i) powers_[i] = powers_[i - 1] * kBase;
  }

  // Takes the texts, once. Returns the stretches that have to be learned first; then nothing was done.
  std::vector<std::string> build(const TextsView& texts, const Learned& learned) {
    Collected found;
    WordScanner scanner(folding_, learned);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      scanner.scan(texts[i], found);
      found.content.insert(found.content.end(), scanner.bytes(), scanner.bytes() + found.size);
      found.end_text();
    }
    if (!scanner.unknown().empty()) return std::move(scanner.unknown());
    word_offsets_ = std::move(found.word_offsets);
    word_ranges_ = std::move(found.ranges);
    content_ = std::move(found.content);
    number_grams(found.starts, found.hashes);
    return {};
  }

  std::size_t num_grams() const { return unique_.size(); }
  const std::vector<std::int64_t>& word_offsets() const { return word_offsets_; }
  const std::vector<std::uint32_t>& word_ranges() const { return word_ranges_; }
  const std::vector<std::int64_t>& gram_offsets() const { return gram_offsets_; }
  const std::vector<std::uint32_t>& grams() const { return grams_; }

  // Documents, as tokens back to back, and where each ends.
  struct Documents {
    std::span<const std::uint32_t> tokens;
    std::span<const std::int64_t> ends;
    bool begins_inside, ends_inside;  // the first is not its beginning, the last not its end
  };

  // What a search found, by document, and what has to be learned before the rest can be searched.
  struct Found {
    std::vector<NgramHit> hits;
    std::vector<std::int64_t> unfinished;  // documents without hits here, as they hold stretches that are not known
    std::vector<std::string> unknown;
  };

  // Searches the documents whose numbers are `wanted`. Throws std::out_of_range for a token without bytes in `table`.
  Found search(const Documents& documents, std::span<const std::int64_t> wanted, const TextsView& table,
               const Learned& learned) const {
    Found found;
    WordScanner scanner(folding_, learned);
    GrowingBytes text;
    std::vector<std::uint32_t> token_ends;
    for (const std::int64_t document : wanted) {
      const auto i = static_cast<std::size_t>(document);
      const auto first = static_cast<std::size_t>(i == 0 ? 0 : documents.ends[i - 1]);
      const auto tokens = documents.tokens.subspan(first, static_cast<std::size_t>(documents.ends[i]) - first);
      std::size_t size = decode(tokens, table, text, token_ends);
      if (documents.ends_inside && i + 1 == documents.ends.size()) size = size_up_to_a_word(text.data(), size);
      const std::size_t num_hits = found.hits.size(), num_unknown = scanner.unknown().size();
      Finder finder(*this, scanner, token_ends, document, found.hits);
      if (documents.begins_inside && i == 0) finder.skip_first();
      scanner.scan({text.data(), size}, finder);
      finder.finish();
      if (scanner.unknown().size() == num_unknown) continue;
      found.hits.resize(num_hits);
      found.unfinished.push_back(document);
    }
    found.unknown = std::move(scanner.unknown());
    return found;
  }

 private:
  static constexpr std::uint64_t kBase = 0xd1342543de82ef95U;
  static constexpr std::uint32_t kNone = 0xffffffffU;

  struct Gram {
    std::uint32_t start, stop;  // of its words in `content_`, without the last space
  };

  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t gram = kNone;
  };

  // The words of all texts, one after the other.
  struct Collected {
    std::vector<std::int64_t> word_offsets{0};
    std::vector<std::uint32_t> ranges;  // in the texts
    std::vector<std::uint32_t> starts;  // in `content`
    std::vector<std::uint64_t> hashes;
    std::vector<std::uint8_t> content;
    std::size_t size = 0;  // of the words of this text
    std::vector<std::pair<std::size_t, std::size_t>> words;

    void word(std::size_t start, std::size_t stop, std::size_t raw_start, std::size_t raw_stop) {
      words.emplace_back(start, stop);
      ranges.push_back(static_cast<std::uint32_t>(raw_start));
      ranges.push_back(static_cast<std::uint32_t>(raw_stop));
      size = stop + 1;
    }

    void end_passage() {}

    void end_text() {
      const std::size_t before = content.size() - size;
      if (content.size() >= kNone) throw std::length_error("expected less than 4 GiB of texts");
      content.resize(content.size() + 8);  // what a hash may read
      for (const auto& [start, stop] : words) {
        starts.push_back(static_cast<std::uint32_t>(before + start));
        hashes.push_back(detail::word_hash(content.data() + before + start, stop - start));
      }
      content.resize(content.size() - 8);
      word_offsets.push_back(static_cast<std::int64_t>(starts.size()));
      words.clear();
      size = 0;
    }
  };

  // Whether a key may be among some: two bits of a word of 64, of which each has 16 to 32, so 1 in 70 to 250 others pass.
  struct Filter {
    explicit Filter(std::size_t count = 0)
        : shift(64 - std::bit_width(16 * count | 63)), bits((std::size_t{1} << (64 - shift)) / 64) {}
    static std::uint64_t mask(std::uint64_t key) {
      return std::uint64_t{1} << (key >> 8 & 63) | std::uint64_t{1} << (key >> 16 & 63);
    }
    void add(std::uint64_t key) { bits[key >> shift >> 6] |= mask(key); }
    bool may_have(std::uint64_t key) const { return (~bits[key >> shift >> 6] & mask(key)) == 0; }
    void prefetch(std::uint64_t key) const { __builtin_prefetch(&bits[key >> shift >> 6]); }
    int shift;
    std::vector<std::uint64_t> bits;
  };

  static std::uint64_t key_of(std::uint64_t hash, std::size_t num_words) {
    return (hash + num_words * 0xa0761d6478bd642fU) * 0xe7037ed1a0b428dbU;
  }

  static std::uint64_t hash_of(std::span<const std::uint64_t> words) {
    std::uint64_t hash = 0;
    for (const std::uint64_t word : words) hash = hash * kBase + word;
    return hash;
  }

  void number_grams(std::span<const std::uint32_t> starts, std::span<const std::uint64_t> hashes) {
    std::size_t num_short = 0;
    for (std::size_t text = 0; text + 1 < word_offsets_.size(); ++text) {
      const std::size_t count = num_words(text);
      if (count >= least_ && count < length_) {
        shortest_ = std::min(shortest_, count);
        ++num_short;
      }
      gram_offsets_.push_back(gram_offsets_.back() + static_cast<std::int64_t>(num_grams_of(count)));
    }
    const auto total = static_cast<std::size_t>(gram_offsets_.back());
    if (total >= kNone) throw std::length_error("expected less than 4 billion n-grams");
    grams_.reserve(total);
    slots_.resize(std::bit_ceil(2 * total + 2));
    std::size_t num_parts = 0;
    for (std::size_t text = 0; text + 1 < word_offsets_.size(); ++text)
      if (const std::size_t count = num_words(text); count >= length_) num_parts += count - part_ + 1;
    filter_ = Filter(num_parts);
    short_filter_ = Filter(num_short);
    for (std::size_t text = 0; text + 1 < word_offsets_.size(); ++text) {
      const auto first = static_cast<std::size_t>(word_offsets_[text]);
      const std::size_t count = num_words(text), words = std::min(count, length_);
      for (std::size_t i = 0; i < num_grams_of(count); ++i) add_gram(starts, hashes, first + i, words);
      for (std::size_t i = 0; count >= length_ && i + part_ <= count; ++i)
        filter_.add(key_of(hash_of(hashes.subspan(first + i, part_)), part_));
    }
  }

  std::size_t num_words(std::size_t text) const {
    return static_cast<std::size_t>(word_offsets_[text + 1] - word_offsets_[text]);
  }

  std::size_t num_grams_of(std::size_t count) const {
    return count >= length_ ? count - length_ + 1 : count >= least_ ? 1 : 0;
  }

  void add_gram(std::span<const std::uint32_t> starts, std::span<const std::uint64_t> hashes, std::size_t first,
                std::size_t words) {
    const std::size_t behind = first + words;
    const std::size_t end = behind == starts.size() ? content_.size() : starts[behind];
    const Gram gram{starts[first], static_cast<std::uint32_t>(end - 1)};
    const std::uint64_t key = key_of(hash_of(hashes.subspan(first, words)), words);
    std::size_t at = slot_of(key);
    for (; slots_[at].gram != kNone; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].key == key && has_words(slots_[at].gram, content_.data() + gram.start, gram.stop - gram.start))
        break;
    if (slots_[at].gram == kNone) {
      slots_[at] = {key, static_cast<std::uint32_t>(unique_.size())};
      unique_.push_back(gram);
      if (words < length_) {
        const std::uint64_t tail = key_of(hash_of(hashes.subspan(first + words - shortest_, shortest_)), shortest_);
        short_filter_.add(tail);
        short_lengths_[tail] |= std::uint64_t{1} << words;
      }
    }
    grams_.push_back(slots_[at].gram);
  }

  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>(detail::mixed(key)) & (slots_.size() - 1);
  }

  bool has_words(std::uint32_t gram, const std::uint8_t* words, std::size_t size) const {
    const Gram& own = unique_[gram];
    return own.stop - own.start == size && std::memcmp(content_.data() + own.start, words, size) == 0;
  }

  // Returns the number of an n-gram, kNone if there is none of these words.
  std::uint32_t find(std::uint64_t key, const std::uint8_t* words, std::size_t size) const {
    for (std::size_t at = slot_of(key); slots_[at].gram != kNone; at = (at + 1) & (slots_.size() - 1))
      if (slots_[at].key == key && has_words(slots_[at].gram, words, size)) return slots_[at].gram;
    return kNone;
  }

  // Writes the bytes of tokens, and where those of each end; returns how many there are.
  static std::size_t decode(std::span<const std::uint32_t> tokens, const TextsView& table, GrowingBytes& text,
                            std::vector<std::uint32_t>& ends) {
    const std::size_t vocabulary = table.size();
    ends.resize(tokens.size());
    std::size_t room = 4 * tokens.size() + kTokenPadding, size = 0;
    text.reserve(room, 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= vocabulary) throw std::out_of_range("token " + std::to_string(tokens[i]));
      const std::uint8_t* const bytes = table.content.data() + table.offsets[tokens[i]];
      const auto count = static_cast<std::size_t>(table.offsets[tokens[i] + 1] - table.offsets[tokens[i]]);
      if (size + count + kTokenPadding > room) [[unlikely]] {
        room = 2 * (size + count + kTokenPadding);
        text.reserve(room, size);
      }
      std::memcpy(text.data() + size, bytes, kTokenPadding);  // of nearly all tokens as many as they have
      if (count > kTokenPadding) [[unlikely]] std::memcpy(text.data() + size, bytes, count);
      size += count;
      ends[i] = static_cast<std::uint32_t>(size);
    }
    if (size > kNone) throw std::length_error("expected less than 4 GiB of text at a time");
    return size;
  }

  // Returns the size of a text that is cut off, without the end that may belong to a word; all of it where no word ends
  // for long, so that not more is left out than the next part has, too.
  static std::size_t size_up_to_a_word(const std::uint8_t* text, std::size_t size) {
    constexpr std::size_t kLongestWord = 4096;
    for (std::size_t end = size; size - end < kLongestWord; --end)
      if (end == 0 || detail::kAsciiLetters[text[end - 1]] == detail::kAsciiBetween) return end;
    return size;
  }

  // Looks for n-grams among the words of a document.
  class Finder {
   public:
    Finder(const NgramIndex& index, WordScanner& scanner, const std::vector<std::uint32_t>& token_ends,
           std::int64_t document, std::vector<NgramHit>& hits)
        : index_(index), scanner_(scanner), token_ends_(token_ends), document_(document), hits_(hits) {}

    void skip_first() { skips_ = true; }

    void end_passage() {
      finish();
      num_before_ += count_ + 1;
      count_ = 0;
      next_ = index_.part_;
      may_be_near_ = false;
      words_[0] = {};
    }

    void word(std::size_t start, std::size_t stop, std::size_t raw_start, std::size_t raw_stop) {
      if (skips_) {
        skips_ = false;
        return;
      }
      const Word& before = words_[count_ % kKept];
      Word& word = words_[++count_ % kKept];
      word.hash = before.hash * kBase + detail::word_hash(scanner_.bytes() + start, stop - start);
      word.start = start;
      word.stop = stop;
      word.raw_start = raw_start;
      word.raw_stop = raw_stop;
      word.key = 0;
      if (count_ == next_) {
        word.key = key_of(count_, index_.part_);
        index_.filter_.prefetch(word.key);
        next_ += index_.step_;
      }
      word.tail = index_.shortest_ <= std::min(count_, kMostNgramWords) ? key_of(count_, index_.shortest_) : 0;
      if (count_ > kLater) look_at(count_ - kLater);
    }

    // Looks at the last words.
    void finish() {
      for (std::size_t at = count_ > kLater ? count_ - kLater + 1 : 1; at <= count_; ++at) look_at(at);
    }

   private:
    static constexpr std::size_t kKept = 64;
    static constexpr std::size_t kLater = 12;  // words, in which memory answers: twice as fast with a million n-grams

    struct Word {
      std::uint64_t hash = 0;  // of all words up to it
      std::uint64_t key, tail;  // of the part of n-grams and of the shortest text that end with it, 0 for none
      std::size_t start, stop, raw_start, raw_stop;
    };

    // Returns the key of the words that end with a word.
    std::uint64_t key_of(std::size_t last, std::size_t num_words) const {
      const std::uint64_t before = words_[(last - num_words) % kKept].hash;
      return NgramIndex::key_of(words_[last % kKept].hash - before * index_.powers_[num_words], num_words);
    }

    void look_at(std::size_t last) {
      const Word& word = words_[last % kKept];
      if (word.key) may_be_near_ = index_.filter_.may_have(word.key);
      if (may_be_near_ && last >= index_.length_) look(key_of(last, index_.length_), last, index_.length_);
      if (!word.tail || !index_.short_filter_.may_have(word.tail)) return;
      const auto found = index_.short_lengths_.find(word.tail);
      if (found == index_.short_lengths_.end()) return;
      for (std::uint64_t lengths = found->second; lengths; lengths &= lengths - 1) {
        const auto num_words = static_cast<std::size_t>(std::countr_zero(lengths));
        if (num_words <= last) look(key_of(last, num_words), last, num_words);
      }
    }

    void look(std::uint64_t key, std::size_t last, std::size_t num_words) {
      const Word& first = words_[(last - num_words + 1) % kKept];
      const Word& word = words_[last % kKept];
      const std::uint32_t gram = index_.find(key, scanner_.bytes() + first.start, word.stop - first.start);
      if (gram == kNone) return;
      hits_.push_back({document_, static_cast<std::int64_t>(num_before_ + last), token_of(first.raw_start),
                       token_of(word.raw_stop - 1) + 1, gram});
    }

    // Returns the token that a byte of the text belongs to.
    std::int64_t token_of(std::size_t byte) const {
      return std::upper_bound(token_ends_.begin(), token_ends_.end(), byte) - token_ends_.begin();
    }

    const NgramIndex& index_;
    WordScanner& scanner_;
    const std::vector<std::uint32_t>& token_ends_;
    const std::int64_t document_;
    std::vector<NgramHit>& hits_;
    std::array<Word, kKept> words_;  // number n at n % kKept, from 1 on
    std::size_t count_ = 0, num_before_ = 0;  // words since the last end of passages, and before that
    std::size_t next_ = index_.part_;         // the next word that a part to be filtered ends with
    bool may_be_near_ = false;                // whether n-grams may have the last of these parts
    bool skips_ = false;
  };

  Folding folding_;
  std::size_t length_, least_;
  // The filter has all parts of n-grams with `part_` words. Each n-gram has one of those that end `step_` words from
  // each other in a document, so it is asked once in `step_` words: memory answers in 100 ns, a word is read in 30 ns.
  std::size_t part_ = length_ / 2 + 1, step_ = length_ - part_ + 1;
  std::size_t shortest_ = kMostNgramWords + 1;  // words of the shortest text that is taken whole; more for none
  std::array<std::uint64_t, kMostNgramWords + 1> powers_{1};
  std::vector<std::int64_t> word_offsets_{0}, gram_offsets_{0};  // of each text
  std::vector<std::uint32_t> word_ranges_;                       // of each word in its text, start and stop
  std::vector<std::uint8_t> content_;                            // all words, with a space behind each
  std::vector<Gram> unique_;
  std::vector<std::uint32_t> grams_;  // the number of each
  std::vector<Slot> slots_;
  Filter filter_, short_filter_;
  std::unordered_map<std::uint64_t, std::uint64_t> short_lengths_;  // a bit for each, by the key of their last words
};

}  // namespace tokenloom
