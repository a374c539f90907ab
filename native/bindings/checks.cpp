// Checksums, digests of samples, and whether the rows of an index are consistent.
#include <cstdint>
#include <vector>

#include "../crc32.hpp"
#include "../index_rows.hpp"
#include "../sample_digest.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "sequences.hpp"
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

template <typename Integer>
void digest_rows(const Matrix<const Integer>& tokens, const Matrix<std::uint64_t>& out) {
  if (tokens.shape(0) != out.shape(0) || out.shape(1) != 2) throw nb::value_error("expected two numbers for each row");
  const WithoutLock unlocked;
  for (std::size_t row = 0; row < out.shape(0); ++row) {
    const std::size_t length = tokens.shape(1);
    const SampleDigest digest = digest_tokens(tokens.data() + row * length, static_cast<std::int64_t>(length));
    out.data()[2 * row] = digest.low;
    out.data()[2 * row + 1] = digest.high;
  }
}

// The digests of batches, one after the other, and their sum. Each batch is summed at once: keeping its positions would
// keep their memory from being used again while it is in the cache.
class DigestSums {
 public:
  // positions: any sequence of integers and None; what stands at None does not count.
  void add(nb::handle positions, const Matrix<const std::uint64_t>& digests) {
    const nb::object known = nb::steal(PySequence_Fast(positions.ptr(), "expected a sequence of positions"));
    if (!known.is_valid()) throw nb::python_error();
    const Items items(known);
    const auto count = static_cast<std::size_t>(items.size());
    if (count != digests.shape(0) || digests.shape(1) != 2)
      throw nb::value_error("expected two numbers for each position");
    SampleDigest sum;
    std::int64_t num_samples = 0;
    for (std::size_t row = 0; row < count; ++row) {
      PyObject* item = items[static_cast<Py_ssize_t>(row)];
      if (item == Py_None) continue;
      const long long position = PyLong_AsLongLong(item);
      if (position == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
      const SampleDigest digest = digest_at(position, {digests.data()[2 * row], digests.data()[2 * row + 1]});
      sum.low += digest.low;
      sum.high += digest.high;
      ++num_samples;
    }
    sums_.push_back(sum.low);
    sums_.push_back(sum.high);
    total_.low += sum.low;
    total_.high += sum.high;
    num_samples_ += num_samples;
  }

  std::size_t num_batches() const { return sums_.size() / 2; }
  std::int64_t num_samples() const { return num_samples_; }
  std::uint64_t low() const { return total_.low; }
  std::uint64_t high() const { return total_.high; }
  nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<1>> sums() const { return to_numpy(std::vector(sums_)); }

 private:
  std::vector<std::uint64_t> sums_;  // lower and upper half of each batch
  SampleDigest total_;
  std::int64_t num_samples_ = 0;
};

}  // namespace

void bind_checks(nb::module_& module) {
  module.def("crc32", &crc32_of, "data"_a.noconvert(), "before"_a);
  module.def("check_rows", &rows_end, "lengths"_a.noconvert(), "pointers"_a.noconvert(), "start"_a, "itemsize"_a);
  module.def("first_fall", &fall_of, "boundaries"_a.noconvert());
  module.def("digest_rows", &digest_rows<std::int64_t>, "tokens"_a.noconvert(), "out"_a.noconvert());
  module.def("digest_rows", &digest_rows<std::int32_t>, "tokens"_a.noconvert(), "out"_a.noconvert());
  nb::class_<DigestSums>(module, "DigestSums", "Digests of batches, and their sum.")
      .def(nb::init<>())
      .def("add", &DigestSums::add, "positions"_a, "digests"_a.noconvert())
      .def_prop_ro("num_batches", &DigestSums::num_batches)
      .def_prop_ro("num_samples", &DigestSums::num_samples)
      .def_prop_ro("low", &DigestSums::low)
      .def_prop_ro("high", &DigestSums::high)
      .def("sums", &DigestSums::sums);
}

}  // namespace tokenloom
