// Locks that no child of a fork finds held: a few of the whole process, which objects share by their addresses.
//
// A fork waits until all of them are free, so what happens under one takes no other lock, of Python's neither, and little
// time.
#pragma once

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tokenloom {

class ForkLocks {
 public:
  // The lock of an object, by the address of what it protects.
  static std::mutex& of(const void* object) {
    const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object));
    return locks_[(address * 0x9E3779B97F4A7C15U) >> (64 - kBits)].mutex;
  }

 private:
  static constexpr int kBits = 5;  // a sanitizer follows 64 locks at most that one thread holds

  struct alignas(64) Lock {
    std::mutex mutex;
  };

  static void lock_all() {
    for (Lock& each : locks_) each.mutex.lock();
  }

  static void unlock_all() {
    for (Lock& each : locks_) each.mutex.unlock();
  }

  static inline std::array<Lock, std::size_t{1} << kBits> locks_;
  static inline const int registered_ = ::pthread_atfork(&lock_all, &unlock_all, &unlock_all);
};

}  // namespace tokenloom
