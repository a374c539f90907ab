// Texts of lines, and tokens put between those of texts.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "../code_points.hpp"
#include "../insertion.hpp"
#include "../json_texts.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using Offsets = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;

std::pair<Bytes, Offsets> to_numpy(TextColumn&& column) {
  const std::size_t size = static_cast<std::size_t>(column.end - column.bytes.get());
  std::uint8_t* bytes = column.bytes.get();
  nb::capsule owner(bytes, [](void* pointer) noexcept { delete[] static_cast<std::uint8_t*>(pointer); });
  column.bytes.release();
  return {Bytes(bytes, {size}, owner), tokenloom::to_numpy(std::move(column.offsets))};
}

std::span<const std::uint8_t> bytes_of(const nb::bytes& data) {
  return {reinterpret_cast<const std::uint8_t*>(data.c_str()), data.size()};
}

using Columns = std::vector<std::pair<Bytes, Offsets>>;

std::optional<std::pair<Columns, Offsets>> json_texts_of(const nb::bytes& lines, const std::vector<nb::bytes>& keys,
                                                         std::size_t most_unusual) {
  if (keys.empty()) throw nb::value_error("expected at least one key");
  std::vector<std::string_view> names;
  for (const nb::bytes& key : keys) names.emplace_back(key.c_str(), key.size());
  std::optional<JsonTexts> found;
  {
    const WithoutLock unlocked;
    found = json_texts(bytes_of(lines), names, most_unusual);
  }
  if (!found) return std::nullopt;
  Columns columns;
  for (TextColumn& column : found->columns) columns.push_back(to_numpy(std::move(column)));
  return std::pair{std::move(columns), tokenloom::to_numpy(std::move(found->unusual))};
}

std::optional<std::pair<Bytes, Offsets>> line_texts_of(const nb::bytes& lines) {
  std::optional<TextColumn> column;
  {
    const WithoutLock unlocked;
    column = line_texts(bytes_of(lines));
  }
  if (!column) return std::nullopt;
  return to_numpy(std::move(*column));
}

Offsets texts_with_of(const Array<const std::uint8_t>& content, const Array<const std::int64_t>& offsets,
                      const Matrix<const std::uint32_t>& ranges) {
  if (ranges.shape(1) != 2) throw nb::value_error("expected the two ends of each range");
  std::vector<CodePointRange> wanted;
  for (std::size_t row = 0; row < ranges.shape(0); ++row) {
    const CodePointRange range{ranges(row, 0), ranges(row, 1)};
    if (range.start < 0x80 || range.stop <= range.start || range.stop > 0x110000) {
      throw nb::value_error("expected ranges of code points beyond ASCII");
    }
    wanted.push_back(range);
  }
  std::vector<std::int64_t> found;
  {
    const WithoutLock unlocked;
    found = texts_with(as_span<const std::uint8_t>(content), as_span<const std::int64_t>(offsets), wanted);
  }
  return tokenloom::to_numpy(std::move(found));
}

void insert_items_of(const Array<const std::uint8_t>& items, std::size_t itemsize,
                     const Array<const std::int64_t>& places, const Array<const std::uint8_t>& values,
                     const Array<std::uint8_t>& out) {
  if (itemsize == 0 || items.size() % itemsize != 0) throw nb::value_error("expected whole items");
  const WithoutLock unlocked;
  insert_items(as_span<const std::uint8_t>(items), itemsize, as_span<const std::int64_t>(places),
               as_span<const std::uint8_t>(values), as_span<std::uint8_t>(out));
}

}  // namespace

void bind_texts(nb::module_& module) {
  module.def("json_texts", &json_texts_of, "lines"_a, "keys"_a, "most_unusual"_a,
             "Returns (UTF-8 back to back, offsets) of the strings under each key of lines of JSON, and (texts before, "
             "start, stop) of each unusual line, which has none; None if there are more of these than allowed.");
  module.def("line_texts", &line_texts_of, "lines"_a,
             "Returns (UTF-8 back to back, offsets) of lines of text; None if one is blank or not UTF-8.");
  module.def("texts_with", &texts_with_of, "content"_a, "offsets"_a, "ranges"_a,
             "Returns which texts, of UTF-8 back to back, hold a code point of the ranges [start, stop).");
  module.def("insert_items", &insert_items_of, "items"_a, "itemsize"_a, "places"_a, "values"_a, "out"_a,
             "Copies items, with a value before that of each place.");
}

}  // namespace tokenloom
