// Items between those of an array, such as the tokens that end documents: one copy, whatever their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

namespace tokenloom {

// Writes items of `itemsize` bytes to `out`, and before item places[i] the i-th of the values; places rise, up to the
// number of items.
inline void insert_items(std::span<const std::uint8_t> items, std::size_t itemsize,
                         std::span<const std::int64_t> places, std::span<const std::uint8_t> values,
                         std::span<std::uint8_t> out) {
  if (values.size() != places.size() * itemsize || out.size() != items.size() + values.size())
    throw std::invalid_argument("expected a value for each place, and room for all");
  const std::int64_t count = static_cast<std::int64_t>(items.size() / itemsize);
  std::uint8_t* to = out.data();
  std::int64_t done = 0;
  const auto copy_up_to = [&](std::int64_t stop) {
    const std::size_t size = static_cast<std::size_t>(stop - done) * itemsize;
    if (size != 0) std::memcpy(to, items.data() + static_cast<std::size_t>(done) * itemsize, size);
    to += size;
    done = stop;
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] < done || places[i] > count) throw std::invalid_argument("expected places that rise");
    copy_up_to(places[i]);
    std::memcpy(to, values.data() + i * itemsize, itemsize);
    to += itemsize;
  }
  copy_up_to(count);
}

}  // namespace tokenloom
