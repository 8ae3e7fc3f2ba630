// What one token of each row of a recurrent decoder reads of its input: layers/attention.py.
//
//   e_i = v · tanh(q + k_i), q = W s + b      or      e_i = s · k_i,      a = softmax(e),      c = Σ a_i h_i
//
// Keys and values are those of the inputs; each row finds its own by a number.
#pragma once

#include "packed_linear.h"

#include <limits>

namespace seqloom {

enum Scores : long { ONE_VECTOR, ADDITIVE, PRODUCTS }; // as SCORES in native_step.py; one vector: the context of all steps

struct AttentionStep { // as `AttentionArguments` in native_step.py
  long scores, from_current; // from_current: the query is the new state, not the last one
  PackedLinear query;        // of additive scores
  const float* score;        // v of additive scores
  const float *keys, *values; // (inputs, source, key_width), (inputs, source, width)
  const uint8_t* mask;       // (inputs, source)
  const long* input_of;      // (rows,)
  long inputs, source, key_width, width; // width: 0 where no context is read

  bool even(long rows) const {
    return width == 0 || std::all_of(input_of, input_of + rows, [&](long input) { return input >= 0 && input < inputs; });
  }

  // The context of a row; `weights` has room for `source` numbers.
  void operator()(long row, const float* q, float* weights, float* context) const {
    const long first = input_of[row] * source;
    const float* const h = values + first * width;
    if (scores == ONE_VECTOR) {
      std::memcpy(context, h, width * sizeof(float));
      return;
    }
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (long i = 0; i < source; i++) {
      if (!mask[first + i]) continue;
      const float* const key = keys + (first + i) * key_width;
      weights[i] = scores == ADDITIVE ? additive(q, key) : product(q, key);
      largest = larger(largest, weights[i]);
    }
    for (long i = 0; i < source; i++) {
      weights[i] = mask[first + i] ? exponential(weights[i] - largest) : 0.f;
      sum += weights[i];
    }
    std::fill(context, context + width, 0.f);
    for (long i = 0; i < source; i++) {
      if (!mask[first + i]) continue;
      const float share = weights[i] / sum, *const value = h + i * width;
#pragma GCC ivdep
      for (long j = 0; j < width; j++) context[j] += share * value[j];
    }
  }

private:
  // What the loops read of this struct is in variables of their own, without which gcc makes no vectors.
  float additive(const float* q, const float* key) const {
    const float* const v = score;
    const long size = key_width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < size; j++) sum += v[j] * hyperbolic_tangent(q[j] + key[j]);
    return sum;
  }

  float product(const float* q, const float* key) const {
    const long size = key_width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < size; j++) sum += q[j] * key[j];
    return sum;
  }
};

} // namespace seqloom
