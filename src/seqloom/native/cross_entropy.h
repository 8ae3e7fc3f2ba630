// Rows of logits to their cross-entropy with a target, and in place to its gradient softmax - target.
#pragma once

#include "stored_numbers.h"
#include "team.h"

#include <limits>
#include <omp.h>
#include <vector>

namespace seqloom {

struct CrossEntropy { // as `CrossEntropyArguments` in layers/outputs/compiled_cross_entropy.py
  long rows, classes, bfloat16;
  void* logits;        // (rows, classes)
  const long* targets; // (rows,)
  const long* possible; // (spans, 2): where the classes begin and end that can be targets
  long spans;
  float smoothing, smoothed; // of the target: how much is spread over all possible classes, and how much of it each gets
  long trains;               // whether gradients are wanted
  float* losses;             // (rows,)
};

template <class T> class RowsOfLogits {
  const CrossEntropy& call;
  float* const row; // (classes,)

  template <class F> SEQLOOM_INLINE void each_span(F&& act) const {
    for (long span = 0; span < call.spans; span++) act(call.possible[2 * span], call.possible[2 * span + 1]);
  }

  // What is between the spans.
  template <class U> void fill_others(U* to, U value) const {
    long end = 0;
    each_span([&](long first, long last) {
      std::fill(to + end, to + first, value);
      end = last;
    });
    std::fill(to + end, to + call.classes, value);
  }

public:
  RowsOfLogits(const CrossEntropy& call, float* row) : call(call), row(row) {}

  float operator()(T* logits, long target) const {
    widen(logits, 1.f, row, call.classes);
    fill_others(row, -std::numeric_limits<float>::infinity());
    const float wanted = row[target];
    float largest = row[0], sum = 0, all = 0;
#pragma omp simd reduction(max : largest)
    for (long i = 0; i < call.classes; i++) largest = larger(largest, row[i]);
    if (call.smoothing)
      each_span([&](long first, long last) {
#pragma omp simd reduction(+ : all)
        for (long i = first; i < last; i++) all += row[i];
      });
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < call.classes; i++) {
      row[i] = exponential(row[i] - largest);
      sum += row[i];
    }
    if (call.trains) {
      const float inverse = 1.f / sum;
      fill_others(logits, T(0));
      each_span([&](long first, long last) {
#pragma GCC ivdep
        for (long i = first; i < last; i++) narrow(row[i] * inverse - call.smoothed, logits[i]);
      });
      const bool possible = wanted != -std::numeric_limits<float>::infinity();
      narrow((possible ? row[target] * inverse - call.smoothed : 0.f) + call.smoothing - 1.f, logits[target]);
    }
    return largest + std::log(sum) - (1.f - call.smoothing) * wanted - call.smoothed * all;
  }
};

template <class T> void loss_of_rows(const CrossEntropy& call, Share share) {
  std::vector<float> row(call.classes);
  const RowsOfLogits<T> rows(call, row.data());
  T* logits = static_cast<T*>(call.logits);
  for (long i = share.first; i < share.last; i++) call.losses[i] = rows(logits + i * call.classes, call.targets[i]);
}

inline void run(const CrossEntropy& call, long threads) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const long rank = omp_get_thread_num(), members = omp_get_num_threads();
    const Share share{call.rows * rank / members, call.rows * (rank + 1) / members};
    call.bfloat16 ? loss_of_rows<BFloat16>(call, share) : loss_of_rows<float>(call, share);
  }
}

} // namespace seqloom
