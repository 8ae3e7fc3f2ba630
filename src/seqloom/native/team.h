// A team of threads that runs a sequence together: each has a share of the units, and all wait for each other after each
// part of a step.
#pragma once

#include <algorithm>
#include <atomic>

namespace seqloom {

constexpr int SPINS = 2000; // some tens of microseconds; then the thread sleeps

class Barrier {
  std::atomic<int> arrived{0}, round{0};

public:
  void wait(int size) {
    if (size == 1) return;
    const int now = round.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      round.notify_all();
      return;
    }
    // A step takes microseconds, too short to sleep. But where other programs hold the cores, the thread we wait for needs ours.
    for (int spins = 0; spins < SPINS; spins++) {
      if (round.load(std::memory_order_acquire) != now) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (round.load(std::memory_order_acquire) == now) round.wait(now, std::memory_order_acquire);
  }
};

struct Share {
  long first, last;
};

struct Member {
  Barrier& barrier;
  long rank, size;

  void sync() const { barrier.wait(static_cast<int>(size)); }
  Share of(long count) const { return {count * rank / size, count * (rank + 1) / size}; }
};

} // namespace seqloom
