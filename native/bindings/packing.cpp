// Packs of variable lengths.
#include "../packing.hpp"

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

}  // namespace

void bind_packing(nb::module_& module) {
  module.def("pack_to_levels", &pack_to_levels, "lengths"_a.noconvert(), "costs"_a.noconvert(), "capacity"_a, "most_items"_a,
             "widths"_a.noconvert(), "levels"_a.noconvert(), "bases"_a.noconvert(), "num_ranks"_a, "by_length"_a,
             "short_first"_a,              "pack_of"_a.noconvert());
}

}  // namespace tokenloom
