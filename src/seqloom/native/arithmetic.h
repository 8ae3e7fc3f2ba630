// Vectors, and the functions of the gates.
//
// Written without branches, so that a compiler turns loops over them into vector code; and always inlined, without which it does
// not: the functions of this library are so many that it stops inlining. In double precision they are
// the standard library's: slower, and exact enough to hold the cells to their equations (tests/layers/recurrent).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define SEQLOOM_INLINE inline __attribute__((always_inline))

namespace seqloom {

#if defined(__AVX512F__)
constexpr int BYTES = 64, TILE_ROWS = 12; // bytes of a vector; rows of a tile, two vectors each: a tile fills the registers
#elif defined(__AVX2__)
constexpr int BYTES = 32, TILE_ROWS = 6;
#else
constexpr int BYTES = 16, TILE_ROWS = 6;
#endif

template <class T> struct VectorOf;
template <> struct VectorOf<float> { typedef float type __attribute__((vector_size(BYTES))); };
template <> struct VectorOf<double> { typedef double type __attribute__((vector_size(BYTES))); };
template <class T> using Vector = typename VectorOf<T>::type;
template <class T> constexpr long LANES = BYTES / sizeof(T);

template <class T> SEQLOOM_INLINE Vector<T> load(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T> SEQLOOM_INLINE void store(T* to, Vector<T> v) { std::memcpy(to, &v, sizeof v); }

// A loop over std::max, which takes references, becomes vector code that is eight times slower.
SEQLOOM_INLINE float larger(float a, float b) { return b > a ? b : a; }

// e^x as 2^n e^y with |y| <= ln 2 / 2 and a polynomial for e^y (Cephes, expf); NaN stays NaN.
SEQLOOM_INLINE float exponential(float x) {
  x = x > 89.f ? 89.f : x; // from there on it is infinite
  x = x < -87.f ? -87.f : x;
  const float magic = 12582912.f; // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504088896341f + magic) - magic;
  const float y = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * y + 1.3981999507e-3f;
  p = p * y + 8.3334519073e-3f;
  p = p * y + 4.1665795894e-2f;
  p = p * y + 1.6666665459e-1f;
  p = p * y + 5.0000001201e-1f;
  p = p * y * y + y + 1.f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
SEQLOOM_INLINE float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }
SEQLOOM_INLINE float hyperbolic_tangent(float x) { // near 0 an odd polynomial keeps the relative precision (Cephes, tanhf)
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  p = p * square * x + x;
  const float far = 1.f - 2.f / (exponential(x + x) + 1.f);
  return std::fabs(x) < 0.625f ? p : far;
}

SEQLOOM_INLINE double sigmoid(double x) { return 1. / (1. + std::exp(-x)); }
SEQLOOM_INLINE double hyperbolic_tangent(double x) { return std::tanh(x); }

// Linear interpolation from a to b; exactly a where t is 0, exactly b where it is 1.
template <class T> SEQLOOM_INLINE T lerp(T a, T b, T t) { return t < T(0.5) ? a + t * (b - a) : b - (b - a) * (T(1) - t); }

// y = f(x): the gradient of x from the gradient d of y.
template <class T> SEQLOOM_INLINE T tanh_backward(T d, T y) { return d * (T(1) - y * y); }
template <class T> SEQLOOM_INLINE T sigmoid_backward(T d, T y) { return d * y * (T(1) - y); }

} // namespace seqloom
