// C = A B, plus what is in C, or plus a bias: one product of large matrices, in blocks that stay in the caches while they
// are read again and again (Goto and van de Geijn 2008).
//
// What it has that a library's product lacks: the rows of A, B and C may be taken in an order of their own, so that the
// true steps of padded sequences are multiplied where they lie. A sum is made in one order, whatever the number of threads.
#pragma once

#include "product.h"

namespace seqloom {

constexpr long DEEP = 512; // of a block: two strips of B of this depth stay in the first cache,
constexpr long HIGH = 72;  // so many rows of A in the second,
constexpr long BROAD = 2048; // and so many columns of B in the third
constexpr long PAD = 16;   // numbers between two strips or panels, which would otherwise fall on the same lines of a cache
constexpr long AHEAD = 4;  // rows that are fetched while one is packed

template <class T> inline void copy_lanes(T* to, const T* from, long lanes) {
  if (lanes == LANES<T>) return store(to, load(from));
  for (long lane = 0; lane < LANES<T>; lane++) to[lane] = lane < lanes ? from[lane] : T(0);
}

template <class T> struct Gemm { // as `Arguments` in seqloom/layers/native_products.py
  Matrix<const T> a, b;
  Matrix<T> c;
  const T* bias; // (columns,), or null
  long add;      // whether to what is in C
  long rows, columns, depth;

  static long strips_of(long columns) { return Product<T>::blocks_of(columns); }
  static long strip_room(long deep) { return deep * LANES<T> + PAD; }
  static long panel_room(long deep) { return deep * TALL + PAD; }
  static constexpr long BLOCK = (HIGH + TALL - 1) / TALL * (DEEP * TALL + PAD); // of A
  long room(long members) const { return strips_of(std::min(columns, BROAD)) * strip_room(std::min(depth, DEEP)) + members * BLOCK; }

  // Some strips of B's columns, each of one vector's width.
  void pack_b(Share share, long k, long deep, long column, long broad, T* to) const {
    constexpr long SOME = 16;
    const auto lanes = [&](long strip) { return std::min(LANES<T>, broad - strip * LANES<T>); };
    if (b.right == 1)
      for (long some = share.first; some < share.last; some += SOME)
        for (long in = 0; in < deep; in++) {
          const T* row = b[k + in] + column;
          for (long strip = some; strip < std::min(share.last, some + SOME); strip++)
            copy_lanes(to + strip * strip_room(deep) + in * LANES<T>, row + strip * LANES<T>, lanes(strip));
        }
    else
      for (long strip = share.first; strip < share.last; strip++) {
        const T* from = b.at + k + (column + strip * LANES<T>)*b.right;
        T* strip_at = to + strip * strip_room(deep);
        for (long in = 0; in < deep; in += 16)
          for (long lane = 0; lane < LANES<T>; lane++)
            for (long each = in; each < std::min(deep, in + 16); each++)
              strip_at[each * LANES<T> + lane] = lane < lanes(strip) ? from[lane * b.right + each] : T(0);
      }
  }

  // Some rows of A: as they are where a row's numbers lie side by side, else in panels of a tile's height.
  void pack_a(long row, long high, long k, long deep, T* to) const {
    if (a.right == 1) {
      for (long each = 0; each < high; each++) std::memcpy(to + each * deep, a[row + each] + k, deep * sizeof(T));
      return;
    }
    for (long in = 0; in < deep; in++) {
      const T* from = a.at + row + (k + in) * a.right;
      for (long each = 0; each < high; each += 64 / sizeof(T)) __builtin_prefetch(from + AHEAD * a.right + each);
      for (long each = 0; each < high; each += TALL) {
        T* panel = to + each / TALL * panel_room(deep) + in * TALL;
        if (each + TALL <= high) std::memcpy(panel, from + each, TALL * sizeof(T));
        else std::memcpy(panel, from + each, (high - each) * sizeof(T));
      }
    }
  }

  // The member's share of the rows.
  void operator()(const Member& me, T* room) const {
    const Share tiles = me.of((rows + TALL - 1) / TALL);
    const long first = tiles.first * TALL, last = std::min(rows, tiles.last * TALL);
    T* block = room + me.rank * BLOCK;
    room += me.size * BLOCK;
    for (long column = 0; column < columns; column += BROAD) {
      const long broad = std::min(BROAD, columns - column);
      for (long k = 0; k < depth; k += DEEP) {
        const long deep = std::min(DEEP, depth - k);
        if (column || k) me.meet(); // until nobody reads the last strips
        pack_b(me.of(strips_of(broad)), k, deep, column, broad, room);
        me.meet();
        for (long row = first; row < last; row += HIGH) multiply(row, std::min(HIGH, last - row), column, broad, k, deep, room, block);
      }
    }
  }

  void multiply(long row, long high, long column, long broad, long k, long deep, const T* strips, T* block) const {
    const bool in_panels = a.right != 1, in_place = !in_panels && !a.order;
    if (!in_place) pack_a(row, high, k, deep, block);
    for (long strip = 0; strip < strips_of(broad); strip += 2) {
      const int both = (strip + 1) * LANES<T> < broad;
      const T* w[2] = {strips + strip * strip_room(deep), strips + (strip + 1) * strip_room(deep)};
      const long at = column + strip * LANES<T>, some = broad - strip * LANES<T>;
      const long lanes[2] = {std::min(LANES<T>, some), std::min(LANES<T>, some - LANES<T>)};
      for (long up = 0; up < high; up += TALL) {
        const long place = row + up, tall = std::min<long>(TALL, high - up);
        T apart[TALL * 2 * LANES<T>]; // for rows of C that lie apart
        const Rows<T> to = c.order ? Rows<T>{apart, 2 * LANES<T>} : Rows<T>{c[place] + at, c.down};
        Rows<const T> plus{bias ? bias + at : nullptr, 0};
        if (k || add) {
          plus = to;
          if (c.order)
            for (long m = 0; m < tall; m++)
              for (int s = 0; s <= both; s++) copy_lanes(to[m] + s * LANES<T>, c[place + m] + at + s * LANES<T>, lanes[s]);
        }
        const Rows<const T> u = in_place  ? Rows<const T>{a[place] + k, a.down}
                              : in_panels ? Rows<const T>{block + up / TALL * panel_room(deep), 1}
                                          : Rows<const T>{block + up * deep, deep};
        const Rows<const T> add_at[2] = {plus, plus.at ? plus.columns(LANES<T>) : plus};
        const Rows<T> to_at[2] = {to, to.columns(LANES<T>)};
        if (both && in_panels) tile_of<T, 2, true>(tall, u, w, deep, add_at, to_at, lanes);
        else if (both) tile_of<T, 2>(tall, u, w, deep, add_at, to_at, lanes);
        else if (in_panels) tile_of<T, 1, true>(tall, u, w, deep, add_at, to_at, lanes);
        else tile_of<T, 1>(tall, u, w, deep, add_at, to_at, lanes);
        if (c.order)
          for (long m = 0; m < tall; m++)
            for (int s = 0; s <= both; s++)
              if (lanes[s] == LANES<T>) store(c[place + m] + at + s * LANES<T>, load(to[m] + s * LANES<T>));
              else std::memcpy(c[place + m] + at + s * LANES<T>, to[m] + s * LANES<T>, lanes[s] * sizeof(T));
      }
    }
  }
};

} // namespace seqloom
