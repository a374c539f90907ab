// Blends.
#include <nanobind/stl/optional.h>

#include <optional>

#include "../blend.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

template <typename DatasetId>
void blending_indices(const Array<const double>& weights, const std::optional<Array<const std::int64_t>>& sizes,
                      const Array<DatasetId>& dataset_index, const Array<std::int64_t>& sample_index) {
  if (dataset_index.size() != sample_index.size()) throw nb::value_error("both outputs must be equally long");
  if (sizes && sizes->size() != weights.size()) throw nb::value_error("sizes must be as many as weights");
  if (weights.size() == 0) throw nb::value_error("expected at least one dataset");
  nb::gil_scoped_release release;
  Blend blend(as_span<const double>(weights),
              sizes ? as_span<const std::int64_t>(*sizes) : std::span<const std::int64_t>{});
  blend.fill(static_cast<std::int64_t>(dataset_index.size()), dataset_index.data(), sample_index.data());
}

void blending_counts(const Array<const double>& weights, std::int64_t size, const Array<std::int64_t>& out) {
  if (out.size() != weights.size() || weights.size() == 0 || size < 0)
    throw nb::value_error("out must be as long as weights, at least one, and size not negative");
  nb::gil_scoped_release release;
  Blend blend(as_span<const double>(weights), {});
  blend.skip(size);
  blend.counts(as_span<std::int64_t>(out));
}

}  // namespace

void bind_blending(nb::module_& module) {
  module.def("build_blending_indices", &blending_indices<std::int16_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert());
  module.def("build_blending_indices", &blending_indices<std::int32_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert());
  module.def("blending_counts", &blending_counts, "weights"_a.noconvert(), "size"_a, "out"_a.noconvert());
}

}  // namespace tokenloom
