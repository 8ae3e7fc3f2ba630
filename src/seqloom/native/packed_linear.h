// y = W x + b for a few rows x, again and again with the same W.
//
// W is packed by layers/packed_linear.py in strips: all weights of as many outputs as a vector has lanes, side by side. They are
// stored in float32, or in fewer bits; of int8 the weights of four inputs are neighbours. A row's sums have one order, whatever
// the other rows and the number of threads. They are in float32, or, where `rounds_inputs` says so, exact sums of whole numbers:
//
//   x ≈ a q,  a = max |x| / 127,  W ≈ s w  ->  y = a s (Σ (w + 128) q - 128 Σ q) + b
#pragma once

#include "product.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <omp.h>
#include <vector>

namespace seqloom {

enum Storage : long { FLOAT32, BFLOAT16, INT8 }; // as `Storage` in packed_weights.py

typedef int32_t Integers __attribute__((vector_size(BYTES)));

// As many weights as a vector has lanes, in float32. bfloat16 is the upper half of float32. GCC finds these instructions from
// __builtin_convertvector only piece by piece.
inline Vector<float> widened(const float* from) { return load(from); }
inline Vector<float> widened(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16);
#elif defined(__AVX2__)
  return (Vector<float>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
#else
  Integers words;
  for (long lane = 0; lane < LANES<float>; lane++) words[lane] = int32_t(uint32_t(from[lane]) << 16);
  return (Vector<float>)words;
#endif
}

// Adds the products of four neighbours of each lane, a from 0 to 255 and b from -128 to 127, to `sum`. Only called where
// `multiplies_integers`. Zen 4 and Ice Lake have it for AVX-512, Alder Lake and Zen 5 for AVX too.
#if defined(__AVX512F__)
#define SEQLOOM_INTEGERS __attribute__((target("avx512vnni")))
inline bool multiplies_integers() { return __builtin_cpu_supports("avx512vnni"); }
SEQLOOM_INTEGERS inline Integers dot(Integers sum, Integers a, Integers b) { return (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
#elif defined(__AVX2__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define SEQLOOM_INTEGERS __attribute__((target("avxvnni")))
inline bool multiplies_integers() {
  unsigned a, b, c, d; // bit 4 of EAX: not every compiler's __builtin_cpu_supports knows it
  asm volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(1));
  return a >> 4 & 1;
}
SEQLOOM_INTEGERS inline Integers dot(Integers sum, Integers a, Integers b) { return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b); }
#else
#define SEQLOOM_INTEGERS
inline bool multiplies_integers() { return false; }
inline Integers dot(Integers sum, Integers, Integers) { return sum; }
#endif

// The inputs of a product, which several products may share.
struct Inputs {
  Rows<const float> x;
  long rows;
  // rounded: q, four in a word, and for each row a and Σ q
  std::vector<int32_t> words{};
  long stride = 0;
  std::vector<float> steps{};
  std::vector<int32_t> sums{};

  void round(long inputs) {
    stride = (inputs + 3) / 4;
    words.assign(rows * stride, 0);
    steps.resize(rows);
    sums.resize(rows);
    for (long row = 0; row < rows; row++) {
      const float* from = x[row];
      float largest = 0, broken = 0; // NaN where any input is NaN or infinite
#pragma omp simd reduction(max : largest) reduction(+ : broken)
      for (long in = 0; in < inputs; in++) largest = larger(largest, std::fabs(from[in])), broken += 0.f * from[in];
      const float per_step = largest > 1e-30f ? 127.f / largest : 0.f, magic = 12582912.f; // adding 1.5 * 2^23 rounds to an integer
      int8_t* to = reinterpret_cast<int8_t*>(words.data() + row * stride);
      int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
      for (long in = 0; in < inputs; in++) {
        const int32_t q = static_cast<int32_t>((from[in] * per_step + magic) - magic);
        to[in] = static_cast<int8_t>(q);
        sum += q;
      }
      steps[row] = largest / 127.f + broken, sums[row] = sum;
    }
  }
};

struct PackedLinear { // as `LinearArguments` in packed_linear.py
  Storage storage;
  const void* strips;
  const float *scales, *bias; // (outputs,): scales of int8, filled up to whole strips, else null; null without a bias
  long inputs, outputs, rounds_inputs;

  static constexpr int REGISTERS = BYTES == 64 ? 28 : 14; // for sums
  static constexpr long AHEAD = 24; // vectors between the weights that are multiplied and those that are fetched
  // Strips that are multiplied with M rows at once.
  static constexpr int wide(long rows) { return 8 * rows <= REGISTERS ? 8 : 4 * rows <= REGISTERS ? 4 : 2; }

  long strips_of() const { return (outputs + LANES<float> - 1) / LANES<float>; }

  // The member's share of the outputs.
  Share columns_of(const Member& me) const {
    const Share share = me.of(strips_of());
    return {share.first * LANES<float>, std::min(outputs, share.last * LANES<float>)};
  }

  // Row `output` of W.
  void row(long output, float* to) const {
    const long strip = output / LANES<float>, lane = output % LANES<float>;
    if (storage == INT8) {
      const int8_t* at = static_cast<const int8_t*>(strips) + strip * ((inputs + 3) / 4) * BYTES + 4 * lane;
      for (long in = 0; in < inputs; in++) to[in] = scales[output] * static_cast<int8_t>(at[in / 4 * BYTES + in % 4] ^ 0x80);
      return;
    }
    const long first = strip * inputs * LANES<float> + lane;
    for (long in = 0; in < inputs; in++) {
      const long at = first + in * LANES<float>;
      const uint32_t bits = storage == FLOAT32 ? static_cast<const uint32_t*>(strips)[at] : uint32_t(static_cast<const uint16_t*>(strips)[at]) << 16;
      std::memcpy(to + in, &bits, sizeof bits);
    }
  }

  // What all products of these inputs read.
  Inputs prepared(Rows<const float> x, long rows) const {
    Inputs given{x, rows};
    if (rounds_inputs) given.round(inputs);
    return given;
  }

  void operator()(const Member& me, Rows<const float> x, long rows, Rows<float> y) const { (*this)(me.of(strips_of()), prepared(x, rows), y); }

  // Some strips, each at its place in y.
  void operator()(Share share, const Inputs& given, Rows<float> y) const {
    if (given.rows == 0) return;
    const long tiles = (given.rows + TILE_ROWS - 1) / TILE_ROWS;
    const long step = wide((given.rows + tiles - 1) / tiles);
    for (long strip = share.first; strip < share.last; strip += step)
      for (long tile = 0; tile < tiles; tile++) {
        const Share rows{given.rows * tile / tiles, given.rows * (tile + 1) / tiles};
        rows_of(rows, {strip, std::min(strip + step, share.last)}, given, y);
      }
  }

private:
  template <int M = TILE_ROWS> void rows_of(Share rows, Share strips, const Inputs& given, Rows<float> y) const {
    if constexpr (M > 1)
      if (rows.last - rows.first < M) return rows_of<M - 1>(rows, strips, given, y);
    constexpr int WIDE = wide(M);
    if (strips.last - strips.first == WIDE) return stored<M, WIDE>(rows.first, strips.first, given, y);
    for (long strip = strips.first; strip < strips.last; strip++) stored<M, 1>(rows.first, strip, given, y);
  }

  template <int M, int S> void stored(long row, long strip, const Inputs& given, Rows<float> y) const {
    switch (storage) {
    case FLOAT32: return tile<float, M, S>(row, strip, given, y);
    case BFLOAT16: return tile<uint16_t, M, S>(row, strip, given, y);
    case INT8: return rounds_inputs ? integer_tile<M, S>(row, strip, given, y) : tile<int8_t, M, S>(row, strip, given, y);
    }
  }

  template <class W, int M, int S> void tile(long row, long strip, const Inputs& given, Rows<float> y) const {
    constexpr long TOGETHER = sizeof(W) == 1 ? 4 : 1; // inputs whose weights are neighbours
    const long size = (inputs + TOGETHER - 1) / TOGETHER * TOGETHER * LANES<float>;
    const W* at = static_cast<const W*>(strips) + strip * size;
    const Rows<const float> x{given.x[row], given.x.stride};
    Vector<float> sum[S][M];
#pragma GCC unroll 16
    for (int s = 0; s < S; s++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) sum[s][m] = Vector<float>{};
    for (long in = 0; in < inputs; in++) {
      Vector<float> weights[S];
#pragma GCC unroll 16
      for (int s = 0; s < S; s++)
        if constexpr (TOGETHER == 1) {
          const W* const from = at + s * size + in * LANES<float>;
          __builtin_prefetch(from + AHEAD * LANES<float>);
          weights[s] = widened(from);
        } else weights[s] = one_of_four(at + s * size + in / 4 * BYTES, in % 4);
#pragma GCC unroll 16
      for (int m = 0; m < M; m++)
#pragma GCC unroll 16
        for (int s = 0; s < S; s++) sum[s][m] += weights[s] * x[m][in];
    }
#pragma GCC unroll 16
    for (int s = 0; s < S; s++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) put(sum[s][m], 1.f, strip + s, y[row + m]);
  }

  // Weights are stored with 128 added, which changes their first bit.
  static Vector<float> one_of_four(const int8_t* from, long which) {
    Integers words;
    std::memcpy(&words, from, sizeof words);
    words = ((words ^ int32_t(0x80808080)) << int32_t(24 - 8 * which)) >> 24;
    return __builtin_convertvector(words, Vector<float>);
  }

  template <int M, int S> SEQLOOM_INTEGERS void integer_tile(long row, long strip, const Inputs& given, Rows<float> y) const {
    const long size = given.stride;
    const Integers* at = static_cast<const Integers*>(strips) + strip * size;
    const int32_t* words = given.words.data() + row * size;
    Integers sum[S][M];
#pragma GCC unroll 16
    for (int s = 0; s < S; s++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) sum[s][m] = Integers{} - 128 * given.sums[row + m];
    for (long in = 0; in < size; in++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) {
        Integers weights;
        std::memcpy(&weights, at + s * size + in, sizeof weights);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) sum[s][m] = dot(sum[s][m], weights, Integers{} + words[m * size + in]);
      }
#pragma GCC unroll 16
    for (int s = 0; s < S; s++)
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) put(__builtin_convertvector(sum[s][m], Vector<float>), given.steps[row + m], strip + s, y[row + m]);
  }

  void put(Vector<float> sum, float step, long strip, float* y) const {
    const long column = strip * LANES<float>;
    if (scales) sum *= step * load(scales + column);
    if (column + LANES<float> > outputs) return put_some(sum, column, y);
    store(y + column, bias ? sum + load(bias + column) : sum);
  }

  __attribute__((noinline)) void put_some(Vector<float> sum, long column, float* y) const {
    for (long lane = 0; column + lane < outputs; lane++) y[column + lane] = sum[lane] + (bias ? bias[column + lane] : 0.f);
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

// Runs a step of decoding on a team of threads. False where nothing was done.
template <class S> bool run(const S& step, long threads) {
  if (!step.even()) return false;
  static thread_local std::vector<float> workspace;
  if (const size_t asked = step.workspace_size(threads); workspace.size() < asked) workspace.resize(asked);
  float* const shared = workspace.data();
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  step(Member{barrier, omp_get_thread_num(), omp_get_num_threads()}, shared);
  return true;
}

} // namespace seqloom
