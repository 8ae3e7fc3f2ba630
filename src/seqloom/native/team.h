// Threads that go through a sequence together: each has a share of the units, and they meet after each part of a step.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

namespace seqloom {

class Meeting {
  std::atomic<long> arrived{0}, round{0};

public:
  void wait(long size) {
    if (size == 1) return;
    const long now = round.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(now + 1, std::memory_order_release);
      return;
    }
    // A step takes microseconds, so nobody sleeps; but where others hold the cores, whoever we wait for must get one.
    for (long spins = 0; round.load(std::memory_order_acquire) == now; spins++)
      if (spins > 4000) std::this_thread::yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#endif
  }
};

struct Share {
  long first, last;
};

struct Member {
  Meeting& meeting;
  long rank, size;

  void meet() const { meeting.wait(size); }
  Share of(long count) const { return {count * rank / size, count * (rank + 1) / size}; }
};

} // namespace seqloom
