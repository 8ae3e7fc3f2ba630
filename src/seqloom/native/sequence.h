// A layer's loop over packed steps (layers/recurrent/packing.py), as layers/recurrent/compiled_loops.py passes it.
#pragma once

#include "product.h"

namespace seqloom {

// All tensors are time first. h and c hold the initial states, then those after each step.
template <class T> struct Sequence {
  long steps, rows, width, outputs; // rows of the first step; width of a gate and of h
  const long* batch_sizes;          // (steps,): rows of each step, never rising
  const T* w[3];                    // each (gates * width, outputs)
  const T *b_h, *w_p;               // (width,), (outputs, width): the bias of the candidate's product, the projection
  const T *b, *gain_x, *gain_h, *gain_c, *bias_c; // of layer normalisation; b is added after it
  T* gates[3]; // (real steps, gates * width): the forward loop turns the input's part of the gates into the gates
  T* saved[2]; // (real steps, width): what else the cell saves for the backward loop
  T *h, *c;    // (rows + real steps, outputs), (.., width)
  T *raw_x, *raw_h; // of normalised layers the products before normalisation; the loop writes `gates` from them
  T *mean_x, *deviation_x, *mean_h, *deviation_h, *mean_c, *deviation_c; // a deviation is 1 / the standard deviation
  const T* d_y;      // (.., outputs)
  const long* d_y_index; // (real steps,): the row of d_y of each step; null: rows in order
  T *d_h, *d_c;      // (rows, ..): in: the gradient of the last states, out: of the initial ones
  T* d_gates[3];     // gradients of the gates' sums, perhaps over `gates` itself; of normalised layers, of raw_x; the third of
                     // gru-torch is that of saved[0]
  T *d_projected, *d_raw_h; // the second perhaps over raw_h itself
  T *d_b, *d_gain_x, *d_gain_h, *d_gain_c, *d_bias_c; // zeros at first; every step adds to them
  T* workspace; // of `workspace_size` numbers

  struct Step {
    long rows, at, old; // its rows; their first position among the real steps; that of the old states in h and c
  };

  template <class F> void forward(F step) const {
    long at = 0, old = 0;
    for (long t = 0; t < steps; t++) {
      step(Step{batch_sizes[t], at, old});
      old = rows + at;
      at += batch_sizes[t];
    }
  }
  template <class F> void backward(F step) const {
    long at = 0;
    for (long t = 0; t < steps; t++) at += batch_sizes[t];
    for (long t = steps - 1; t >= 0; t--) {
      at -= batch_sizes[t];
      step(Step{batch_sizes[t], at, t ? rows + at - batch_sizes[t - 1] : 0});
    }
  }

  template <class N> Rows<N> rows_of(N* all, const Step& step, long wide) const { return {all ? all + step.at * wide : nullptr, wide}; }
  Matrix<const T> d_y_of(const Step& step) const { return {d_y_index ? d_y : d_y + step.at * outputs, outputs, 1, d_y_index ? d_y_index + step.at : nullptr}; }
  Rows<T> old_h(const Step& step) const { return {h + step.old * outputs, outputs}; }
  Rows<T> new_h(const Step& step) const { return {h + (rows + step.at) * outputs, outputs}; }
  Rows<T> old_c(const Step& step) const { return {c + step.old * width, width}; }
  Rows<T> new_c(const Step& step) const { return {c + (rows + step.at) * width, width}; }
  Rows<T> scratch(T*& from) const { // memory for one step: rows * width numbers
    Rows<T> result{from, width};
    from += rows * width;
    return result;
  }
};

// Calls f(row, first, last) for each row; first to last is the member's share of the units.
template <class T, class F> inline void each(const Member& me, long rows, long width, F f) {
  const Share share = me.of(Product<T>::blocks_of(width));
  const long first = share.first * LANES<T>, last = std::min(width, share.last * LANES<T>);
  for (long row = 0; row < rows; row++) f(row, first, last);
}

} // namespace seqloom

// Loops over the units of a share. The units are independent, except for sums over them, whose order is free.
#define DIRECTIVE(text) _Pragma(#text)
#define UNITS(j) DIRECTIVE(GCC ivdep) for (long j = first; j < last; j++)
#define UNITS_INTO(sum, j) DIRECTIVE(omp simd reduction(+ : sum)) for (long j = first; j < last; j++)
#define UNITS_INTO_BOTH(one, other, j) DIRECTIVE(omp simd reduction(+ : one, other)) for (long j = first; j < last; j++)
