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

#include "mapped_files.hpp"

namespace tokenloom {

struct Mapping {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// Opens a regular file for reading. Anything else that has the name is refused, without waiting for somebody to write
// into it: ENODEV, as mapping says of it, or EISDIR. Throws nothing; returns an errno, and the descriptor or -1.
inline int open_regular(const char* path, int& handle, struct stat& status) {
  handle = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (handle < 0) return errno;
  int failure = ::fstat(handle, &status) == 0 ? 0 : errno;
  if (failure == 0 && !S_ISREG(status.st_mode)) failure = S_ISDIR(status.st_mode) ? EISDIR : ENODEV;
  if (failure == 0) return 0;
  ::close(handle);
  handle = -1;
  return failure;
}

// Maps a whole file read-only, and says what it is. Throws std::system_error; an empty file gives an empty mapping.
inline Mapping map_file(const char* path, FileFacts& facts) {
  int handle = -1;
  struct stat status {};
  if (const int failure = open_regular(path, handle, status); failure != 0)
    throw std::system_error(failure, std::generic_category());
  facts = FileFacts::of(status);
  Mapping mapping;
  int failure = 0;
  if (status.st_size > 0) {
    mapping.size = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, mapping.size, PROT_READ, MAP_SHARED, handle, 0);
    if (address == MAP_FAILED) failure = errno;
    mapping.data = static_cast<const std::uint8_t*>(address);
  }
  ::close(handle);
  if (failure != 0) throw std::system_error(failure, std::generic_category());
  return mapping;
}

inline void unmap(const Mapping& mapping) noexcept {
  if (mapping.size > 0) ::munmap(const_cast<std::uint8_t*>(mapping.data), mapping.size);
}

struct MappedExtent {
  const char* path = nullptr;
  std::int64_t start = 0;      // where the file begins in the range; a multiple of the page size
  std::int64_t num_bytes = 0;  // what it must hold; a file of another size is not mapped
  FileFacts facts;             // what it is; a size of -1 as long as it was not opened
  bool is_mapped = false;
};

// Maps the file of one extent to its place in a reserved range, unless it has another size.
inline int place_extent(const Mapping& range, MappedExtent& extent) {
  int handle = -1;
  struct stat status {};
  if (const int failure = open_regular(extent.path, handle, status); failure != 0) return failure;
  int failure = 0;
  if (status.st_size == extent.num_bytes && extent.num_bytes > 0) {
    auto* place = const_cast<std::uint8_t*>(range.data) + extent.start;
    const auto size = static_cast<std::size_t>(extent.num_bytes);
    extent.is_mapped = ::mmap(place, size, PROT_READ, MAP_SHARED | MAP_FIXED, handle, 0) != MAP_FAILED;
    if (!extent.is_mapped) failure = errno;
  }
  ::close(handle);
  if (failure == 0) extent.facts = FileFacts::of(status);
  return failure;
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
