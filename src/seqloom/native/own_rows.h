// Rows of a matrix that several threads change in rounds. Within a round each thread changes copies of its own; between rounds
// what all threads have added is added up in the order of the threads, so that the result does not depend on which was faster.
#pragma once

#include "arithmetic.h"
#include "team.h"

#include <memory>
#include <vector>

namespace seqloom {

template <class T> class OwnRows {
  static constexpr long BLOCK = 256; // rows that are allocated together, for a copy must not move
  static constexpr long AHEAD = 8;   // rows that are fetched before they are needed
  static constexpr int32_t NONE = -1;

  T* shared;
  long stride;
  std::vector<int32_t> slots;   // of each row: where its copy is
  std::vector<int32_t> changed; // rows that have a copy, by slot
  std::vector<std::unique_ptr<T[]>> blocks;

  T* copy(int32_t slot) const { return blocks[slot / BLOCK].get() + slot % BLOCK * stride; }

public:
  OwnRows(T* shared, long rows, long stride) : shared(shared), stride(stride), slots(rows, NONE) {}

  T* row(long id) {
    if (slots[id] == NONE) {
      slots[id] = static_cast<int32_t>(changed.size());
      changed.push_back(static_cast<int32_t>(id));
      if (changed.size() > blocks.size() * BLOCK) blocks.emplace_back(new T[BLOCK * stride]);
      std::memcpy(copy(slots[id]), shared + id * stride, stride * sizeof(T));
    }
    return copy(slots[id]);
  }

  // Adds up what all threads have added. Each row is written by the first thread that has a copy of it; nobody may change a copy
  // meanwhile.
  static void add_up(std::vector<OwnRows>& of_threads, const Member& me) {
    const OwnRows& own = of_threads[me.rank];
    const long count = static_cast<long>(own.changed.size());
    for (long n = 0; n < count; n++) {
      const int32_t id = own.changed[n];
      if (n + AHEAD < count)
        for (long q = 0; q < own.stride; q += 64 / static_cast<long>(sizeof(T)))
          __builtin_prefetch(own.shared + own.changed[n + AHEAD] * own.stride + q, 1);
      const auto has_copy = [id](const OwnRows& other) { return other.slots[id] != NONE; };
      if (std::any_of(of_threads.begin(), of_threads.begin() + me.rank, has_copy)) continue;
      T *row = own.shared + id * own.stride, *sum = own.copy(own.slots[id]);
      for (long rank = me.rank + 1; rank < me.size; rank++) {
        if (!has_copy(of_threads[rank])) continue;
        const T* other = of_threads[rank].copy(of_threads[rank].slots[id]);
        for (long i = 0; i < own.stride; i++) sum[i] += other[i] - row[i];
      }
      std::memcpy(row, sum, own.stride * sizeof(T));
    }
  }

  void forget_copies() {
    for (const int32_t id : changed) slots[id] = NONE;
    changed.clear();
  }
};

} // namespace seqloom
