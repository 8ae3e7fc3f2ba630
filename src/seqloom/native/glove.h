// GloVe (Pennington et al. 2014): a pass over cells of the matrix of counts that updates the vectors in place, by AdaGrad.
// layers/glove.py repeats this cell by cell.
#pragma once

#include <cmath>
#include <cstdint>

namespace seqloom {

constexpr long BLOCKS = 16; // as in layers/glove.py

template <class T> struct Glove {
  const int32_t *rows, *columns;             // of the cells
  const T *weights, *logs;                   // f(X) and log X
  const int64_t* starts;                     // where each of BLOCKS^2 blocks of cells begins, and where the last ends
  T *w, *c, *b, *d;                          // vectors and biases of rows, and those of columns
  T *w_squares, *c_squares, *b_squares, *d_squares; // sums of their squared gradients
  double* loss;                              // of BLOCKS lanes
  double rate;
  long width;
};

// x -= g / sqrt(squares), which then have g^2 more, as in the original program.
template <class T> inline void descend(T& x, T& squares, T gradient) {
  x -= gradient / std::sqrt(squares);
  squares += gradient * gradient;
}

template <class T> double train_cell(const Glove<T>& m, long cell) {
  const long i = m.rows[cell], j = m.columns[cell];
  T *__restrict w = m.w + i * m.width, *__restrict c = m.c + j * m.width;
  T *__restrict w_squares = m.w_squares + i * m.width, *__restrict c_squares = m.c_squares + j * m.width;
  T product = 0;
#pragma omp simd reduction(+ : product)
  for (long q = 0; q < m.width; q++) product += w[q] * c[q];
  const T error = product + m.b[i] + m.d[j] - m.logs[cell], slope = m.weights[cell] * error;
  if (m.rate != 0) {
    const T step = static_cast<T>(m.rate) * slope;
#pragma omp simd
    for (long q = 0; q < m.width; q++) {
      const T to_w = step * c[q], to_c = step * w[q];
      descend(w[q], w_squares[q], to_w);
      descend(c[q], c_squares[q], to_c);
    }
    descend(m.b[i], m.b_squares[i], step);
    descend(m.d[j], m.d_squares[j], step);
  }
  return 0.5 * static_cast<double>(slope) * static_cast<double>(error);
}

// No two blocks of a round have a row or a column in common: the result is the same however many threads there are.
template <class T> void train(const Glove<T>& m, long threads) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  for (long round = 0; round < BLOCKS; round++) {
#pragma omp for schedule(dynamic)
    for (long lane = 0; lane < BLOCKS; lane++) {
      const long block = round * BLOCKS + lane;
      for (long cell = m.starts[block]; cell < m.starts[block + 1]; cell++) m.loss[lane] += train_cell(m, cell);
    }
  }
}

} // namespace seqloom
