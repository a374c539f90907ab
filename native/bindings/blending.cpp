// Blends.
#include <sys/mman.h>

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>

#include "../blend_parallel.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

// Takes the pages of an array that is about to be written, where the system can do that in one call.
void populate(void* data, std::size_t num_bytes) {
#if defined(MADV_POPULATE_WRITE)
  constexpr std::uintptr_t kPage = 4096;
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + num_bytes) / kPage * kPage;
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE));
#endif
}

void check_weights(const Array<const double>& weights) {
  const auto all = as_span<const double>(weights);
  if (all.empty()) throw nb::value_error("expected at least one dataset");
  const auto is_share = [](double weight) { return weight >= 0 && weight <= 1; };  // which NaN is not
  if (!std::all_of(all.begin(), all.end(), is_share)) throw nb::value_error("expected weights from 0 to 1");
}

template <typename DatasetId>
void blending_indices(const Array<const double>& weights, const std::optional<Array<const std::int64_t>>& sizes,
                      const Array<DatasetId>& dataset_index, const Array<std::int64_t>& sample_index,
                      std::int64_t num_threads, std::int64_t warm_up) {
  if (dataset_index.size() != sample_index.size()) throw nb::value_error("both outputs must be equally long");
  if (sizes && sizes->size() != weights.size()) throw nb::value_error("sizes must be as many as weights");
  check_weights(weights);
  if (sizes && std::any_of(sizes->data(), sizes->data() + sizes->size(), [](std::int64_t size) { return size < 0; }))
    throw nb::value_error("expected no negative sizes");
  if (num_threads < 1 || warm_up < 0) throw nb::value_error("expected a thread, and no negative warm_up");
  const auto limits = sizes ? as_span<const std::int64_t>(*sizes) : std::span<const std::int64_t>{};
  const auto order = [&]<typename AnyBlend>(std::span<AnyBlend* const> blends, std::span<const std::int64_t> begins,
                                            std::int64_t size) {
    std::array<DatasetId*, AnyBlend::kTogether> datasets;
    std::array<std::int64_t*, AnyBlend::kTogether> samples;
    for (std::size_t k = 0; k < blends.size(); ++k) {
      datasets[k] = dataset_index.data() + begins[k];
      samples[k] = sample_index.data() + begins[k];
    }
    AnyBlend::fill(blends, size, datasets.data(), samples.data());
  };
  const auto size = static_cast<std::int64_t>(dataset_index.size());
  const WithoutLock unlocked;
  if (num_threads > 1) {  // threads that take new memory at the same time wait for each other
    populate(dataset_index.data(), dataset_index.size() * sizeof(DatasetId));
    populate(sample_index.data(), sample_index.size() * sizeof(std::int64_t));
  }
  if constexpr (std::is_same_v<DatasetId, std::int16_t>)
    if (are_few(as_span<const double>(weights))) {
      blend_in_parallel<FewBlend>(as_span<const double>(weights), limits, size, num_threads, warm_up, order);
      return;
    }
  blend_in_parallel<Blend>(as_span<const double>(weights), limits, size, num_threads, warm_up, order);
}

void blending_counts(const Array<const double>& weights, std::int64_t size, const Array<std::int64_t>& out,
                     std::int64_t num_threads, std::int64_t warm_up) {
  if (out.size() != weights.size() || size < 0)
    throw nb::value_error("out must be as long as weights, and size not negative");
  check_weights(weights);
  if (num_threads < 1 || warm_up < 0) throw nb::value_error("expected a thread, and no negative warm_up");
  const WithoutLock unlocked;
  const auto skip = []<typename AnyBlend>(std::span<AnyBlend* const> blends, std::span<const std::int64_t>,
                                          std::int64_t steps) { AnyBlend::skip(blends, steps); };
  const auto all = as_span<const double>(weights);
  const auto counts = are_few(all) ? blend_in_parallel<FewBlend>(all, {}, size, num_threads, warm_up, skip)
                                   : blend_in_parallel<Blend>(all, {}, size, num_threads, warm_up, skip);
  std::copy(counts.begin(), counts.end(), out.data());
}

}  // namespace

void bind_blending(nb::module_& module) {
  module.def("build_blending_indices", &blending_indices<std::int16_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert(), "num_threads"_a,
             "warm_up"_a);
  module.def("build_blending_indices", &blending_indices<std::int32_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert(), "num_threads"_a,
             "warm_up"_a);
  module.def("blending_counts", &blending_counts, "weights"_a.noconvert(), "size"_a, "out"_a.noconvert(),
             "num_threads"_a, "warm_up"_a);
}

}  // namespace tokenloom
