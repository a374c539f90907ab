// Arrays in memory that is used again.
#include <cstdint>
#include <memory>

#include "../recycled.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

constexpr std::size_t kMostIdleBytes = std::size_t{64} << 20;

// Arrays are made and dropped with the GIL held, which keeps threads apart, also in the child of a fork. Never destroyed:
// arrays may outlive the module.
RecycledMemory& memory() {
  static auto* const shared = new RecycledMemory(kMostIdleBytes);
  return *shared;
}

nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> recycled_bytes(std::size_t num_bytes) {
  std::unique_ptr<PageBlock> block = memory().take(num_bytes);
  nb::capsule owner(block.get(), [](void* pointer) noexcept {
    memory().give_back(std::unique_ptr<PageBlock>(static_cast<PageBlock*>(pointer)));
  });
  return {block.release()->data(), {num_bytes}, owner};
}

}  // namespace

void bind_memory(nb::module_& module) { module.def("recycled_bytes", &recycled_bytes, "num_bytes"_a); }

}  // namespace tokenloom
