// Spans, what positions become; and the arrays they are read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace tokenloom {

// A read-only array whose integer type is known only at run time. The switch costs less than the cache miss
// behind it and keeps every caller free of a template per combination of types.
struct IntegerArray {
  enum class Kind : std::uint8_t { kInt32, kUint32, kInt64 };
  const void* data = nullptr;
  std::int64_t size = 0;
  Kind kind = Kind::kInt64;

  std::int64_t operator[](std::int64_t index) const {
    switch (kind) {
      case Kind::kInt32: return static_cast<const std::int32_t*>(data)[index];
      case Kind::kUint32: return static_cast<const std::uint32_t*>(data)[index];
      default: return static_cast<const std::int64_t*>(data)[index];
    }
  }
};

// A read-only array that need not be aligned. The arrays of an .idx file start at byte 34; copying them to aligned
// memory would cost 12 bytes per document in every process, loading through memcpy costs nothing.
template <typename Value>
struct UnalignedArray {
  const std::uint8_t* bytes = nullptr;
  std::size_t count = 0;

  std::size_t size() const { return count; }
  Value operator[](std::size_t index) const {
    Value value;
    std::memcpy(&value, bytes + index * sizeof(Value), sizeof(Value));
    return value;
  }
  const std::uint8_t* address(std::size_t index) const { return bytes + index * sizeof(Value); }
};

struct Span {
  std::int64_t sequence;  // row of the index of the .idx file; below 0, -1 - row, of a document that must not be read
  std::int64_t start;     // tokens from the start of the sequence
  std::int64_t length;    // tokens
};

// What turns a position into spans. One virtual call per sample, which is nothing beside copying its tokens.
class SpanSource {
 public:
  virtual ~SpanSource() = default;

  // Sequences that spans may name.
  virtual std::int64_t num_sequences() const = 0;

  // Appends the spans of sample `position`, in order. Empty ones, where there are any, are left out unless asked for.
  virtual void append_spans(std::int64_t position, bool keep_empty, std::vector<Span>& spans) const = 0;
};

// Returns the row of the sample index (or of the packs) behind a position.
inline std::int64_t shuffled(const IntegerArray& shuffle_index, std::int64_t position, std::int64_t num_rows,
                             const char* rows) {
  if (position < 0 || position >= shuffle_index.size)
    throw std::out_of_range("sample " + std::to_string(position) + " of " + std::to_string(shuffle_index.size));
  const std::int64_t row = shuffle_index[position];
  if (row < 0 || row >= num_rows)
    throw std::out_of_range("shuffle index names " + std::string(rows) + " " + std::to_string(row) + " of " +
                            std::to_string(num_rows));
  return row;
}

}  // namespace tokenloom
