// Mapped files.
#include <fcntl.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "../mapping.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

using MappedBytes = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

MappedBytes to_numpy(const Mapping& mapping) {
  auto* owned = new Mapping(mapping);
  nb::capsule owner(owned, [](void* pointer) noexcept {
    const std::unique_ptr<Mapping> last(static_cast<Mapping*>(pointer));
    unmap(*last);
  });
  return {mapping.data, {mapping.size}, owner};
}

void raise_if(int failure) {
  if (failure == 0) return;
  errno = failure;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

MappedBytes map_whole_file(const nb::bytes& path) {
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
  raise_if(failure);
  return to_numpy(mapping);
}

MappedBytes map_many_files(const std::vector<nb::bytes>& paths, const Array<const std::int64_t>& starts,
                           const Array<const std::int64_t>& sizes, std::size_t total,
                           const Array<std::int64_t>& found_bytes, const Array<std::int64_t>& modified_ns) {
  const std::size_t count = paths.size();
  if (starts.size() != count || sizes.size() != count || found_bytes.size() != count || modified_ns.size() != count)
    throw nb::value_error("expected as many starts, sizes and results as paths");
  std::vector<MappedExtent> extents;
  for (std::size_t number = 0; number < count; ++number) {
    const std::int64_t start = starts.data()[number], size = sizes.data()[number];
    if (start < 0 || size < 0 || static_cast<std::size_t>(start) > total ||
        static_cast<std::size_t>(size) > total - static_cast<std::size_t>(start))
      throw nb::value_error("an extent leaves the range");
    extents.push_back({paths[number].c_str(), start, size});
  }
  Mapping mapping;
  int failure = 0;
  {
    nb::gil_scoped_release release;
    try {
      mapping = map_extents(extents, total);
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
  }
  for (std::size_t number = 0; number < count; ++number) {
    found_bytes.data()[number] = extents[number].found_bytes;
    modified_ns.data()[number] = extents[number].modified_ns;
  }
  raise_if(failure);
  return to_numpy(mapping);
}

// Asks the kernel to begin writing a part of a file to the disk; a filesystem that cannot does nothing.
void start_writing_back(int handle, std::int64_t offset, std::int64_t length) {
  nb::gil_scoped_release release;
  ::sync_file_range(handle, offset, length, SYNC_FILE_RANGE_WRITE);
}

// Sets aside the blocks that a part of a file will need, without changing its size; a filesystem that cannot does nothing.
void reserve(int handle, std::int64_t offset, std::int64_t length) {
  nb::gil_scoped_release release;
  [[maybe_unused]] const int failure = ::fallocate(handle, FALLOC_FL_KEEP_SIZE, offset, length);
}

}  // namespace

void bind_storage(nb::module_& module) {
  module.def("map_file", &map_whole_file, "path"_a);
  module.def("map_extents", &map_many_files, "paths"_a, "starts"_a, "sizes"_a, "total"_a, "found_bytes"_a,
             "modified_ns"_a);
  module.def("reserve", &reserve, "handle"_a, "offset"_a, "length"_a);
  module.def("start_writing_back", &start_writing_back, "handle"_a, "offset"_a, "length"_a);
}

}  // namespace tokenloom
