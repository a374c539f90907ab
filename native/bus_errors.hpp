// The handler of SIGBUS: faults in mapped files are ours, see `mapped_files.hpp`; all others go to who handled the signal
// before.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "mapped_files.hpp"

namespace tokenloom {

// Installed with the first mapping, never when the module is imported. Others install handlers too, and some forget ours
// (torch does in each worker of its DataLoader): so each mapping, the first read in the child of a fork and one read in
// 64 look whether it is still there, and put it in front again. That costs a system call, 0.1 µs.
class BusErrors {
 public:
  // Sees to it that the handler is installed.
  static void handle() {
    static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
      changing_.clear();  // another thread of the parent may have held it
      look_again_.store(true);
    });
    static_cast<void>(registered);
    look_again_.store(false, std::memory_order_relaxed);
    struct sigaction found {};
    if (::sigaction(SIGBUS, nullptr, &found) != 0 || is_ours(found)) return;
    if (changing_.test_and_set(std::memory_order_acquire)) return;  // another thread does it
    const int number = num_found_.load(std::memory_order_relaxed);
    found_[number % kMostFound] = found;
    if (number == 0) MappedFiles::shared();  // made before the handler can ask for it
    num_found_.store(number + 1, std::memory_order_release);
    struct sigaction ours {};
    ours.sa_sigaction = &take;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;  // on the alternate stack where a thread has one
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(SIGBUS, &ours, nullptr);
    changing_.clear(std::memory_order_release);
  }

  // Called after reads.
  static void handle_sometimes() {
    thread_local std::uint32_t num_reads = 0;
    if ((num_reads++ & 63U) == 0 || look_again_.load(std::memory_order_relaxed)) handle();
  }

 private:
  static bool is_ours(const struct sigaction& found) {
    return (found.sa_flags & SA_SIGINFO) != 0 && found.sa_sigaction == &take;
  }

  static void take(int signal, siginfo_t* info, void* context) {
    const int saved = errno;
    // Codes above 0 come from the kernel and name an address; a signal that somebody sends names none.
    if (info->si_code <= 0 || !MappedFiles::shared().take_fault(reinterpret_cast<std::uintptr_t>(info->si_addr)))
      pass_on(signal, info, context);
    errno = saved;
  }

  // Does what would have happened without us.
  static void pass_on(int signal, siginfo_t* info, void* context) {
    const int number = num_found_.load(std::memory_order_acquire);
    const struct sigaction before = found_[(number - 1) % kMostFound];
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler == SIG_IGN && info->si_code <= 0) {
      return;
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(signal);
    } else {
      die(info->si_code <= 0);
      return;
    }
    // Whoever came after us and raises the signal again, as `faulthandler` does when it has printed, means us by who was
    // there before: this is the end then, not another round.
    sigset_t pending;
    struct sigaction now {};
    if (::sigpending(&pending) == 0 && ::sigismember(&pending, signal) == 1 && ::sigaction(SIGBUS, nullptr, &now) == 0 &&
        is_ours(now))
      die(false);
    // A handler that returns without having helped, as that of `signal.signal` does, would be asked for ever.
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    if (info->si_code <= 0 || last_address_.exchange(address) != address) num_same_.store(0);
    if (num_same_.fetch_add(1) > kMostSame) die(false);
  }

  // Lets the signal have its default effect, which follows when the handler returns: the access is tried again.
  static void die(bool was_sent) {
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigemptyset(&fallback.sa_mask);
    ::sigaction(SIGBUS, &fallback, nullptr);
    if (was_sent) ::raise(SIGBUS);  // kept back until the handler returns
  }

  static constexpr int kMostFound = 16;
  static constexpr int kMostSame = 1000;
  static inline struct sigaction found_[kMostFound];  // handlers that ours was put in front of; the last one counts
  static inline std::atomic<int> num_found_{0};
  static inline std::atomic<std::uintptr_t> last_address_{0};
  static inline std::atomic<int> num_same_{0};
  static inline std::atomic<bool> look_again_{false};
  static inline std::atomic_flag changing_;
};

}  // namespace tokenloom
