// A layer's run over packed steps (seqloom/layers/packing.py), as seqloom/layers/native_cells.py hands it over.
#pragma once

#include "product.h"

namespace seqloom {

// All numbers lie time first. h and c have the states before the first step, then those after each one.
template <class T> struct Sequence {
  long steps, rows, width, outputs; // rows of the first step; width of a gate and of h
  const long* sizes;                // (steps,): rows of each step, falling
  const T* w[3];                    // each (gates * width, outputs)
  const T *b_h, *w_p;               // (width,), (outputs, width)
  const T *b, *gain_x, *gain_h, *gain_c, *bias_c; // of layer normalisation, which b follows
  T* part[3];  // (true steps, gates * width): forward, the input's share of the gates becomes the gates
  T* kept[2];  // (true steps, width): what else the cell keeps
  T *h, *c;    // (rows + true steps, outputs), (.., width)
  T *raw_x, *raw_h; // where layers are normalised: the input's share comes raw, and the parts are what the loop makes of it
  T *mean_x, *deviation_x, *mean_h, *deviation_h, *mean_c, *deviation_c; // a deviation is 1 / the standard deviation
  const T* d_y;      // (.., outputs)
  const long* order; // (true steps,): which row of d_y belongs to each; null: as they are
  T *d_h, *d_c;      // (rows, ..): of the last states, becomes that of the first
  T* d_part[3];      // as part, or over it; where layers are normalised, of raw_x; of the GRU as in torch also that of kept[0]
  T *d_projected, *d_raw_h; // the second as raw_h, or over it
  T *d_b, *d_gain_x, *d_gain_h, *d_gain_c, *d_bias_c; // zeros, to which the steps add
  T* room; // of `room_for` numbers

  struct Step {
    long rows, at, old; // its rows; where they begin among the true steps, and among the states before them
  };

  template <class F> void ahead(F step) const {
    long at = 0, old = 0;
    for (long t = 0; t < steps; t++) {
      step(Step{sizes[t], at, old});
      old = rows + at;
      at += sizes[t];
    }
  }
  template <class F> void back(F step) const {
    long at = 0;
    for (long t = 0; t < steps; t++) at += sizes[t];
    for (long t = steps - 1; t >= 0; t--) {
      at -= sizes[t];
      step(Step{sizes[t], at, t ? rows + at - sizes[t - 1] : 0});
    }
  }

  template <class N> Rows<N> rows_of(N* all, const Step& step, long wide) const { return {all ? all + step.at * wide : nullptr, wide}; }
  Matrix<const T> d_y_of(const Step& step) const { return {order ? d_y : d_y + step.at * outputs, outputs, 1, order ? order + step.at : nullptr}; }
  Rows<T> old_h(const Step& step) const { return {h + step.old * outputs, outputs}; }
  Rows<T> new_h(const Step& step) const { return {h + (rows + step.at) * outputs, outputs}; }
  Rows<T> old_c(const Step& step) const { return {c + step.old * width, width}; }
  Rows<T> new_c(const Step& step) const { return {c + (rows + step.at) * width, width}; }
  Rows<T> scratch(T*& from) const { // for one step's numbers of one width
    Rows<T> found{from, width};
    from += rows * width;
    return found;
  }
};

// f(row, first, last) for each row, with the member's share of the units.
template <class T, class F> inline void each(const Member& me, long rows, long width, F f) {
  const Share share = me.of(Product<T>::blocks_of(width));
  const long first = share.first * LANES<T>, last = std::min(width, share.last * LANES<T>);
  for (long row = 0; row < rows; row++) f(row, first, last);
}

} // namespace seqloom

// The units of a share: no two of them depend on each other, but for sums over them, which may be made in any order.
#define DIRECTIVE(text) _Pragma(#text)
#define UNITS(j) DIRECTIVE(GCC ivdep) for (long j = first; j < last; j++)
#define UNITS_INTO(sum, j) DIRECTIVE(omp simd reduction(+ : sum)) for (long j = first; j < last; j++)
#define UNITS_INTO_BOTH(one, other, j) DIRECTIVE(omp simd reduction(+ : one, other)) for (long j = first; j < last; j++)
