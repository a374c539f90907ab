// Packs of variable lengths, and of sequences that share prefixes.
#include "../packing.hpp"

#include <nanobind/stl/vector.h>

#include "../prefixes.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

using Int64s = Array<const std::int64_t>;

bool pack_to_levels(const Int64s& lengths, const Int64s& costs, std::int64_t capacity, std::int64_t most_items,
                    const Int64s& widths, const Int64s& levels, const Int64s& bases, std::int64_t num_ranks,
                    bool by_length, std::int64_t short_first, const Array<std::int64_t>& pack_of) {
  if (costs.size() != lengths.size() || pack_of.size() != lengths.size())
    throw nb::value_error("lengths, costs and packs must be equally many");
  if (levels.size() != widths.size() || bases.size() != widths.size())
    throw nb::value_error("widths, levels and bases must be equally many");
  if (most_items < 1) throw nb::value_error("a pack must have room for a sub-sample");
  std::int64_t num_packs = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) num_packs += widths.data()[i];
  if (num_packs > static_cast<std::int64_t>(lengths.size())) throw nb::value_error("no pack may stay empty");
  const WithoutLock unlocked;
  const PackingTask task{.lengths = as_span<const std::int64_t>(lengths),
                         .costs = as_span<const std::int64_t>(costs),
                         .capacity = capacity,
                         .most_items = std::min(most_items, static_cast<std::int64_t>(lengths.size())),
                         .widths = as_span<const std::int64_t>(widths),
                         .levels = as_span<const std::int64_t>(levels),
                         .bases = as_span<const std::int64_t>(bases),
                         .num_ranks = num_ranks,
                         .by_length = by_length,
                         .short_first = short_first};
  return LevelPacker(task).pack(as_span<std::int64_t>(pack_of));
}

template <typename Token>
void order_of_prefixes(const std::vector<Array<const Token>>& sequences, const Array<std::int64_t>& order,
                       const Array<std::int64_t>& shared) {
  if (order.size() != sequences.size() || shared.size() != sequences.size())
    throw nb::value_error("sequences, order and shared must be equally many");
  std::vector<std::span<const Token>> spans;
  spans.reserve(sequences.size());
  for (const auto& sequence : sequences) spans.push_back(as_span<const Token>(sequence));
  const WithoutLock unlocked;
  order_by_prefix<Token>(spans, as_span<std::int64_t>(order), as_span<std::int64_t>(shared));
}

CuttingTask cutting_task(const Int64s& lengths, const Int64s& shared, const Int64s& costs, const Int64s& prefix_costs,
                         std::int64_t capacity, std::int64_t limit) {
  if (shared.size() != lengths.size() || costs.size() != lengths.size() || prefix_costs.size() != lengths.size())
    throw nb::value_error("lengths, shared and costs must be equally many");
  return {.lengths = as_span<const std::int64_t>(lengths),
          .shared = as_span<const std::int64_t>(shared),
          .costs = as_span<const std::int64_t>(costs),
          .prefix_costs = as_span<const std::int64_t>(prefix_costs),
          .capacity = capacity,
          .limit = limit};
}

auto cut_into_pieces(const Int64s& lengths, const Int64s& shared, const Int64s& costs, const Int64s& prefix_costs,
                     std::int64_t capacity, std::int64_t limit) {
  return to_numpy(cut_forest(cutting_task(lengths, shared, costs, prefix_costs, capacity, limit)));
}

auto cut_into_runs(const Int64s& lengths, const Int64s& shared, const Int64s& costs, const Int64s& prefix_costs,
                   std::int64_t capacity, std::int64_t most_runs) {
  if (lengths.size() == 0) throw nb::value_error("expected a sequence");
  return to_numpy(cut_evenly(cutting_task(lengths, shared, costs, prefix_costs, capacity, 0), most_runs));
}

}  // namespace

void bind_packing(nb::module_& module) {
  module.def("pack_to_levels", &pack_to_levels, "lengths"_a.noconvert(), "costs"_a.noconvert(), "capacity"_a, "most_items"_a,
             "widths"_a.noconvert(), "levels"_a.noconvert(), "bases"_a.noconvert(), "num_ranks"_a, "by_length"_a,
             "short_first"_a,              "pack_of"_a.noconvert());
  module.def("order_by_prefix", &order_of_prefixes<std::int32_t>, "sequences"_a.noconvert(), "order"_a.noconvert(), "shared"_a.noconvert());
  module.def("order_by_prefix", &order_of_prefixes<std::int64_t>, "sequences"_a.noconvert(), "order"_a.noconvert(), "shared"_a.noconvert());
  module.def("cut_forest", &cut_into_pieces, "lengths"_a.noconvert(), "shared"_a.noconvert(), "costs"_a.noconvert(),
             "prefix_costs"_a.noconvert(), "capacity"_a, "limit"_a);
  module.def("cut_evenly", &cut_into_runs, "lengths"_a.noconvert(), "shared"_a.noconvert(), "costs"_a.noconvert(),
             "prefix_costs"_a.noconvert(), "capacity"_a, "most_runs"_a);
}

}  // namespace tokenloom
