// C = A B + bias, or C += A B, for large matrices, in blocks that stay in the caches while they are read again and again
// (Goto and van de Geijn 2008).
//
// Unlike a library's product it takes the rows of A, B and C in any order, so that the real steps of padded sequences are
// multiplied where they lie. Each sum has one order, whatever the number of threads.
#pragma once

#include "product.h"

namespace seqloom {

constexpr long BLOCK_DEPTH = 512; // of a block: two strips of B of this depth stay in the L1 cache,
constexpr long BLOCK_ROWS = 72;  // so many rows of A in L2,
constexpr long BLOCK_COLUMNS = 2048; // and so many columns of B in L3
constexpr long PAD = 16;   // unused numbers between strips or panels, which would otherwise compete for the same cache lines
constexpr long PREFETCH_ROWS = 4;  // how far ahead rows are prefetched while one is packed

template <class T> inline void copy_lanes(T* to, const T* from, long lanes) {
  if (lanes == LANES<T>) return store(to, load(from));
  for (long lane = 0; lane < LANES<T>; lane++) to[lane] = lane < lanes ? from[lane] : T(0);
}

template <class T> struct Gemm { // as `ProductArguments` in layers/recurrent/compiled_products.py
  Matrix<const T> a, b;
  Matrix<T> c;
  const T* bias; // (columns,), or null
  long add;      // whether C += A B
  long rows, columns, depth;

  static long strips_of(long columns) { return Product<T>::blocks_of(columns); }
  static long strip_size(long block_depth) { return block_depth * LANES<T> + PAD; }
  static long panel_size(long block_depth) { return block_depth * TILE_ROWS + PAD; }
  static constexpr long BLOCK = (BLOCK_ROWS + TILE_ROWS - 1) / TILE_ROWS * (BLOCK_DEPTH * TILE_ROWS + PAD); // of A
  long workspace(long members) const { return strips_of(std::min(columns, BLOCK_COLUMNS)) * strip_size(std::min(depth, BLOCK_DEPTH)) + members * BLOCK; }

  // Some strips of B's columns, each of one vector's width.
  void pack_b(Share share, long k, long block_depth, long column, long block_columns, T* to) const {
    constexpr long SOME = 16;
    const auto lanes = [&](long strip) { return std::min(LANES<T>, block_columns - strip * LANES<T>); };
    if (b.column_stride == 1)
      for (long some = share.first; some < share.last; some += SOME)
        for (long in = 0; in < block_depth; in++) {
          const T* row = b[k + in] + column;
          for (long strip = some; strip < std::min(share.last, some + SOME); strip++)
            copy_lanes(to + strip * strip_size(block_depth) + in * LANES<T>, row + strip * LANES<T>, lanes(strip));
        }
    else
      for (long strip = share.first; strip < share.last; strip++) {
        const T* from = b.data + k + (column + strip * LANES<T>)*b.column_stride;
        T* strip_at = to + strip * strip_size(block_depth);
        for (long in = 0; in < block_depth; in += 16)
          for (long lane = 0; lane < LANES<T>; lane++)
            for (long each = in; each < std::min(block_depth, in + 16); each++)
              strip_at[each * LANES<T> + lane] = lane < lanes(strip) ? from[lane * b.column_stride + each] : T(0);
      }
  }

  // Some rows of A: as they are where rows are contiguous, else in panels of a tile's height.
  void pack_a(long row, long high, long k, long block_depth, T* to) const {
    if (a.column_stride == 1) {
      for (long each = 0; each < high; each++) std::memcpy(to + each * block_depth, a[row + each] + k, block_depth * sizeof(T));
      return;
    }
    for (long in = 0; in < block_depth; in++) {
      const T* from = a.data + row + (k + in) * a.column_stride;
      for (long each = 0; each < high; each += 64 / sizeof(T)) __builtin_prefetch(from + PREFETCH_ROWS * a.column_stride + each);
      for (long each = 0; each < high; each += TILE_ROWS) {
        T* panel = to + each / TILE_ROWS * panel_size(block_depth) + in * TILE_ROWS;
        if (each + TILE_ROWS <= high) std::memcpy(panel, from + each, TILE_ROWS * sizeof(T));
        else std::memcpy(panel, from + each, (high - each) * sizeof(T));
      }
    }
  }

  // The member's share of the rows.
  void operator()(const Member& me, T* workspace) const {
    const Share tiles = me.of((rows + TILE_ROWS - 1) / TILE_ROWS);
    const long first = tiles.first * TILE_ROWS, last = std::min(rows, tiles.last * TILE_ROWS);
    T* block = workspace + me.rank * BLOCK;
    workspace += me.size * BLOCK;
    for (long column = 0; column < columns; column += BLOCK_COLUMNS) {
      const long block_columns = std::min(BLOCK_COLUMNS, columns - column);
      for (long k = 0; k < depth; k += BLOCK_DEPTH) {
        const long block_depth = std::min(BLOCK_DEPTH, depth - k);
        if (column || k) me.sync(); // until no member reads the last strips
        pack_b(me.of(strips_of(block_columns)), k, block_depth, column, block_columns, workspace);
        me.sync();
        for (long row = first; row < last; row += BLOCK_ROWS) multiply(row, std::min(BLOCK_ROWS, last - row), column, block_columns, k, block_depth, workspace, block);
      }
    }
  }

  void multiply(long row, long high, long column, long block_columns, long k, long block_depth, const T* strips, T* block) const {
    const bool in_panels = a.column_stride != 1, in_place = !in_panels && !a.index;
    if (!in_place) pack_a(row, high, k, block_depth, block);
    for (long strip = 0; strip < strips_of(block_columns); strip += 2) {
      const int both = (strip + 1) * LANES<T> < block_columns;
      const T* w[2] = {strips + strip * strip_size(block_depth), strips + (strip + 1) * strip_size(block_depth)};
      const long at = column + strip * LANES<T>, some = block_columns - strip * LANES<T>;
      const long lanes[2] = {std::min(LANES<T>, some), std::min(LANES<T>, some - LANES<T>)};
      for (long up = 0; up < high; up += TILE_ROWS) {
        const long place = row + up, tall = std::min<long>(TILE_ROWS, high - up);
        T apart[TILE_ROWS * 2 * LANES<T>]; // a tile, for rows of C that do not follow each other
        const Rows<T> to = c.index ? Rows<T>{apart, 2 * LANES<T>} : Rows<T>{c[place] + at, c.row_stride};
        Rows<const T> plus{bias ? bias + at : nullptr, 0};
        if (k || add) {
          plus = to;
          if (c.index)
            for (long m = 0; m < tall; m++)
              for (int s = 0; s <= both; s++) copy_lanes(to[m] + s * LANES<T>, c[place + m] + at + s * LANES<T>, lanes[s]);
        }
        const Rows<const T> u = in_place  ? Rows<const T>{a[place] + k, a.row_stride}
                              : in_panels ? Rows<const T>{block + up / TILE_ROWS * panel_size(block_depth), TILE_ROWS}
                                          : Rows<const T>{block + up * block_depth, block_depth};
        const Rows<const T> add_at[2] = {plus, plus.data ? plus.columns(LANES<T>) : plus};
        const Rows<T> to_at[2] = {to, to.columns(LANES<T>)};
        if (both && in_panels) tile_of<T, 2, true>(tall, u, w, block_depth, add_at, to_at, lanes);
        else if (both) tile_of<T, 2>(tall, u, w, block_depth, add_at, to_at, lanes);
        else if (in_panels) tile_of<T, 1, true>(tall, u, w, block_depth, add_at, to_at, lanes);
        else tile_of<T, 1>(tall, u, w, block_depth, add_at, to_at, lanes);
        if (c.index)
          for (long m = 0; m < tall; m++)
            for (int s = 0; s <= both; s++)
              if (lanes[s] == LANES<T>) store(c[place + m] + at + s * LANES<T>, load(to[m] + s * LANES<T>));
              else std::memcpy(c[place + m] + at + s * LANES<T>, to[m] + s * LANES<T>, lanes[s] * sizeof(T));
      }
    }
  }
};

} // namespace seqloom
