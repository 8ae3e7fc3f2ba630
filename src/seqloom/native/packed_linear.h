// y = W x + b for a few rows x, again and again with the same W.
//
// W is packed by layers/packed_linear.py in strips: all weights of as many outputs as a vector has lanes, side by side. They are
// stored in float32, or in fewer bits; all sums are in float32. A row's sums have one order, whatever the other rows and the number
// of threads.
#pragma once

#include "product.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <omp.h>

namespace seqloom {

enum Storage : long { FLOAT32, BFLOAT16, INT8 }; // as STORAGES in packed_linear.py

// As many weights as a vector has lanes, in float32. bfloat16 is the upper half of float32. GCC finds these instructions from
// __builtin_convertvector only piece by piece.
inline Vector<float> widened(const float* from) { return load(from); }
#if defined(__AVX512F__)
inline Vector<float> widened(const uint16_t* from) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return (Vector<float>)_mm512_slli_epi32(words, 16);
}
inline Vector<float> widened(const int8_t* from) {
  return (Vector<float>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(__AVX2__)
inline Vector<float> widened(const uint16_t* from) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (Vector<float>)_mm256_slli_epi32(words, 16);
}
inline Vector<float> widened(const int8_t* from) {
  return (Vector<float>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#else
inline Vector<float> widened(const uint16_t* from) {
  uint32_t words[LANES<float>];
  for (long lane = 0; lane < LANES<float>; lane++) words[lane] = uint32_t(from[lane]) << 16;
  Vector<float> v;
  std::memcpy(&v, words, sizeof v);
  return v;
}
inline Vector<float> widened(const int8_t* from) {
  Vector<float> v;
  for (long lane = 0; lane < LANES<float>; lane++) v[lane] = from[lane];
  return v;
}
#endif

struct PackedLinear { // as `LinearArguments` in packed_linear.py
  Storage storage;
  const void* strips;
  const float *scales, *bias; // (outputs,): scales of int8, filled up to whole strips, else null; null without a bias
  long inputs, outputs;

  static constexpr int REGISTERS = BYTES == 64 ? 28 : 14; // for sums
  // Strips that are multiplied with M rows at once.
  template <int M> static constexpr int WIDE = 8 * M <= REGISTERS ? 8 : 4 * M <= REGISTERS ? 4 : 2;

  long strips_of() const { return (outputs + LANES<float> - 1) / LANES<float>; }

  // The member's share of the outputs.
  Share columns_of(const Member& me) const {
    const Share share = me.of(strips_of());
    return {share.first * LANES<float>, std::min(outputs, share.last * LANES<float>)};
  }

  void operator()(const Member& me, Rows<const float> x, long rows, Rows<float> y) const {
    switch (storage) {
    case FLOAT32: return multiply(me, static_cast<const float*>(strips), x, rows, y);
    case BFLOAT16: return multiply(me, static_cast<const uint16_t*>(strips), x, rows, y);
    case INT8: return multiply(me, static_cast<const int8_t*>(strips), x, rows, y);
    }
  }

private:
  template <class W> void multiply(const Member& me, const W* w, Rows<const float> x, long rows, Rows<float> y) const {
    const Share share = me.of(strips_of());
    const long tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    if (rows == 0) return;
    const long high = (rows + tiles - 1) / tiles; // the most rows of a tile
    const long wide = 8 * high <= REGISTERS ? 8 : 4 * high <= REGISTERS ? 4 : 2;
    for (long strip = share.first; strip < share.last; strip += wide)
      for (long tile = 0; tile < tiles; tile++) {
        const long first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
        rows_of(last - first, w, strip, std::min(strip + wide, share.last), {x[first], x.stride}, {y[first], y.stride});
      }
  }

  template <class W, int M = TILE_ROWS> void rows_of(long rows, const W* w, long strip, long last, Rows<const float> x, Rows<float> y) const {
    if constexpr (M > 1)
      if (rows < M) return rows_of<W, M - 1>(rows, w, strip, last, x, y);
    for (; strip + WIDE<M> <= last; strip += WIDE<M>) tile<W, M, WIDE<M>>(w, strip, x, y);
    for (; strip < last; strip++) tile<W, M, 1>(w, strip, x, y);
  }

  template <class W, int M, int S> void tile(const W* w, long strip, Rows<const float> x, Rows<float> y) const {
    const long size = inputs * LANES<float>;
    const W* at = w + strip * size;
    Vector<float> sum[S][M];
#pragma GCC unroll 16
    for (int s = 0; s < S; s++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) sum[s][m] = Vector<float>{};
    for (long in = 0; in < inputs; in++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) {
        const Vector<float> weights = widened(at + s * size + in * LANES<float>);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sum[s][m] += weights * x[m][in];
      }
#pragma GCC unroll 16
    for (int s = 0; s < S; s++) {
      const long column = (strip + s) * LANES<float>, lanes = std::min(LANES<float>, outputs - column);
      const Vector<float> scale = scales ? load(scales + column) : Vector<float>{} + 1.f;
      Vector<float> added{};
      if (bias) std::memcpy(&added, bias + column, lanes * sizeof(float));
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const Vector<float> result = sum[s][m] * scale + added;
        if (lanes == LANES<float>) store(y[m] + column, result);
        else std::memcpy(y[m] + column, &result, lanes * sizeof(float));
      }
    }
  }
};

struct LinearCall { // as `CallArguments` in packed_linear.py
  PackedLinear linear;
  Rows<const float> x;
  Rows<float> y;
  long rows;
};

inline void multiply(const LinearCall& call, long threads) {
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  call.linear(Member{barrier, omp_get_thread_num(), omp_get_num_threads()}, call.x, call.rows, call.y);
}

} // namespace seqloom
