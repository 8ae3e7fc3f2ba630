// GELU and its gradient, of any number of values.
#pragma once

#include "stored_numbers.h"
#include "transformer.h"

#include <omp.h>

namespace seqloom {

struct Gelu { // as `GeluArguments` in layers/transformer/compiled_gelu.py
  long size, bfloat16, tanh;
  const void *x, *d_y; // d_y: null forward
  void* to;            // y, or the gradient of x
};

template <Activation KIND> SEQLOOM_INLINE float gelu_backward(float d, float x) {
  if constexpr (KIND == GELU) {
    const float density = 0.3989422804014327f * exponential(-0.5f * x * x);
    return d * (0.5f + 0.5f * error_function(x * 0.70710678118654752f) + x * density);
  }
  const float square = x * x; // y = x σ(z)
  const float share = sigmoid(1.5957691216057308f * x * (1.f + 0.044715f * square));
  return d * (share + x * share * (1.f - share) * 1.5957691216057308f * (1.f + 0.134145f * square));
}

template <class T, Activation KIND> void gelu_of(const Gelu& call, Share share) {
  const T *x = static_cast<const T*>(call.x), *d_y = static_cast<const T*>(call.d_y);
  T* to = static_cast<T*>(call.to);
  if (d_y)
#pragma GCC ivdep
    for (long i = share.first; i < share.last; i++) narrow(gelu_backward<KIND>(widened_number(d_y[i]), widened_number(x[i])), to[i]);
  else
#pragma GCC ivdep
    for (long i = share.first; i < share.last; i++) narrow(activated(KIND, 0.f, widened_number(x[i])), to[i]);
}

inline void run(const Gelu& call, long threads) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const long rank = omp_get_thread_num(), members = omp_get_num_threads();
    const Share share{call.size * rank / members, call.size * (rank + 1) / members};
    if (call.bfloat16) call.tanh ? gelu_of<BFloat16, GELU_TANH>(call, share) : gelu_of<BFloat16, GELU>(call, share);
    else call.tanh ? gelu_of<float, GELU_TANH>(call, share) : gelu_of<float, GELU>(call, share);
  }
}

} // namespace seqloom
