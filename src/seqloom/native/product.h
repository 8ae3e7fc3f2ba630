// u -> plus + W u for a few rows u, again and again with the same W.
//
// W is packed in strips: all weights of as many outputs as a vector has lanes, side by side. A tile of up to
// TILE_ROWS rows times two strips stays in registers while both are read once (Goto and van de Geijn 2008).
#pragma once

#include "arithmetic.h"
#include "team.h"

namespace seqloom {

// The rows of a matrix: the first, and the distance from one to the next.
template <class T> struct Rows {
  T* data;
  long stride;

  T* operator[](long row) const { return data + row * stride; }
  Rows columns(long first) const { return {data + first, stride}; }
  operator Rows<const T>() const { return {data, stride}; }
};

// A matrix whose rows may be taken in any order.
template <class T> struct Matrix {
  T* data;
  long row_stride, column_stride;  // one of them is 1
  const long* index; // the row at each place, where `column_stride` is 1; null: rows in order

  T* operator[](long place) const { return data + (index ? index[place] : place) * row_stride; }
};

// u has contiguous rows; or, where it is transposed, contiguous columns, a stride apart.
template <class T, int M, int S, bool TRANSPOSED>
void tile(Rows<const T> u, const T* const* strips, long depth, const Rows<const T>* plus, const Rows<T>* out, const long* lanes) {
  Vector<T> sum[M][S];
  bool whole = true;
  for (int s = 0; s < S; s++) whole = whole && lanes[s] == LANES<T>;
  if (!plus[0].data) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) sum[m][s] = Vector<T>{};
  } else if (whole) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) sum[m][s] = load(plus[s][m]);
  } else
    for (int m = 0; m < M; m++)
      for (int s = 0; s < S; s++) {
        T some[LANES<T>] = {};
        for (long lane = 0; lane < lanes[s]; lane++) some[lane] = plus[s][m][lane];
        sum[m][s] = load(some);
      }
  const T* strip[S];
  for (int s = 0; s < S; s++) strip[s] = strips[s];
  const T* at = u.data;
  const long stride = u.stride;
#pragma GCC unroll 4
  for (long k = 0; k < depth; k++) {
    Vector<T> w[S];
#pragma GCC unroll 16
    for (int s = 0; s < S; s++) w[s] = load(strip[s] + k * LANES<T>);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) sum[m][s] += w[s] * (TRANSPOSED ? at[k * stride + m] : at[m * stride + k]);
  }
  if (whole) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
      for (int s = 0; s < S; s++) store(out[s][m], sum[m][s]);
  } else
    for (int m = 0; m < M; m++)
      for (int s = 0; s < S; s++) std::memcpy(out[s][m], &sum[m][s], lanes[s] * sizeof(T));
}

template <class T, int S, bool TRANSPOSED = false, int M = TILE_ROWS>
void tile_of(long rows, Rows<const T> u, const T* const* strips, long depth, const Rows<const T>* plus, const Rows<T>* out, const long* lanes) {
  if constexpr (M > 1)
    if (rows < M) return tile_of<T, S, TRANSPOSED, M - 1>(rows, u, strips, depth, plus, out, lanes);
  tile<T, M, S, TRANSPOSED>(u, strips, depth, plus, out, lanes);
}

template <class T> class Product {
  const T* w;
  long groups, columns, depth, step_out, step_in, blocks;
  T* strips;

  Product(const T* w, long groups, long columns, long depth, long step_out, long step_in, T*& workspace)
      : w(w), groups(groups), columns(columns), depth(depth), step_out(step_out), step_in(step_in), blocks(blocks_of(columns)), strips(workspace) {
    workspace += groups * blocks * depth * LANES<T>;
  }

public:
  static long blocks_of(long columns) { return (columns + LANES<T> - 1) / LANES<T>; }
  static long workspace(long gates, long width, long depth) { // enough for `forward` and for `transposed`
    return LANES<T> * std::max(gates * blocks_of(width) * depth, blocks_of(depth) * gates * width);
  }

  // W is (gates * width, depth).
  static Product forward(const T* w, long gates, long width, long depth, T*& workspace) { return {w, gates, width, depth, depth, 1, workspace}; }
  // The same for Wᵀ.
  static Product transposed(const T* w, long gates, long width, long depth, T*& workspace) { return {w, 1, depth, gates * width, 1, depth, workspace}; }

  // Packs the member's share of the strips, which only this member will read.
  void pack(const Member& me) {
    const Share share = me.of(blocks);
    for (long block = share.first; block < share.last; block++)
      for (long group = 0; group < groups; group++) {
        T* strip = strips + (block * groups + group) * depth * LANES<T>;
        const long lanes = std::min(LANES<T>, columns - block * LANES<T>);
        const T* from = w + (group * columns + block * LANES<T>)*step_out;
        for (long k = 0; k < depth; k += 16)
          for (long lane = 0; lane < LANES<T>; lane++)
            for (long in = k; in < std::min(depth, k + 16); in++)
              strip[in * LANES<T> + lane] = lane < lanes ? from[lane * step_out + in * step_in] : T(0);
      }
  }

  // Computes the member's share of the outputs. `plus.data` may be null; `out` has the groups side by side, each `columns` wide.
  void operator()(const Member& me, Rows<const T> u, long rows, Rows<const T> plus, Rows<T> out) const {
    const Share share = me.of(blocks);
    const long first = share.first * groups, last = share.last * groups;
    const long tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (long strip = first; strip < last; strip += 2) {
      const int both = strip + 1 < last;
      const T* w[2];
      Rows<const T> add[2];
      Rows<T> to[2];
      long lanes[2];
      for (int s = 0; s <= both; s++) {
        const long block = (strip + s) / groups, group = (strip + s) % groups, column = group * columns + block * LANES<T>;
        w[s] = strips + (strip + s) * depth * LANES<T>;
        add[s] = plus.data ? plus.columns(column) : plus;
        to[s] = out.columns(column);
        lanes[s] = std::min(LANES<T>, columns - block * LANES<T>);
      }
      for (long part = 0; part < tiles; part++) {
        const long from = rows * part / tiles, high = rows * (part + 1) / tiles - from;
        Rows<const T> add_at[2];
        Rows<T> to_at[2];
        for (int s = 0; s <= both; s++) {
          add_at[s] = add[s].data ? Rows<const T>{add[s][from], add[s].stride} : add[s];
          to_at[s] = {to[s][from], to[s].stride};
        }
        const Rows<const T> u_at{u[from], u.stride};
        if (plus.data && both)
          for (long m = 0; m < high; m++) __builtin_prefetch(add_at[1][m] + LANES<T>);
        if (both) tile_of<T, 2>(high, u_at, w, depth, add_at, to_at, lanes);
        else tile_of<T, 1>(high, u_at, w, depth, add_at, to_at, lanes);
      }
    }
  }
};

} // namespace seqloom
