// Looking after a read whether the mapped files behind it are still whole; see `mapped_files.hpp`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "../bus_errors.hpp"
#include "../mapped_files.hpp"

namespace tokenloom {

// The mapped files that some arrays lie in. Arrays in other memory have none. Made with the GIL held, used without; who
// has one keeps the arrays alive.
class Watch {
 public:
  // Files that every read depends on.
  void add(const void* bytes, std::size_t size) {
    const auto found = MappedFiles::shared().within(bytes, size);
    files_.insert(files_.end(), found.begin(), found.end());
  }

  // Bytes of which a read touches some: of many files side by side, only those that it touches are looked at.
  void add_tokens(const std::uint8_t* bytes, std::size_t size) {
    tokens_ = bytes;
    parts_ = MappedFiles::shared().within(bytes, size);
    if (parts_.size() == 1) {
      files_.push_back(parts_.front());
      parts_.clear();
    }
  }

  bool has_parts() const { return !parts_.empty(); }

  // Throws DamagedFile, naming the first one that is not what it was when it was mapped.
  void check() const {
    BusErrors::handle_sometimes();
    for (MappedFileEntry* file : files_) look_at(*file);
  }

  // The same for the parts that hold some of the tokens. What lies in a gap between parts belongs to no file: zeros,
  // which must not pass for tokens; throws std::out_of_range.
  void check_tokens(std::int64_t offset, std::int64_t num_bytes) const {
    if (parts_.empty() || num_bytes <= 0) return;
    check_parts(tokens_ + offset, tokens_ + offset + num_bytes, offset, num_bytes);
  }

 private:
  void check_parts(const std::uint8_t* begin, const std::uint8_t* end, std::int64_t offset,
                   std::int64_t num_bytes) const {
    auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                                 [](const std::uint8_t* at, const MappedFileEntry* file) { return at < file->data(); });
    if (part != parts_.begin() && (*(part - 1))->stop() > begin) --part;
    const std::uint8_t* held = begin;
    for (; part != parts_.end() && (*part)->data() < end; ++part) {
      look_at(**part);
      if ((*part)->data() <= held) held = std::max(held, std::min((*part)->stop(), end));
    }
    if (held < end)
      throw std::out_of_range("bytes [" + std::to_string(offset) + ", " + std::to_string(offset + num_bytes) +
                              ") lie in no file");
  }

  static void look_at(MappedFileEntry& file) {
    if (!file.is_intact()) [[unlikely]] throw DamagedFile{file.path(), file.num_bytes()};
  }

  std::vector<MappedFileEntry*> files_;
  std::vector<MappedFileEntry*> parts_;
  const std::uint8_t* tokens_ = nullptr;
};

// Calls `read`, and throws DamagedFile if what it read is not what the files hold, whatever it made of that.
template <typename Read, typename Check>
void read_checked(Read&& read, Check&& check) {
  try {
    read();
  } catch (...) {
    check();
    throw;
  }
  check();
}

}  // namespace tokenloom
