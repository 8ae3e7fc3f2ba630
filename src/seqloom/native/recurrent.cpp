// The time loops of recurrent layers for layers/recurrent/compiled_loops.py, large products for compiled_products.py, steps of
// decoding for native_step.py in layers/recurrent and layers/transformer, encoders for native_encoder.py, attention, GELU
// and cross-entropy of a training step for compiled_*.py in layers, layers/transformer and layers/outputs, and texts cut for
// text/segment_encoder.py: a plain C interface, called through ctypes.

#include "attention.h"
#include "cached_rows.h"
#include "cells.h"
#include "cross_entropy.h"
#include "encoder.h"
#include "gelu.h"
#include "gemm.h"
#include "glove.h"
#include "likeliest.h"
#include "recurrent_step.h"
#include "segments.h"
#include "transformer.h"
#include "word2vec.h"

#include <memory>
#include <omp.h>

namespace seqloom {

template <class T> void forward(Cell cell, const Sequence<T>& s, const Member& me) {
  switch (cell) {
  case ELMAN: return elman_forward(s, me, [](T x) { return hyperbolic_tangent(x); });
  case ELMAN_RELU: return elman_forward(s, me, [](T x) { return x <= T(0) ? T(0) : x; });
  case ELMAN_SIGMOID: return elman_forward(s, me, [](T x) { return sigmoid(x); });
  case LSTM: return lstm_forward(s, me);
  case GRU: return gru_forward(s, me);
  case GRU_TORCH: return gru_torch_forward(s, me);
  case MUT1: return mut_forward<T, 1>(s, me);
  case MUT2: return mut_forward<T, 2>(s, me);
  case MUT3: return mut_forward<T, 3>(s, me);
  }
}

template <class T> void backward(Cell cell, const Sequence<T>& s, const Member& me) {
  switch (cell) {
  case ELMAN: return elman_backward(s, me, [](T d, T y) { return tanh_backward(d, y); });
  case ELMAN_RELU: return elman_backward(s, me, [](T d, T y) { return y <= T(0) ? T(0) : d; });
  case ELMAN_SIGMOID: return elman_backward(s, me, [](T d, T y) { return sigmoid_backward(d, y); });
  case LSTM: return lstm_backward(s, me);
  case GRU: return gru_backward(s, me);
  case GRU_TORCH: return gru_torch_backward(s, me);
  case MUT1: return mut_backward<T, 1>(s, me);
  case MUT2: return mut_backward<T, 2>(s, me);
  case MUT3: return mut_backward<T, 3>(s, me);
  }
}

template <class T> void run(long cell, long is_backward, const Sequence<T>& s, long threads) {
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const Member me{barrier, omp_get_thread_num(), omp_get_num_threads()}; // OpenMP may give fewer threads than asked for
    if (is_backward) backward(static_cast<Cell>(cell), s, me);
    else forward(static_cast<Cell>(cell), s, me);
  }
}

template <class T> void multiply(const Gemm<T>& product, long threads) {
  static thread_local std::unique_ptr<T[]> workspace; // reused: the first write to fresh memory is slow
  static thread_local long size = 0;
  if (const long asked = product.workspace(threads); asked > size) {
    workspace.reset(); // freed before the larger one is allocated
    workspace.reset(new T[asked]);
    size = asked;
  }
  T* const shared = workspace.get();
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  product(Member{barrier, omp_get_thread_num(), omp_get_num_threads()}, shared);
}

// How many numbers `Sequence.workspace` must hold: packed weights, two scratch matrices, and the sums of normalisations.
template <class T> long workspace_size(const Sequence<T>& s, long gates, long threads) {
  const long projection = s.w_p ? Product<T>::workspace(1, s.outputs, s.width) : 0;
  return Product<T>::workspace(gates, s.width, s.outputs) + projection + 2 * s.rows * s.width + 9 * threads * s.rows;
}

} // namespace seqloom

extern "C" {
const char* seqloom_built_from() { return SEQLOOM_BUILT_FROM; }

long seqloom_workspace_float(const seqloom::Sequence<float>* s, long gates, long threads) { return seqloom::workspace_size(*s, gates, threads); }
long seqloom_workspace_double(const seqloom::Sequence<double>* s, long gates, long threads) { return seqloom::workspace_size(*s, gates, threads); }

void seqloom_run_float(long cell, long is_backward, const seqloom::Sequence<float>* s, long threads) { seqloom::run(cell, is_backward, *s, threads); }
void seqloom_run_double(long cell, long is_backward, const seqloom::Sequence<double>* s, long threads) { seqloom::run(cell, is_backward, *s, threads); }

void seqloom_gemm_float(const seqloom::Gemm<float>* product, long threads) { seqloom::multiply(*product, threads); }
void seqloom_gemm_double(const seqloom::Gemm<double>* product, long threads) { seqloom::multiply(*product, threads); }

void seqloom_word2vec_float(const seqloom::Word2Vec<float>* pass, long threads) { seqloom::train(*pass, threads); }
void seqloom_word2vec_double(const seqloom::Word2Vec<double>* pass, long threads) { seqloom::train(*pass, threads); }

void seqloom_glove_float(const seqloom::Glove<float>* pass, long threads) { seqloom::train(*pass, threads); }
void seqloom_glove_double(const seqloom::Glove<double>* pass, long threads) { seqloom::train(*pass, threads); }

long seqloom_lanes() { return seqloom::LANES<float>; }
long seqloom_multiplies_integers() { return seqloom::multiplies_integers(); }
void seqloom_linear(const seqloom::LinearCall* call, long threads) { seqloom::multiply(*call, threads); }
void seqloom_rows(const seqloom::PackedLinear* linear, const long* ids, long count, float* rows) {
  for (long i = 0; i < count; i++) linear->row(ids[i], rows + i * linear->inputs);
}
void seqloom_encode(const seqloom::Encoder* encoder, long threads) { seqloom::encode(*encoder, threads); }
void seqloom_likeliest(const seqloom::Likeliest* call, long threads) { seqloom::find(*call, threads); }
void seqloom_find_segments(seqloom::Segments* segments) { segments->find(); }
void seqloom_attention(const seqloom::Attention* call, long threads) { seqloom::run(*call, threads); }
void seqloom_gelu(const seqloom::Gelu* call, long threads) { seqloom::run(*call, threads); }
void seqloom_cross_entropy(const seqloom::CrossEntropy* call, long threads) { seqloom::run(*call, threads); }
bool seqloom_recurrent_step(const seqloom::RecurrentStep* step, long threads) { return seqloom::run(*step, threads); }
bool seqloom_reorder(const seqloom::CachedRows* rows) { return (*rows)(); }
bool seqloom_transformer_step(const seqloom::TransformerStep* step, long threads) { return seqloom::run(*step, threads); }
}
