// The interpreter's lock (GIL), released while a kernel runs.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#if defined(__GLIBC__)
#include <cxxabi.h>
#endif

namespace tokenloom {

namespace detail {

// A thread that asks for the lock while the interpreter ends gets `pthread_exit` from Python 3.11 to 3.13. With glibc
// that unwinds the stack through frames that must not be unwound (ours, and nanobind's around every call), which ends
// the process by SIGABRT. Such a daemon thread is stopped for good instead, as Python 3.14 does by itself, until the
// process exits under it. Only the interpreter knows whether it is too late, and there is no asking it first: it may
// begin to end while this thread waits for the lock.
inline void take_lock_or_stop(PyThreadState* state) noexcept {
#if defined(__GLIBC__)
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();  // never leaves the handler, so nothing is unwound any further
  }
#else
  PyEval_RestoreThread(state);
#endif
}

}  // namespace detail

// Releases the lock for as long as it lives. Every kernel uses this one, not nanobind's.
class WithoutLock {
 public:
  WithoutLock() noexcept : state_(PyEval_SaveThread()) {}
  ~WithoutLock() { detail::take_lock_or_stop(state_); }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace tokenloom
