// Checksums, and whether the rows of an index are consistent.
#include <cstdint>

#include "../crc32.hpp"
#include "../index_rows.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "without_lock.hpp"

namespace tokenloom {
namespace {

std::uint32_t crc32_of(const Array<const std::uint8_t>& data, std::uint32_t before) {
  const WithoutLock unlocked;
  return crc32(data.data(), data.size(), before);
}

nb::tuple rows_end(const Array<const std::int32_t>& lengths, const Array<const std::int64_t>& pointers,
                   std::int64_t start, std::int64_t itemsize) {
  if (lengths.size() != pointers.size()) throw nb::value_error("expected as many pointers as lengths");
  RowsEnd end{};
  {
    const WithoutLock unlocked;
    end = check_rows(as_unaligned(lengths), as_unaligned(pointers), start, itemsize);
  }
  return nb::make_tuple(end.row, end.pointer);
}

std::size_t fall_of(const Array<const std::int64_t>& boundaries) {
  const WithoutLock unlocked;
  return first_fall(as_unaligned(boundaries));
}

}  // namespace

void bind_checks(nb::module_& module) {
  module.def("crc32", &crc32_of, "data"_a.noconvert(), "before"_a);
  module.def("check_rows", &rows_end, "lengths"_a.noconvert(), "pointers"_a.noconvert(), "start"_a, "itemsize"_a);
  module.def("first_fall", &fall_of, "boundaries"_a.noconvert());
}

}  // namespace tokenloom
