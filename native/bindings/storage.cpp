// Mapped files.
#include <cerrno>
#include <memory>
#include <system_error>

#include "../mapping.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> map_whole_file(const nb::bytes& path) {
  Mapping mapping;
  int failure = 0;
  {
    nb::gil_scoped_release release;
    try {
      mapping = map_file(path.c_str());
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
  }
  if (failure != 0) {
    errno = failure;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  auto* owned = new Mapping(mapping);
  nb::capsule owner(owned, [](void* pointer) noexcept {
    const std::unique_ptr<Mapping> last(static_cast<Mapping*>(pointer));
    unmap(*last);
  });
  return {mapping.data, {mapping.size}, owner};
}

}  // namespace

void bind_storage(nb::module_& module) {
  module.def("map_file", &map_whole_file, "path"_a);
}

}  // namespace tokenloom
