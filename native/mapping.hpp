// Files mapped into memory without keeping them open: Python's own mmap holds a descriptor for each mapping, and a run
// over thousands of datasets has thousands of mappings.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>

namespace tokenloom {

struct Mapping {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Maps a whole file read-only. Throws std::system_error; an empty file gives an empty mapping.
inline Mapping map_file(const char* path) {
  const int handle = ::open(path, O_RDONLY | O_CLOEXEC);
  if (handle < 0) throw std::system_error(errno, std::generic_category());
  struct stat status {};
  Mapping mapping;
  void* address = nullptr;
  int failure = ::fstat(handle, &status) == 0 ? 0 : errno;
  if (failure == 0 && S_ISDIR(status.st_mode)) failure = EISDIR;
  if (failure == 0 && status.st_size > 0) {
    mapping.size = static_cast<std::size_t>(status.st_size);
    address = ::mmap(nullptr, mapping.size, PROT_READ, MAP_SHARED, handle, 0);
    if (address == MAP_FAILED) failure = errno;
  }
  ::close(handle);
  if (failure != 0) throw std::system_error(failure, std::generic_category());
  mapping.data = static_cast<const std::uint8_t*>(address);
  return mapping;
}

inline void unmap(const Mapping& mapping) noexcept {
  if (mapping.size > 0) ::munmap(const_cast<std::uint8_t*>(mapping.data), mapping.size);
}

// One of many files that are mapped side by side, and what was found of it.
struct MappedExtent {
  const char* path = nullptr;
  std::int64_t start = 0;         // where its bytes begin, a multiple of the size of a page
  std::int64_t num_bytes = 0;     // what it should have, all of them before the start of the next one
  std::int64_t found_bytes = -1;  // what it has; -1 where it was not looked at, or cannot be opened
  std::int64_t modified_ns = 0;   // when it was written last, since 1970
};

// Maps the file of one extent to its place in a reserved range, unless it has another size.
inline int place_extent(const Mapping& range, MappedExtent& extent) {
  const int handle = ::open(extent.path, O_RDONLY | O_CLOEXEC);
  if (handle < 0) return errno;
  struct stat status {};
  int failure = ::fstat(handle, &status) == 0 ? 0 : errno;
  if (failure == 0 && S_ISDIR(status.st_mode)) failure = EISDIR;
  if (failure == 0 && status.st_size == extent.num_bytes && extent.num_bytes > 0) {
    auto* place = const_cast<std::uint8_t*>(range.data) + extent.start;
    const auto size = static_cast<std::size_t>(extent.num_bytes);
    if (::mmap(place, size, PROT_READ, MAP_SHARED | MAP_FIXED, handle, 0) == MAP_FAILED) failure = errno;
  }
  ::close(handle);
  if (failure != 0) return failure;
  extent.found_bytes = status.st_size;
  extent.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return 0;
}

// Maps whole files read-only into one range of `size` addresses, each at its start, without holding descriptors. What
// no file covers reads as zeros, so that a damaged index can never reach memory that is not there. Throws
// std::system_error; the extents tell how far it came. Files of another size are left out; the caller looks.
inline Mapping map_extents(std::span<MappedExtent> extents, std::size_t size) {
  Mapping mapping;
  if (size > 0) {
    void* range = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::system_error(errno, std::generic_category());
    mapping = {static_cast<const std::uint8_t*>(range), size};
  }
  for (MappedExtent& extent : extents) {
    if (const int failure = place_extent(mapping, extent); failure != 0) {
      unmap(mapping);
      throw std::system_error(failure, std::generic_category());
    }
  }
  return mapping;
}

}  // namespace tokenloom
