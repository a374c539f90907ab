// A file mapped into memory without keeping it open: Python's own mmap holds a descriptor for each mapping, and a run
// over thousands of datasets has thousands of mappings.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
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

}  // namespace tokenloom
