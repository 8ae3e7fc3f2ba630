// Attention in the heads of whole rows, softmax(Q Kᵀ · scale + mask) V, and its gradients: layers/compiled_attention.py.
//
// A thread takes one head of one row at a time, and of it some queries at a time: their scores stay in its caches and are formed
// anew backward. All is computed in float32. Each sum has one order, whatever the number of threads.
//
//   S = Q Kᵀ,  P = e^(S - log Σ e^S),  O = P V
//   dP = dO Vᵀ,  dS = P (dP - Σ P dP),  dV = Pᵀ dO,  dQ = dS K,  dK = dSᵀ Q
#pragma once

#include "product.h"
#include "stored_numbers.h"

#include <limits>
#include <omp.h>
#include <utility>
#include <vector>

namespace seqloom {

struct Heads { // (rows, heads, steps, head_width); the numbers of a head lie side by side
  void* data;
  long row, head, step; // strides
};

struct Attention { // as `HeadAttentionArguments` in compiled_attention.py
  long rows, heads, queries, keys, width, bfloat16, causal;
  float scale;
  Heads query, key, value, mixed; // mixed: O, or its gradient
  Heads d_query, d_key, d_value;  // null forward
  const bool* mask;               // (rows, heads, queries, keys): true where a query looks; null: everywhere, or causal
  long mask_row, mask_head, mask_query;
  float* log_sums; // (rows, heads, queries)

  static constexpr long SOME = 4 * TILE_ROWS; // queries at a time
  long visible(long query) const { return causal ? std::min(keys, query + 1) : keys; }
};

// A matrix whose columns are in strips of one vector's width.
struct Strips {
  static constexpr long LANE = LANES<float>, GAP = 16; // unused numbers between strips, which would compete for the same cache lines
  float* data;
  long depth;

  static long count(long columns) { return (columns + LANE - 1) / LANE; }
  static long size(long columns, long depth) { return count(columns) * (depth * LANE + GAP); }
  float* operator[](long strip) const { return data + strip * (depth * LANE + GAP); }

  void pack(Rows<const float> matrix, long columns) const { // whole strips of columns
    for (long strip = 0; strip < count(columns); strip++)
      for (long row = 0; row < depth; row++) store((*this)[strip] + row * LANE, load(matrix[row] + strip * LANE));
  }
  void pack_transposed(Rows<const float> matrix, long columns) const {
    for (long strip = 0; strip < count(columns); strip++) {
      float* to = (*this)[strip];
      const long lanes = std::min(LANE, columns - strip * LANE);
      for (long in = 0; in < depth; in += LANE)
        for (long lane = 0; lane < LANE; lane++)
          for (long each = in; each < std::min(depth, in + LANE); each++) to[each * LANE + lane] = lane < lanes ? matrix[strip * LANE + lane][each] : 0.f;
    }
  }

  // out = u W, or += : so many rows of u, of which `used` columns count, and so many columns of W in whole strips.
  template <bool TRANSPOSED = false> void multiply(Rows<const float> u, long rows, long used, long columns, Rows<float> out, bool add = false) const {
    const long lanes[2] = {LANE, LANE};
    for (long strip = 0; strip < count(columns); strip += 2) {
      const bool both = strip + 1 < count(columns);
      const float* w[2] = {(*this)[strip], (*this)[strip + both]};
      for (long up = 0; up < rows; up += TILE_ROWS) {
        const Rows<float> to[2] = {{out[up] + strip * LANE, out.stride}, {out[up] + (strip + 1) * LANE, out.stride}};
        const Rows<const float> nothing{nullptr, 0}, plus[2] = {add ? to[0] : nothing, add ? to[1] : nothing};
        const Rows<const float> part{TRANSPOSED ? u.data + up : u[up], u.stride};
        if (both) tile_of<float, 2, TRANSPOSED>(std::min<long>(TILE_ROWS, rows - up), part, w, used, plus, to, lanes);
        else tile_of<float, 1, TRANSPOSED>(std::min<long>(TILE_ROWS, rows - up), part, w, used, plus, to, lanes);
      }
    }
  }
};

template <class T> class HeadOfRow {
  static constexpr long LANE = LANES<float>, SOME = Attention::SOME, AHEAD = 8;
  const Attention& call;
  const long row, head, width, keys; // the last two padded to whole vectors

  static long padded(long size) { return (size + LANE - 1) / LANE * LANE; }
  T* at(const Heads& all, long step) const { return static_cast<T*>(all.data) + row * all.row + head * all.head + step * all.step; }
  float* log_sums() const { return call.log_sums + (row * call.heads + head) * call.queries; }

  // A step, to be written or only read: the next one of a head is too far away for the processor to guess.
  template <int WRITES> void prefetch(const Heads& from, long step) const {
    const char* numbers = reinterpret_cast<const char*>(at(from, step));
    for (long byte = 0; byte < long(call.width * sizeof(T)); byte += 64) __builtin_prefetch(numbers + byte, WRITES);
  }
  void read(const Heads& from, long first, long count, float scale, Rows<float> to) const {
    for (long step = 0; step < count; step++) {
      prefetch<0>(from, first + step + AHEAD);
      widen(at(from, first + step), scale, to[step], call.width);
      std::fill(to[step] + call.width, to[step] + width, 0.f);
    }
  }
  void write(Rows<const float> from, const float* scales, float scale, const Heads& to, long first, long count) const {
    for (long step = 0; step < count; step++) {
      prefetch<1>(to, first + step + AHEAD);
      narrow(from[step], scales ? scales[step] : scale, at(to, first + step), call.width);
    }
  }
  Strips transposed(const Heads& from, Rows<float> space, float*& free) const { // of all keys or values
    read(from, 0, call.keys, 1.f, space);
    const Strips strips{free, call.width};
    free += Strips::size(keys, call.width);
    strips.pack_transposed(space, call.keys);
    return strips;
  }
  const bool* mask(long query) const { return call.mask ? call.mask + row * call.mask_row + head * call.mask_head + query * call.mask_query : nullptr; }

  // Scores of one query to e^(score - less), 0 where it does not look; their sum.
  float exponentials(float* scores, long query, long until, float less) const {
    const long seen = call.visible(query);
    float sum = 0;
    if (const bool* look = mask(query)) {
#pragma omp simd reduction(+ : sum)
      for (long key = 0; key < seen; key++) {
        const float power = exponential(scores[key] - less);
        scores[key] = look[key] ? power : 0.f;
        sum += scores[key];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (long key = 0; key < seen; key++) {
        scores[key] = exponential(scores[key] - less);
        sum += scores[key];
      }
    }
    std::fill(scores + seen, scores + until, 0.f);
    return sum;
  }
  float largest(const float* scores, long query) const {
    const long seen = call.visible(query);
    float most = std::numeric_limits<float>::lowest();
    if (const bool* look = mask(query)) {
#pragma omp simd reduction(max : most)
      for (long key = 0; key < seen; key++) most = larger(most, look[key] ? scores[key] : most);
    } else {
#pragma omp simd reduction(max : most)
      for (long key = 0; key < seen; key++) most = larger(most, scores[key]);
    }
    return most;
  }

public:
  HeadOfRow(const Attention& call, long number)
      : call(call), row(number / call.heads), head(number % call.heads), width(padded(call.width)), keys(padded(call.keys)) {}

  static long workspace_size(const Attention& call) {
    const long width = padded(call.width), keys = padded(call.keys), some = Strips::size(width, SOME) + SOME * width;
    return 2 * Strips::size(keys, call.width) + Strips::size(width, keys) + 3 * keys * width + 2 * SOME * keys + 3 * some + LANE;
  }

  void forward(float* free) const {
    const auto take = [&](long count, long wide) { return Rows<float>{std::exchange(free, free + count * wide), wide}; };
    const Rows<float> space = take(keys, width), query = take(SOME, width), scores = take(SOME, keys), mixed = take(SOME, width);
    const Strips keys_across = transposed(call.key, space, free);
    read(call.value, 0, call.keys, 1.f, space);
    const Strips values{free, call.keys};
    values.pack(space, width);
    float inverse[SOME];
    for (long first = 0; first < call.queries; first += SOME) {
      const long count = std::min(SOME, call.queries - first), seen = call.visible(first + count - 1), until = padded(seen);
      read(call.query, first, count, call.scale, query);
      keys_across.multiply(query, count, call.width, until, scores);
      for (long i = 0; i < count; i++) {
        const float most = largest(scores[i], first + i), sum = exponentials(scores[i], first + i, until, most);
        inverse[i] = sum == 0.f ? 0.f : 1.f / sum; // nothing to see
        log_sums()[first + i] = sum == 0.f ? 0.f : most + std::log(sum);
      }
      values.multiply(scores, count, seen, width, mixed);
      write(mixed, inverse, 1.f, call.mixed, first, count);
    }
  }

  void backward(float* free) const {
    const auto take = [&](long count, long wide) { return Rows<float>{std::exchange(free, free + count * wide), wide}; };
    const Rows<float> space = take(keys, width), d_key = take(keys, width), d_value = take(keys, width);
    const Rows<float> query = take(SOME, width), d_mixed = take(SOME, width), d_query = take(SOME, width);
    const Rows<float> weights = take(SOME, keys), d_scores = take(SOME, keys);
    const Strips values_across = transposed(call.value, space, free), keys_across = transposed(call.key, space, free);
    const Strips all_keys{free, call.keys};
    all_keys.pack(space, width);
    free += Strips::size(width, call.keys);
    std::fill(d_key.data, d_key.data + keys * width, 0.f);
    std::fill(d_value.data, d_value.data + keys * width, 0.f);
    for (long first = 0; first < call.queries; first += SOME) {
      const long count = std::min(SOME, call.queries - first), seen = call.visible(first + count - 1), until = padded(seen);
      read(call.query, first, count, call.scale, query);
      read(call.mixed, first, count, 1.f, d_mixed);
      keys_across.multiply(query, count, call.width, until, weights);
      values_across.multiply(d_mixed, count, call.width, until, d_scores);
      for (long i = 0; i < count; i++) {
        float *p = weights[i], *d = d_scores[i], along = 0;
        exponentials(p, first + i, until, log_sums()[first + i]);
#pragma omp simd reduction(+ : along)
        for (long key = 0; key < until; key++) along += p[key] * d[key];
#pragma GCC ivdep
        for (long key = 0; key < until; key++) d[key] = p[key] * (d[key] - along);
      }
      const Strips some_queries{free, count}, some_mixed{free + Strips::size(width, SOME), count};
      some_queries.pack(query, width);
      some_mixed.pack(d_mixed, width);
      some_mixed.multiply<true>(weights, seen, count, width, d_value, true);
      some_queries.multiply<true>(d_scores, seen, count, width, d_key, true);
      all_keys.multiply(d_scores, count, seen, width, d_query);
      write(d_query, nullptr, call.scale, call.d_query, first, count);
    }
    write(d_key, nullptr, 1.f, call.d_key, 0, call.keys);
    write(d_value, nullptr, 1.f, call.d_value, 0, call.keys);
  }
};

template <class T> void attend(const Attention& call, long threads) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    static thread_local std::vector<float> workspace; // reused: the first write to fresh memory is slow
    if (const size_t asked = HeadOfRow<T>::workspace_size(call); asked > workspace.size()) workspace = std::vector<float>(asked);
    float* const aligned = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace.data()) + BYTES - 1) / BYTES * BYTES);
#pragma omp for schedule(static)
    for (long number = 0; number < call.rows * call.heads; number++) {
      const HeadOfRow<T> unit(call, number);
      call.d_query.data ? unit.backward(aligned) : unit.forward(aligned);
    }
  }
}

inline void run(const Attention& call, long threads) { call.bfloat16 ? attend<BFloat16>(call, threads) : attend<float>(call, threads); }

} // namespace seqloom
