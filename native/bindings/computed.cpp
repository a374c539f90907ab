// The order that is computed: permutations and mixtures.
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <string>
#include <utility>

#include "../mixture.hpp"
#include "../permutation.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

void check_within(std::span<const std::int64_t> values, std::int64_t size, const char* what) {
  for (const std::int64_t value : values)
    if (value < 0 || value >= size)
      throw nb::index_error(
          ("expected " + std::string(what) + " in [0, " + std::to_string(size) + "), found " + std::to_string(value))
              .c_str());
}

void check_as_long(std::size_t one, std::size_t other) {
  if (one != other) throw nb::value_error("expected arrays of one length");
}

std::pair<std::uint64_t, std::uint64_t> derive_key(std::uint64_t low, std::uint64_t high, std::uint64_t purpose,
                                                   std::uint64_t number) {
  const Key key = derive({low, high}, purpose, number);
  return {key.low, key.high};
}

void bind_permutation(nb::module_& module) {
  module.def("derive", &derive_key, "low"_a, "high"_a, "purpose"_a, "number"_a);
  nb::class_<Permutation>(module, "Permutation", "A permutation of n things, computed from a key of 128 bits.")
      .def(
          "__init__",
          [](Permutation* self, std::int64_t n, std::uint64_t low, std::uint64_t high) {
            if (n < 0 || n > kMostPermuted)
              throw nb::value_error(("expected between 0 and 2**60 things, found " + std::to_string(n)).c_str());
            new (self) Permutation(n, {low, high});
          },
          "n"_a, "low"_a, "high"_a)
      .def_prop_ro("size", &Permutation::size)
      .def(
          "forward",
          [](const Permutation& self, const Array<const std::int64_t>& places, const Array<std::int64_t>& out) {
            check_as_long(places.size(), out.size());
            const WithoutLock unlocked;
            check_within(as_span<const std::int64_t>(places), self.size(), "places");
            self.forward(as_span<const std::int64_t>(places), out.data());
          },
          "places"_a.noconvert(), "out"_a.noconvert())
      .def(
          "inverse",
          [](const Permutation& self, const Array<const std::int64_t>& things, const Array<std::int64_t>& out) {
            check_as_long(things.size(), out.size());
            const WithoutLock unlocked;
            check_within(as_span<const std::int64_t>(things), self.size(), "things");
            self.inverse(as_span<const std::int64_t>(things), out.data());
          },
          "things"_a.noconvert(), "out"_a.noconvert());
}

void check_samples(const Mixture& mixture, const Array<const std::int32_t>& leaves,
                   const Array<const std::int64_t>& takes) {
  const auto num_leaves = static_cast<std::int64_t>(mixture.num_leaves());
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (leaves.data()[i] < 0 || leaves.data()[i] >= num_leaves || takes.data()[i] < 0)
      throw nb::index_error(("expected leaves in [0, " + std::to_string(num_leaves) + ") and takes from 0, found " +
                             std::to_string(leaves.data()[i]) + " and " + std::to_string(takes.data()[i]))
                                .c_str());
}

void counts(const Mixture& mixture, std::int64_t size, const Array<std::int64_t>& out) {
  check_as_long(out.size(), mixture.num_leaves());
  if (size < 0 || size > Mixture::kPositions)
    throw nb::index_error(("expected between 0 and 2**62 positions, found " + std::to_string(size)).c_str());
  const WithoutLock unlocked;
  mixture.counts(size, as_span<std::int64_t>(out));
}

void bind_mixture(nb::module_& module) {
  nb::class_<Mixture>(module, "Mixture", "Which source each position comes from, and which of its samples it is.")
      .def(
          "__init__",
          [](Mixture* self, const Array<const std::int64_t>& weights) {
            const WithoutLock unlocked;
            new (self) Mixture(as_span<const std::int64_t>(weights));
          },
          "weights"_a.noconvert())
      .def_prop_ro("num_leaves", &Mixture::num_leaves)
      .def(
          "locate",
          [](const Mixture& self, const Array<const std::int64_t>& positions, const Array<std::int32_t>& leaves,
             const Array<std::int64_t>& takes) {
            check_as_long(positions.size(), leaves.size());
            check_as_long(positions.size(), takes.size());
            const WithoutLock unlocked;
            check_within(as_span<const std::int64_t>(positions), Mixture::kPositions, "positions");
            self.locate(as_span<const std::int64_t>(positions), leaves.data(), takes.data());
          },
          "positions"_a.noconvert(), "leaves"_a.noconvert(), "takes"_a.noconvert())
      .def(
          "positions",
          [](const Mixture& self, const Array<const std::int32_t>& leaves, const Array<const std::int64_t>& takes,
             const Array<std::int64_t>& out) {
            check_as_long(leaves.size(), takes.size());
            check_as_long(leaves.size(), out.size());
            const WithoutLock unlocked;
            check_samples(self, leaves, takes);
            for (std::size_t i = 0; i < out.size(); ++i)
              out.data()[i] = self.position(leaves.data()[i], takes.data()[i]);
          },
          "leaves"_a.noconvert(), "takes"_a.noconvert(), "out"_a.noconvert())
      .def("counts", &counts, "size"_a, "out"_a.noconvert());
  nb::class_<MixedStage>(module, "MixedStage", "A mixture of so many positions, permuted within blocks.")
      .def(
          "__init__",
          [](MixedStage* self, const Array<const std::int64_t>& weights, std::int64_t start, std::int64_t size,
             std::int64_t block, std::uint64_t low, std::uint64_t high) {
            const WithoutLock unlocked;
            new (self) MixedStage(as_span<const std::int64_t>(weights), start, size, block, {low, high});
          },
          "weights"_a.noconvert(), "start"_a, "size"_a, "block"_a, "low"_a, "high"_a)
      .def_prop_ro("num_leaves", [](const MixedStage& self) { return self.mixture().num_leaves(); })
      .def_prop_ro("size", &MixedStage::size)
      .def(
          "locate",
          [](const MixedStage& self, const Array<const std::int64_t>& offsets, const Array<std::int32_t>& leaves,
             const Array<std::int64_t>& takes) {
            check_as_long(offsets.size(), leaves.size());
            check_as_long(offsets.size(), takes.size());
            const WithoutLock unlocked;
            check_within(as_span<const std::int64_t>(offsets), self.size(), "offsets");
            self.locate(as_span<const std::int64_t>(offsets), leaves.data(), takes.data());
          },
          "offsets"_a.noconvert(), "leaves"_a.noconvert(), "takes"_a.noconvert())
      .def(
          "offsets",
          [](const MixedStage& self, const Array<const std::int32_t>& leaves, const Array<const std::int64_t>& takes,
             const Array<std::int64_t>& out) {
            check_as_long(leaves.size(), takes.size());
            check_as_long(leaves.size(), out.size());
            const WithoutLock unlocked;
            check_samples(self.mixture(), leaves, takes);
            self.offsets(as_span<const std::int32_t>(leaves), as_span<const std::int64_t>(takes), out.data());
          },
          "leaves"_a.noconvert(), "takes"_a.noconvert(), "out"_a.noconvert())
      .def(
          "counts",
          [](const MixedStage& self, std::int64_t size, const Array<std::int64_t>& out) {
            counts(self.mixture(), size, out);
          },
          "size"_a, "out"_a.noconvert());
}

}  // namespace

void bind_computed(nb::module_& module) {
  bind_permutation(module);
  bind_mixture(module);
}

}  // namespace tokenloom
