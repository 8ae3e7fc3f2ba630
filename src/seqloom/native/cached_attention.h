// Attention of one token of each row over keys and values that are in caches, one head at a time:
//
//   softmax(K q * scale + bias) V,   0 where a query sees nothing
//
// Rows of one text, such as the hypotheses of a beam, have their first keys in common. Some of them are read together: what they
// have in common is loaded once. A row's sums have one order, whatever it is read with.
#pragma once

#include "arithmetic.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace seqloom {

struct RowGroup { // rows that are read together
  static constexpr long MOST = 4;
  static constexpr long WORTH = 8; // slots in common from which it pays

  long rows[MOST];
  long count, shared; // shared: the first slots, which agree in all of its rows
};

// Groups of all rows, given in how many first slots two rows agree.
template <class F> std::vector<RowGroup> grouped(long rows, F agreement) {
  std::vector<RowGroup> groups;
  for (long row = 0; row < rows; row++) {
    RowGroup* nearest = nullptr;
    long most = RowGroup::WORTH - 1;
    for (RowGroup& group : groups) {
      if (group.count == RowGroup::MOST) continue;
      const long agreed = agreement(group.rows[0], row);
      // a row that would halve what the others have in common stays alone
      if (agreed > most && (group.count == 1 || 2 * agreed >= group.shared)) nearest = &group, most = agreed;
    }
    if (!nearest) {
      groups.push_back({{row}, 1, 0});
      continue;
    }
    nearest->shared = nearest->count == 1 ? most : std::min(nearest->shared, most);
    nearest->rows[nearest->count++] = row;
  }
  return groups;
}

struct Slots { // of one head, one after the other
  const float *keys, *values;
  long count;
};

using SharedSlots = std::array<Slots, 2>; // one after the other; a count of 0: none

struct Query { // of one row in one head
  const float* query;
  float* out;
  Slots own;              // after those that are shared
  const uint8_t* visible; // of all slots; null: all
  const float* bias;      // of all slots; null: none
};

struct CachedAttention {
  long head_width;
  float scale; // of the scores

  // `weights` has room for `most` numbers of each query. Of slots that are shared all queries see the same ones.
  template <int M = RowGroup::MOST> void attend(const Query* queries, long count, const SharedSlots& shared, long most, float* weights) const {
    if constexpr (M > 1)
      if (count < M) return attend<M - 1>(queries, count, shared, most, weights);
    attend_all<M>(queries, shared, most, weights);
  }

private:
  static constexpr float NEVER = -std::numeric_limits<float>::infinity();

  template <int M> void attend_all(const Query* queries, const SharedSlots& shared, long most, float* weights) const {
    float totals[M];
    long first = 0;
    for (const Slots& slots : shared) {
      score<M>(queries, slots, weights + first, most);
      first += slots.count;
    }
    for (int m = 0; m < M; m++) {
      score<1>(queries + m, queries[m].own, weights + m * most + first, most);
      totals[m] = normalised(queries[m], first + queries[m].own.count, weights + m * most);
    }
    constexpr int WIDE = BYTES == 64 || M <= 2 ? 4 : 2; // so many sums as there are registers for
    long column = 0;
    for (; column + WIDE * LANES<float> <= head_width; column += WIDE * LANES<float>) mix<M, WIDE>(queries, shared, most, weights, totals, column);
    for (; column + LANES<float> <= head_width; column += LANES<float>) mix<M, 1>(queries, shared, most, weights, totals, column);
    for (; column < head_width; column++)
      for (int m = 0; m < M; m++) queries[m].out[column] = totals[m] > 0 ? mixed(queries[m], shared, weights + m * most, column) / totals[m] : 0.f;
  }

  // exp(score - largest) of all slots, in place -> their sum.
  static float normalised(const Query& query, long count, float* weights) {
    if (query.bias)
      for (long slot = 0; slot < count; slot++) weights[slot] += query.bias[slot];
    if (query.visible)
      for (long slot = 0; slot < count; slot++) weights[slot] = query.visible[slot] ? weights[slot] : NEVER;
    float largest = NEVER, total = 0;
#pragma omp simd reduction(max : largest)
    for (long slot = 0; slot < count; slot++) largest = larger(largest, weights[slot]);
#pragma omp simd reduction(+ : total)
    for (long slot = 0; slot < count; slot++) {
      weights[slot] = weights[slot] == NEVER ? 0.f : exponential(weights[slot] - largest);
      total += weights[slot];
    }
    return total;
  }

  // The scores that M queries have for some slots.
  template <int M> void score(const Query* queries, const Slots& slots, float* scores, long most) const {
    constexpr int KEYS = M == 1 ? 4 : M == 2 ? 2 : 1; // at once
    long slot = 0;
    for (; slot + KEYS <= slots.count; slot += KEYS) products<M, KEYS>(queries, slots.keys + slot * head_width, scores + slot, most);
    for (; slot < slots.count; slot++) products<M, 1>(queries, slots.keys + slot * head_width, scores + slot, most);
  }

  // Of M queries and K keys, four products at most.
  template <int M, int K> void products(const Query* queries, const float* keys, float* scores, long most) const {
    Vector<float> sum[M * K] = {};
    long i = 0;
    for (; i + LANES<float> <= head_width; i += LANES<float>)
#pragma GCC unroll 4
      for (int k = 0; k < K; k++) {
        const Vector<float> key = load(keys + k * head_width + i);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) sum[m * K + k] += load(queries[m].query + i) * key;
      }
    Quarter fourth[4] = {};
#pragma GCC unroll 4
    for (int n = 0; n < M * K; n++) fourth[n] = folded(sum[n]);
    const Quarter first = __builtin_shufflevector(fourth[0], fourth[1], 0, 4, 1, 5) + __builtin_shufflevector(fourth[0], fourth[1], 2, 6, 3, 7);
    const Quarter last = __builtin_shufflevector(fourth[2], fourth[3], 0, 4, 1, 5) + __builtin_shufflevector(fourth[2], fourth[3], 2, 6, 3, 7);
    const Quarter found = __builtin_shufflevector(first, last, 0, 1, 4, 5) + __builtin_shufflevector(first, last, 2, 3, 6, 7);
#pragma GCC unroll 4
    for (int n = 0; n < M * K; n++) {
      float product = found[n];
      for (long rest = i; rest < head_width; rest++) product += queries[n / K].query[rest] * keys[n % K * head_width + rest];
      scores[n / K * most + n % K] = scale * product;
    }
  }

  typedef float Quarter __attribute__((vector_size(16)));

  // The sum of the vector's quarters.
  static Quarter folded(Vector<float> v) {
    Quarter quarters[BYTES / 16];
    std::memcpy(quarters, &v, sizeof quarters);
    Quarter sum = quarters[0];
    for (int i = 1; i < BYTES / 16; i++) sum += quarters[i];
    return sum;
  }

  // V vectors of the weighted means of the values. What has no weight may be anything, and is not read: a weight is 0 only where a
  // query does not look, which is the same for all queries of shared slots (`exponential` is never 0).
  template <int M, int V>
  void mix(const Query* queries, const SharedSlots& shared, long most, const float* weights, const float* totals, long column) const {
    Vector<float> sum[M][V] = {};
    for (const Slots& slots : shared) {
      for (long slot = 0; slot < slots.count; slot++) {
        if (weights[slot] == 0) continue;
        const float* values = slots.values + slot * head_width + column;
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          const Vector<float> value = load(values + v * LANES<float>);
#pragma GCC unroll 4
          for (int m = 0; m < M; m++) sum[m][v] += weights[m * most + slot] * value;
        }
      }
      weights += slots.count;
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const Slots& own = queries[m].own;
      const float* weight = weights + m * most;
      for (long slot = 0; slot < own.count; slot++) {
        if (weight[slot] == 0) continue;
        const float* values = own.values + slot * head_width + column;
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sum[m][v] += weight[slot] * load(values + v * LANES<float>);
      }
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) store(queries[m].out + column + v * LANES<float>, totals[m] > 0 ? sum[m][v] / totals[m] : Vector<float>{});
    }
  }

  // Σ weight * value in one column.
  float mixed(const Query& query, const SharedSlots& shared, const float* weights, long column) const {
    float sum = 0;
    const auto add = [&](const Slots& slots) {
      for (long slot = 0; slot < slots.count; slot++)
        if (weights[slot] != 0) sum += weights[slot] * slots.values[slot * head_width + column];
      weights += slots.count;
    };
    for (const Slots& slots : shared) add(slots);
    add(query.own);
    return sum;
  }
};

} // namespace seqloom
