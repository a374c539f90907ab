// Indices: shuffles, windows, positions to spans.
#include <cstdint>
#include <utility>
#include <vector>

#include "../shuffle.hpp"
#include "../windows.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "window_reader.hpp"

namespace tokenloom {
namespace {

template <typename Element>
void shuffle(Mt19937& generator, const Array<Element>& values) {
  nb::gil_scoped_release release;
  legacy_shuffle(as_span<Element>(values), generator);
}

template <typename Document, typename Row>
void sample_index(const Array<const std::int32_t>& lengths, const Array<const Document>& document_index,
                  std::int64_t window_length, std::int64_t extra, const Matrix<Row>& out) {
  if (out.shape(0) < 1 || out.shape(1) != 2) throw nb::value_error("out must be [num_windows + 1, 2]");
  if (window_length < 1 || extra < 0 || extra > 1)
    throw nb::value_error("window_length must be at least 1, and extra 0 or 1");
  nb::gil_scoped_release release;
  build_sample_index(as_unaligned(lengths), as_span<const Document>(document_index), window_length,
                     extra, static_cast<std::int64_t>(out.shape(0)) - 1, out.data());
}

}  // namespace

void bind_order(nb::module_& module) {
  nb::class_<Mt19937>(module, "Mt19937", "The generator behind numpy.random.RandomState, for legacy shuffles.")
      .def(nb::init<std::uint32_t>(), "seed"_a)
      .def("shuffle", &shuffle<std::int32_t>, "values"_a.noconvert(), "Shuffle in place as RandomState does.")
      .def("shuffle", &shuffle<std::uint32_t>, "values"_a.noconvert())
      .def("shuffle", &shuffle<std::int64_t>, "values"_a.noconvert());

  module.def("build_sample_index", &sample_index<std::int32_t, std::int32_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int32_t, std::int64_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int64_t, std::int32_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int64_t, std::int64_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());

  nb::class_<WindowReader>(module, "WindowReader", "Positions to spans over a document, sample and shuffle index.")
      .def(nb::init<Array<const std::int32_t>, AnyArray, AnyArray, AnyArray, std::int64_t, std::int64_t,
                    std::int64_t>(),
           "lengths"_a.noconvert(), "document_index"_a.noconvert(), "sample_index"_a.noconvert(),
           "shuffle_index"_a.noconvert(), nb::kw_only(), "window_length"_a, "extra"_a, "num_tokens"_a)
      .def("spans", &WindowReader::spans, "positions"_a.noconvert(), nb::kw_only(), "keep_empty"_a);
}

}  // namespace tokenloom
