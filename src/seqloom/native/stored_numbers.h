// Numbers as they are stored, float32 or bfloat16, which is its upper half; computed with in float32.
#pragma once

#include "arithmetic.h"

namespace seqloom {

typedef uint16_t BFloat16;

SEQLOOM_INLINE float widened_number(float x) { return x; }
SEQLOOM_INLINE float widened_number(BFloat16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

SEQLOOM_INLINE void narrow(float x, float& to) { to = x; }
SEQLOOM_INLINE void narrow(float x, BFloat16& to) { // to the nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to = static_cast<BFloat16>(x == x ? rounded : 0x7fc0);
}

// Both scale what they copy.
template <class T> SEQLOOM_INLINE void widen(const T* from, float scale, float* to, long size) {
#pragma GCC ivdep
  for (long i = 0; i < size; i++) to[i] = widened_number(from[i]) * scale;
}
template <class T> SEQLOOM_INLINE void narrow(const float* from, float scale, T* to, long size) {
#pragma GCC ivdep
  for (long i = 0; i < size; i++) narrow(from[i] * scale, to[i]);
}

} // namespace seqloom
