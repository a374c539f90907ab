// The texts of lines, of JSON or plain: UTF-8 back to back, without an object or an allocation for any of them.
//
// Strict: a line with anything unusual is left to a slower reader, and a block with many of them as a whole, so nothing
// here has to be explained or forgiven. Strings are read 32 bytes at a time, or eight in a plain register, and copied on
// the way. Measured at 2.5 GHz, the check of UTF-8 included: source code with an escape every 26 bytes at 1.4 GB/s (eight
// bytes at a time: 1.1), prose at 3.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "utf8.hpp"

namespace tokenloom {

// Texts back to back: text i is bytes [offsets[i], offsets[i + 1]).
struct TextColumn {
  explicit TextColumn(std::size_t room)
      : bytes(std::make_unique_for_overwrite<std::uint8_t[]>(room)), end(bytes.get()) {}

  void end_text() { offsets.push_back(end - bytes.get()); }

  // Forgets all texts from `count` on, and what was written of the next one.
  void keep(std::size_t count) {
    offsets.resize(count + 1);
    end = bytes.get() + offsets.back();
  }

  std::unique_ptr<std::uint8_t[]> bytes;
  std::uint8_t* end;  // of what is written
  std::vector<std::int64_t> offsets{0};
};

// The texts under some keys, and three numbers for each line that has none of them here: how many texts come before it,
// and its bytes [start, stop) without the newline.
struct JsonTexts {
  std::vector<TextColumn> columns;
  std::vector<std::int64_t> unusual;
};

namespace detail {

struct Unusual {};  // thrown where a line is refused

constexpr std::uint64_t in_all_bytes(std::uint8_t value) { return 0x0101010101010101U * value; }

inline std::uint64_t load_word(const std::uint8_t* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Sets the top bit of each byte that does not stand for itself inside a string: quotes, backslashes and control
// characters. No sum carries into the next byte.
inline std::uint64_t unusual_bytes(std::uint64_t word) {
  constexpr std::uint64_t kLow = in_all_bytes(0x7f);
  const std::uint64_t low = word & kLow;
  const std::uint64_t no_quote = (low ^ in_all_bytes('"')) + kLow;
  const std::uint64_t no_backslash = (low ^ in_all_bytes('\\')) + kLow;
  const std::uint64_t no_control = low + in_all_bytes(0x80 - 0x20);
  return ~((no_quote & no_backslash & no_control) | word) & ~kLow;
}

// Returns which byte in memory is the first of those that are marked by their top bit.
inline std::size_t first_marked(std::uint64_t marks) {
  const int bits = std::endian::native == std::endian::little ? std::countr_zero(marks) : std::countl_zero(marks);
  return static_cast<std::size_t>(bits) / 8;
}

#if defined(__SSE2__)
// The same for 16 bytes: sets bit i for byte i.
inline std::uint32_t unusual_bytes(__m128i bytes) {
  const __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
  const __m128i backslashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
  const __m128i controls = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
  return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, backslashes), controls)));
}
#endif

// Returns how many bytes from `at` on stand for themselves inside a string, or a few less near the end of the data;
// copies them if asked to, and some of those behind them, but never more bytes than there are up to `end`.
template <bool kWrites>
std::size_t copy_plain(const std::uint8_t* at, const std::uint8_t* end, std::uint8_t* out) {
  const std::size_t size = static_cast<std::size_t>(end - at);
  std::size_t done = 0;
#if defined(__SSE2__)
  for (; size - done >= 32; done += 32) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + done));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + done + 16));
    if constexpr (kWrites) std::memcpy(out + done, at + done, 32);
    const std::uint32_t marks = unusual_bytes(low) | unusual_bytes(high) << 16;
    if (marks != 0) return done + static_cast<std::size_t>(std::countr_zero(marks));
  }
#endif
  for (; size - done >= 8; done += 8) {
    const std::uint64_t word = load_word(at + done);
    if constexpr (kWrites) std::memcpy(out + done, &word, sizeof word);
    const std::uint64_t marks = unusual_bytes(word);
    if (marks != 0) return done + first_marked(marks);
  }
  return done;
}

inline std::uint8_t* write_character(std::uint32_t code, std::uint8_t* out) {
  const auto put = [&out](std::uint32_t value) { *out++ = static_cast<std::uint8_t>(value); };
  if (code < 0x80) {
    put(code);
    return out;
  }
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
  return out;
}

// What a letter behind a backslash stands for; 0 for none, and for `u`.
inline constexpr std::array<std::uint8_t, 256> kEscapes = [] {
  std::array<std::uint8_t, 256> values{};
  for (const std::uint8_t same : {'"', '\\', '/'}) values[same] = same;
  values['b'] = '\b', values['f'] = '\f', values['n'] = '\n', values['r'] = '\r', values['t'] = '\t';
  return values;
}();

inline constexpr std::array<std::int8_t, 256> kHexDigits = [] {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::uint8_t i = 0; i < 10; ++i) values['0' + i] = static_cast<std::int8_t>(i);
  for (std::uint8_t i = 0; i < 6; ++i) values['a' + i] = values['A' + i] = static_cast<std::int8_t>(10 + i);
  return values;
}();

// Reads lines of JSON in UTF-8 from the front. Every reading method throws `Unusual`, at the end of the data too.
class JsonReader {
 public:
  explicit JsonReader(std::span<const std::uint8_t> data) : at_(data.data()), end_(data.data() + data.size()) {}

  bool is_at_end() const { return at_ == end_; }
  const std::uint8_t* at() const { return at_; }

  // Goes on behind a line that ends there.
  void skip_line(const std::uint8_t* stop) { at_ = stop == end_ ? stop : stop + 1; }

  // Reads one object and the end of its line; adds the string under each key to its column.
  void read_line(std::span<const std::string_view> keys, std::span<TextColumn> columns) {
    const std::size_t wanted = columns.front().offsets.size() + 1;
    skip_space();
    take('{');
    do {
      skip_space();
      const std::string_view key = read_key();
      const std::size_t number = static_cast<std::size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
      if (number == keys.size()) {
        skip_value();
      } else {
        TextColumn& column = columns[number];
        if (column.offsets.size() == wanted) throw Unusual{};  // the key comes twice
        take('"');
        column.end = read_string<true>(column.end);
        column.end_text();
      }
      skip_space();
    } while (took(','));
    take('}');
    skip_space();
    if (!is_at_end()) take('\n');
    for (const TextColumn& column : columns)
      if (column.offsets.size() != wanted) throw Unusual{};
  }

 private:
  static constexpr int kMaxDepth = 64;
  // A number of so many bytes whose exponent, unless negative, has two digits is finite as a double.
  static constexpr std::ptrdiff_t kMaxNumberBytes = 64;

  std::uint8_t peek() const {
    if (at_ == end_) throw Unusual{};
    return *at_;
  }

  bool took(std::uint8_t expected) {
    if (at_ == end_ || *at_ != expected) return false;
    ++at_;
    return true;
  }

  void take(std::uint8_t expected) {
    if (!took(expected)) throw Unusual{};
  }

  // A newline is no space: it ends the line.
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  // Returns a key as it is written, which is what it says, and goes on to its value.
  std::string_view read_key() {
    take('"');
    const std::uint8_t* start = at_;
    read_string<false>(nullptr);
    const std::string_view key(reinterpret_cast<const char*>(start), static_cast<std::size_t>(at_ - 1 - start));
    if (key.find('\\') != std::string_view::npos) throw Unusual{};
    after_key();
    return key;
  }

  void skip_key() {
    take('"');
    read_string<false>(nullptr);
    after_key();
  }

  void after_key() {
    skip_space();
    take(':');
    skip_space();
  }

  // Reads to behind the closing quote; writes the text to `out` if asked to, and returns its end. What is written is
  // never longer than what was read, so that there is room for as many bytes as are left to read.
  template <bool kWrites>
  std::uint8_t* read_string(std::uint8_t* out) {
    const std::uint8_t* at = at_;  // bytes that are written might be those of `this`, as far as the compiler knows
    const std::uint8_t* const end = end_;
    for (;;) {
      const std::size_t plain = copy_plain<kWrites>(at, end, out);
      at += plain;
      if constexpr (kWrites) out += plain;
      if (at == end) throw Unusual{};
      const std::uint8_t byte = *at;
      if (byte == '"') break;
      if (byte == '\\') {
        std::tie(at, out) = read_escape<kWrites>(at, end, out);
      } else {
        if (byte < 0x20) throw Unusual{};
        if constexpr (kWrites) *out++ = byte;
        ++at;
      }
    }
    at_ = at + 1;
    return out;
  }

  using Places = std::pair<const std::uint8_t*, std::uint8_t*>;

  // Reads what begins with a backslash.
  template <bool kWrites>
  static Places read_escape(const std::uint8_t* at, const std::uint8_t* end, std::uint8_t* out) {
    if (end - at < 2) throw Unusual{};
    if (at[1] != 'u') {
      const std::uint8_t value = kEscapes[at[1]];
      if (value == 0) throw Unusual{};
      if constexpr (kWrites) *out++ = value;
      return {at + 2, out};
    }
    std::uint32_t code = code_unit(at, end);
    at += 6;
    if (code >= 0xd800 && code < 0xe000) {
      const std::uint32_t low = code < 0xdc00 ? code_unit(at, end) : 0;
      if (low < 0xdc00 || low >= 0xe000) throw Unusual{};
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      at += 6;
    }
    if constexpr (kWrites) out = write_character(code, out);
    return {at, out};
  }

  // Returns the number of a `\u0000`.
  static std::uint32_t code_unit(const std::uint8_t* at, const std::uint8_t* end) {
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') throw Unusual{};
    const auto digit = [at](int i) { return static_cast<int>(kHexDigits[at[i]]); };
    const int code = digit(2) << 12 | digit(3) << 8 | digit(4) << 4 | digit(5);
    if (code < 0) throw Unusual{};
    return static_cast<std::uint32_t>(code);
  }

  // Reads a value of any kind and depth; bit d of `objects` says whether the container d levels up is an object.
  void skip_value() {
    std::uint64_t objects = 0;
    int depth = 1;  // the object of the line
    for (;;) {
      const std::uint8_t first = peek();
      if (first == '{' || first == '[') {
        if (depth++ == kMaxDepth) throw Unusual{};
        objects = objects << 1 | (first == '{');
        ++at_;
        skip_space();
        if (peek() != (first == '{' ? '}' : ']')) {
          if (first == '{') skip_key();
          continue;
        }
      } else {
        skip_scalar(first);
      }
      for (;;) {  // a value, or a container without any, is behind us
        if (depth == 1) return;
        skip_space();
        if (took(',')) break;
        take((objects & 1) != 0 ? '}' : ']');
        objects >>= 1;
        --depth;
      }
      skip_space();
      if ((objects & 1) != 0) skip_key();
    }
  }

  void skip_scalar(std::uint8_t first) {
    switch (first) {
      case '"':
        ++at_;
        read_string<false>(nullptr);
        break;
      case 't': skip_word("true"); break;
      case 'f': skip_word("false"); break;
      case 'n': skip_word("null"); break;
      default: skip_number();
    }
  }

  void skip_word(std::string_view word) {
    for (const char letter : word) take(static_cast<std::uint8_t>(letter));
  }

  void skip_number() {
    const std::uint8_t* start = at_;
    took('-');
    if (!took('0')) skip_digits(kMaxNumberBytes);
    if (took('.')) skip_digits(kMaxNumberBytes);
    if (took('e') || took('E')) {
      const bool is_small = took('-');
      if (!is_small) took('+');
      skip_digits(is_small ? 3 : 2);
    }
    if (at_ - start > kMaxNumberBytes) throw Unusual{};
  }

  void skip_digits(std::ptrdiff_t most) {
    const std::uint8_t* start = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    if (at_ == start || at_ - start > most) throw Unusual{};
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

inline bool is_blank(std::span<const std::uint8_t> line) {
  const auto is_space = [](std::uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); };
  return std::all_of(line.begin(), line.end(), is_space);
}

}  // namespace detail

// Returns the strings under each key of lines of JSON objects, apart from lines that are anything but an object with one
// string under each key, or hold what readers of JSON disagree about; nothing if there are more of these than allowed.
inline std::optional<JsonTexts> json_texts(std::span<const std::uint8_t> data, std::span<const std::string_view> keys,
                                           std::size_t most_unusual) {
  JsonTexts found;
  for (std::size_t i = 0; i < keys.size(); ++i) found.columns.emplace_back(data.size());
  const bool is_sound = is_utf8(data);
  const std::uint8_t* const end = data.data() + data.size();
  detail::JsonReader reader(data);
  for (std::size_t count = 0; !reader.is_at_end();) {
    const std::uint8_t* const start = reader.at();
    try {
      if (!is_sound && !is_utf8({start, std::find(start, end, '\n')})) throw detail::Unusual{};
      reader.read_line(keys, found.columns);
      ++count;
    } catch (const detail::Unusual&) {
      if (found.unusual.size() / 3 == most_unusual) return std::nullopt;
      for (TextColumn& column : found.columns) column.keep(count);
      const std::uint8_t* const stop = std::find(start, end, '\n');
      found.unusual.insert(found.unusual.end(),
                           {static_cast<std::int64_t>(count), start - data.data(), stop - data.data()});
      reader.skip_line(stop);
    }
  }
  return found;
}

// Returns lines of text without their newlines; nothing if one is blank, or not UTF-8.
inline std::optional<TextColumn> line_texts(std::span<const std::uint8_t> data) {
  if (!is_utf8(data)) return std::nullopt;
  TextColumn column(data.size());
  for (auto at = data.begin(); at < data.end();) {
    const auto stop = std::find(at, data.end(), '\n');
    if (detail::is_blank({at, stop})) return std::nullopt;
    column.end = std::copy(at, stop, column.end);
    column.end_text();
    at = stop == data.end() ? stop : stop + 1;
  }
  return column;
}

}  // namespace tokenloom
