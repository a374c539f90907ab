// What all bindings share: the kinds of arrays they take, and their views in plain C++.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../spans.hpp"
#include "without_lock.hpp"

namespace tokenloom {

namespace nb = nanobind;
using nb::literals::operator""_a;

template <typename Value>
using Array = nb::ndarray<Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename Value>
using Matrix = nb::ndarray<Value, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename Value>
using Cube = nb::ndarray<Value, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

template <typename Value, typename Holder>
std::span<Value> as_span(const Holder& array) {
  return {array.data(), array.size()};
}

template <typename Value>
UnalignedArray<Value> as_unaligned(const Array<const Value>& array) {
  return {reinterpret_cast<const std::uint8_t*>(array.data()), array.size()};
}

inline IntegerArray integer_array(const AnyArray& array, const char* name) {
  IntegerArray::Kind kind{};
  if (array.dtype() == nb::dtype<std::int32_t>()) {
    kind = IntegerArray::Kind::kInt32;
  } else if (array.dtype() == nb::dtype<std::uint32_t>()) {
    kind = IntegerArray::Kind::kUint32;
  } else if (array.dtype() == nb::dtype<std::int64_t>()) {
    kind = IntegerArray::Kind::kInt64;
  } else {
    throw nb::type_error((std::string(name) + " must be int32, uint32 or int64").c_str());
  }
  return {array.data(), static_cast<std::int64_t>(array.size()), kind};
}

template <typename Value>
nb::ndarray<nb::numpy, Value, nb::ndim<1>> to_numpy(std::vector<Value>&& values) {
  auto* owned = new std::vector<Value>(std::move(values));
  nb::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return {owned->data(), {owned->size()}, owner};
}

// Calls `function` with a value of the token type that `code` (the .idx dtype code) names.
template <typename Function>
void with_token_type(int code, Function&& function) {
  switch (code) {
    case 1: function(std::uint8_t{}); break;
    case 2: function(std::int8_t{}); break;
    case 3: function(std::int16_t{}); break;
    case 4: function(std::int32_t{}); break;
    case 5: function(std::int64_t{}); break;
    case 8: function(std::uint16_t{}); break;
    default: throw nb::type_error(("dtype code " + std::to_string(code) + " is not an integer type").c_str());
  }
}

}  // namespace tokenloom
