// The time loops of recurrent layers for seqloom/layers/native_cells.py, and large products for native_products.py: a plain C
// interface, called through ctypes.

#include "cells.h"
#include "gemm.h"

#include <memory>
#include <omp.h>

namespace seqloom {

enum Cell : long { // as CELLS in cells.py
  ELMAN, ELMAN_RELU, ELMAN_SIGMOID, LSTM, GRU, GRU_TORCH, MUT1, MUT2, MUT3
};

template <class T> void ahead(Cell cell, const Sequence<T>& s, const Member& me) {
  switch (cell) {
  case ELMAN: return elman_ahead(s, me, [](T x) { return hyperbolic_tangent(x); });
  case ELMAN_RELU: return elman_ahead(s, me, [](T x) { return x <= T(0) ? T(0) : x; });
  case ELMAN_SIGMOID: return elman_ahead(s, me, [](T x) { return sigmoid(x); });
  case LSTM: return lstm_ahead(s, me);
  case GRU: return gru_ahead(s, me);
  case GRU_TORCH: return gru_torch_ahead(s, me);
  case MUT1: return mut_ahead<T, 1>(s, me);
  case MUT2: return mut_ahead<T, 2>(s, me);
  case MUT3: return mut_ahead<T, 3>(s, me);
  }
}

template <class T> void back(Cell cell, const Sequence<T>& s, const Member& me) {
  switch (cell) {
  case ELMAN: return elman_back(s, me, [](T d, T y) { return tanh_slope(d, y); });
  case ELMAN_RELU: return elman_back(s, me, [](T d, T y) { return y <= T(0) ? T(0) : d; });
  case ELMAN_SIGMOID: return elman_back(s, me, [](T d, T y) { return sigmoid_slope(d, y); });
  case LSTM: return lstm_back(s, me);
  case GRU: return gru_back(s, me);
  case GRU_TORCH: return gru_torch_back(s, me);
  case MUT1: return mut_back<T, 1>(s, me);
  case MUT2: return mut_back<T, 2>(s, me);
  case MUT3: return mut_back<T, 3>(s, me);
  }
}

template <class T> void run(long cell, long backward, const Sequence<T>& s, long threads) {
  Meeting meeting;
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const Member me{meeting, omp_get_thread_num(), omp_get_num_threads()}; // there may be fewer than asked for
    if (backward) back(static_cast<Cell>(cell), s, me);
    else ahead(static_cast<Cell>(cell), s, me);
  }
}

template <class T> void multiply(const Gemm<T>& product, long threads) {
  static thread_local std::unique_ptr<T[]> room; // kept: memory that the system just gave takes longer to write than to read
  static thread_local long size = 0;
  if (const long asked = product.room(threads); asked > size) {
    room.reset(); // before the next is there
    room.reset(new T[asked]);
    size = asked;
  }
  T* const shared = room.get();
  Meeting meeting;
#pragma omp parallel num_threads(static_cast<int>(threads))
  product(Member{meeting, omp_get_thread_num(), omp_get_num_threads()}, shared);
}

// How many numbers `Sequence.room` must hold: packed weights, two scratches, and what normalisations tell each other.
template <class T> long room_for(const Sequence<T>& s, long gates, long threads) {
  const long projection = s.w_p ? Product<T>::room(1, s.outputs, s.width) : 0;
  return Product<T>::room(gates, s.width, s.outputs) + projection + 2 * s.rows * s.width + 9 * threads * s.rows;
}

} // namespace seqloom

extern "C" {
const char* seqloom_built_from() { return SEQLOOM_BUILT_FROM; }

long seqloom_room_float(const seqloom::Sequence<float>* s, long gates, long threads) { return seqloom::room_for(*s, gates, threads); }
long seqloom_room_double(const seqloom::Sequence<double>* s, long gates, long threads) { return seqloom::room_for(*s, gates, threads); }

void seqloom_run_float(long cell, long backward, const seqloom::Sequence<float>* s, long threads) { seqloom::run(cell, backward, *s, threads); }
void seqloom_run_double(long cell, long backward, const seqloom::Sequence<double>* s, long threads) { seqloom::run(cell, backward, *s, threads); }

void seqloom_gemm_float(const seqloom::Gemm<float>* product, long threads) { seqloom::multiply(*product, threads); }
void seqloom_gemm_double(const seqloom::Gemm<double>* product, long threads) { seqloom::multiply(*product, threads); }
}
