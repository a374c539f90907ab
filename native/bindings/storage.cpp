// Mapped files.
#include <fcntl.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "without_lock.hpp"
#include "../bus_errors.hpp"
#include "../mapping.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "watch.hpp"

namespace tokenloom {
namespace {

using MappedBytes = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

// A mapping, and its files among those that the handler of SIGBUS knows.
struct OwnedMapping {
  Mapping mapping;
  std::vector<MappedFileEntry*> files;
};

MappedBytes to_numpy(std::unique_ptr<OwnedMapping> owned) {
  const Mapping mapping = owned->mapping;
  nb::capsule owner(owned.release(), [](void* pointer) noexcept {
    const std::unique_ptr<OwnedMapping> last(static_cast<OwnedMapping*>(pointer));
    for (MappedFileEntry* file : last->files) MappedFiles::shared().remove(file);
    unmap(last->mapping);
  });
  return {mapping.data, {mapping.size}, owner};
}

void raise_if(int failure) {
  if (failure == 0) return;
  errno = failure;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

nb::tuple to_tuple(const FileFacts& facts) {
  return nb::make_tuple(facts.device, facts.inode, facts.num_bytes, facts.modified_ns, facts.changed_ns);
}

nb::tuple map_whole_file(const nb::bytes& path) {
  auto owned = std::make_unique<OwnedMapping>();
  FileFacts facts;
  int failure = 0;
  {
    const WithoutLock unlocked;
    try {
      owned->mapping = map_file(path.c_str(), facts);
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
  }
  raise_if(failure);
  MappedFileEntry* entry = nullptr;
  if (owned->mapping.size > 0) {
    BusErrors::handle();
    entry = MappedFiles::shared().add(owned->mapping.data, facts, path.c_str());
    owned->files.push_back(entry);
  }
  const MappedBytes bytes = to_numpy(std::move(owned));
  if (entry != nullptr) {
    const WithoutLock unlocked;  // the end of the file may have to be read from the disk
    entry->remember_end();
  }
  return nb::make_tuple(bytes, to_tuple(facts));
}

constexpr std::size_t kNumFacts = 5;

MappedBytes map_many_files(const std::vector<nb::bytes>& paths, const Array<const std::int64_t>& starts,
                           const Array<const std::int64_t>& sizes, std::size_t total,
                           const Matrix<std::int64_t>& found) {
  const std::size_t count = paths.size();
  if (starts.size() != count || sizes.size() != count || found.shape(0) != count || found.shape(1) != kNumFacts)
    throw nb::value_error("expected as many starts, sizes and results as paths");
  std::vector<MappedExtent> extents;
  for (std::size_t number = 0; number < count; ++number) {
    const std::int64_t start = starts.data()[number], size = sizes.data()[number];
    if (start < 0 || size < 0 || static_cast<std::size_t>(start) > total ||
        static_cast<std::size_t>(size) > total - static_cast<std::size_t>(start))
      throw nb::value_error("an extent leaves the range");
    extents.push_back({paths[number].c_str(), start, size, {0, 0, -1, 0, 0}});
  }
  auto owned = std::make_unique<OwnedMapping>();
  int failure = 0;
  {
    const WithoutLock unlocked;
    try {
      owned->mapping = map_extents(extents, total);
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
  }
  for (std::size_t number = 0; number < count; ++number) {
    const FileFacts& facts = extents[number].facts;
    const std::array<std::int64_t, kNumFacts> row{facts.device, facts.inode, facts.num_bytes, facts.modified_ns,
                                                  facts.changed_ns};
    std::copy(row.begin(), row.end(), found.data() + number * kNumFacts);
  }
  raise_if(failure);
  BusErrors::handle();
  for (const MappedExtent& extent : extents)
    if (extent.is_mapped)
      owned->files.push_back(MappedFiles::shared().add(owned->mapping.data + extent.start, extent.facts, extent.path));
  return to_numpy(std::move(owned));
}

// For readers in Python, who ask after they have read, and keep the arrays alive.
void make_watch(Watch* self, const std::vector<AnyArray>& arrays,
                const std::optional<Array<const std::uint8_t>>& tokens) {
  new (self) Watch();
  for (const AnyArray& array : arrays) self->add(array.data(), array.nbytes());
  if (tokens) self->add_tokens(tokens->data(), tokens->size());
}

// The words are Python's.
void raise_damaged(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const DamagedFile& damage) {
    const nb::object error = nb::module_::import_("tokenloom.kernels.storage")
                                 .attr("damage_error")(nb::bytes(damage.path.data(), damage.path.size()), damage.num_bytes);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
}

// Asks the kernel to begin writing a part of a file to the disk; a filesystem that cannot does nothing.
void start_writing_back(int handle, std::int64_t offset, std::int64_t length) {
  const WithoutLock unlocked;
  ::sync_file_range(handle, offset, length, SYNC_FILE_RANGE_WRITE);
}

// Sets aside the blocks that a part of a file will need, without changing its size; a filesystem that cannot does nothing.
void reserve(int handle, std::int64_t offset, std::int64_t length) {
  const WithoutLock unlocked;
  [[maybe_unused]] const int failure = ::fallocate(handle, FALLOC_FL_KEEP_SIZE, offset, length);
}

}  // namespace

void bind_storage(nb::module_& module) {
  module.def("map_file", &map_whole_file, "path"_a);
  module.def("map_extents", &map_many_files, "paths"_a, "starts"_a, "sizes"_a, "total"_a, "found"_a.noconvert());
  module.def("num_damaged_files", [] { return MappedFiles::shared().num_damaged(); });
  nb::class_<Watch>(module, "Watch", "Looks whether the mapped files behind arrays are still whole.")
      .def("__init__", &make_watch, "arrays"_a, "tokens"_a.none())
      .def("check", &Watch::check)
      .def("check_tokens",
           [](const Watch& watch, std::int64_t offset, std::int64_t num_bytes) {
             watch.check();
             watch.check_tokens(offset, num_bytes);
           },
           "offset"_a, "num_bytes"_a);
  nb::register_exception_translator(&raise_damaged);
  module.def("reserve", &reserve, "handle"_a, "offset"_a, "length"_a);
  module.def("start_writing_back", &start_writing_back, "handle"_a, "offset"_a, "length"_a);
}

}  // namespace tokenloom
