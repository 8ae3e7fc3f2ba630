// word2vec with negative sampling (Mikolov et al. 2013b): a pass over sentences that updates the vectors in place.
//
// In skip-gram each word i around a word o of a sentence is an input x = v_i; in CBOW their mean is one. With k words j drawn
// from the noise,
//
//   loss = -log s(u_o . x) - sum_j log s(-u_j . x)         s is the logistic function
//
// is summed over the inputs of a step, which share the words that are drawn: those of a word in skip-gram, and of TOGETHER
// words in CBOW. The gradient is that at the vectors before the step. A word may have pieces (fastText, Bojanowski et al. 2017):
// its v_i is the mean of several rows, read when the window comes to the word and changed when it has left it.
// layers/word2vec.py repeats this step by step.
#pragma once

#include "arithmetic.h"

#include <algorithm>
#include <omp.h>
#include <vector>

// What a loop calls: a call would put the vectors of a step from registers into memory.
#define INLINE __attribute__((always_inline)) inline

namespace seqloom {

constexpr long MOST_TARGETS = 32, MOST_INPUTS = 64; // NEGATIVES + 1 and 2 WINDOW in layers/word2vec.py
constexpr long TOGETHER = 8;                        // words of a step of CBOW
constexpr long GROUP = 6;                           // targets whose vectors are in registers together
constexpr long SPAN = TOGETHER + MOST_INPUTS;       // places that a step reads
constexpr long RING = 128;                          // places whose pieces are added up, more than SPAN

template <class T> struct Word2Vec {
  const int32_t* words;     // of all sentences, one after the other
  const int64_t* sentences; // where each begins, and where the last ends
  T *v, *u;                 // input and output vectors: rows of `stride` numbers, a multiple of LANES
  const float* kept;        // probability that an occurrence of a word is read
  const uint32_t* noise;    // an alias table (Walker 1977): column i is the word i with probability noise[2 i] / 2^32,
                            // else the word noise[2 i + 1]
  const int32_t* pieces;    // rows of v that make up each word, one word after the other; null: its own row alone
  const int64_t* firsts;    // where each word's pieces begin, and where the last ends
  double* loss;             // of each thread
  int64_t* pairs;           // of each thread: inputs whose loss was summed up
  double rate;
  uint64_t seed;
  long count, vocabulary, stride, window, negatives, is_cbow, is_drawn;
};

// SplitMix64 (Steele, Lea and Flood 2014).
struct Random {
  uint64_t state;

  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  long below(long count) { return scaled(next(), count); }
  static long scaled(uint64_t bits, long count) { return static_cast<long>((bits >> 32) * static_cast<uint64_t>(count) >> 32); }
};

// One step: the vectors of its inputs, of the true word of each, and of the words that are drawn.
template <class T> struct Step {
  T *inputs[MOST_INPUTS], *own[MOST_INPUTS], *targets[MOST_TARGETS]; // targets[0] is the true word where all have the same
  long input_count, target_count, stride;
  T products[MOST_INPUTS * MOST_TARGETS]; // u . x, then the slope of the loss with respect to it: (inputs, true and drawn)

  T* row(long input) { return products + input * target_count; }
};

template <class T, int SIZE> struct Part { typedef T type __attribute__((vector_size(SIZE))); };

// The sum of the lanes of a vector of SIZE bytes, by halves.
template <class T, int SIZE = BYTES> inline T sum_of(typename Part<T, SIZE>::type v) {
  if constexpr (SIZE == sizeof(T)) return v[0];
  else {
    typename Part<T, SIZE / 2>::type low, high;
    std::memcpy(&low, &v, SIZE / 2);
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + SIZE / 2, SIZE / 2);
    return sum_of<T, SIZE / 2>(low + high);
  }
}

// Calls f<N>(first) for targets from `first` on in groups of N, whose vectors are in registers together.
template <class F> INLINE void for_groups(long first, long count, F f) {
  for (; first + GROUP <= count; first += GROUP) f.template operator()<GROUP>(first);
  switch (count - first) {
  case 5: return f.template operator()<5>(first);
  case 4: return f.template operator()<4>(first);
  case 3: return f.template operator()<3>(first);
  case 2: return f.template operator()<2>(first);
  case 1: return f.template operator()<1>(first);
  }
}

// The products with targets from `first` on.
template <class T> void multiply(Step<T>& s, long first) {
  for_groups(first, s.target_count, [&]<long N>(long target) {
    for (long i = 0; i < s.input_count; i++) {
      Vector<T> sums[N] = {};
      for (long q = 0; q < s.stride; q += LANES<T>) {
        const Vector<T> x = load(s.inputs[i] + q);
#pragma GCC unroll 8
        for (long k = 0; k < N; k++) sums[k] += x * load(s.targets[target + k] + q);
      }
#pragma GCC unroll 8
      for (long k = 0; k < N; k++) s.row(i)[target + k] = sum_of<T>(sums[k]);
    }
  });
}

template <class T> void multiply_own(Step<T>& s) {
  for (long i = 0; i < s.input_count; i++) {
    Vector<T> sum = {};
    for (long q = 0; q < s.stride; q += LANES<T>) sum += load(s.inputs[i] + q) * load(s.own[i] + q);
    s.row(i)[0] = sum_of<T>(sum);
  }
}

// A sum of -log p, p in (0, 1].
struct LogLoss {
  double sum = 0, likely = 1;

  void add(double p) {
    likely *= p;
    if (likely < 1e-200) sum -= std::log(likely), likely = 1; // a logarithm takes as long as a short step
  }
  double total() const { return sum - std::log(likely); }
};

// Products become -rate times their gradient, and their loss is added. A drawn word that is the true one counts for nothing.
template <class T> void differentiate(Step<T>& s, T rate, LogLoss& loss) {
  constexpr long BLOCK = 64; // 2^-64 is no trouble for a float
  const long count = s.input_count * s.target_count;
  for (long i = 0; i < s.input_count; i++) s.row(i)[0] = -s.row(i)[0];
  for (long i = 0; i < s.input_count; i++)
    for (long k = 1; k < s.target_count; k++)
      if (s.targets[k] == s.own[i]) s.row(i)[k] = T(-1e30); // its probability and its loss are 0
  for (long first = 0; first < count; first += BLOCK) {
    T over = 0, likely = 1; // log(1 + e^x) = max(x, 0) - log s(|x|)
#pragma omp simd reduction(+ : over) reduction(* : likely)
    for (long n = first; n < std::min(first + BLOCK, count); n++) {
      const T x = s.products[n], p = sigmoid(x);
      over += x > 0 ? x : 0;
      likely *= p > T(0.5) ? p : 1 - p;
      s.products[n] = -rate * p;
    }
    loss.sum += over;
    loss.add(likely);
  }
  for (long i = 0; i < s.input_count; i++) s.row(i)[0] = -s.row(i)[0];
}

// Adds to `to_x` the slopes' share of the targets from `first` on, and to the targets' `to_y` that of the inputs.
template <class T>
INLINE void exchange(Step<T>& s, long first, const Vector<T>* x, const Vector<T>* y, Vector<T>* to_x, Vector<T>* to_y) {
  for_groups(first, s.target_count, [&]<long N>(long target) __attribute__((always_inline)) {
    Vector<T> added[N] = {};
    for (long i = 0; i < s.input_count; i++) {
      const T* slopes = s.row(i) + target;
#pragma GCC unroll 8
      for (long k = 0; k < N; k++) {
        to_x[i] += slopes[k] * y[target + k];
        added[k] += slopes[k] * x[i];
      }
    }
#pragma GCC unroll 8
    for (long k = 0; k < N; k++) to_y[target + k] = added[k];
  });
}

template <class T> inline void add(T* to, Vector<T> v) { store(to, load(to) + v); }

// A step of skip-gram. `to[i]` is where the gradient of input i goes: the input itself, or where that of its pieces is
// added up. All vectors are read before any is written, for a word may occur twice.
template <class T> void update(Step<T>& s, T* const* to) {
  for (long q = 0; q < s.stride; q += LANES<T>) {
    Vector<T> x[MOST_INPUTS], y[MOST_TARGETS], to_x[MOST_INPUTS], to_y[MOST_TARGETS];
    for (long i = 0; i < s.input_count; i++) x[i] = load(s.inputs[i] + q), to_x[i] = Vector<T>{};
    for (long k = 0; k < s.target_count; k++) y[k] = load(s.targets[k] + q);
    exchange(s, 0, x, y, to_x, to_y);
    for (long k = 0; k < s.target_count; k++) add(s.targets[k] + q, to_y[k]);
    for (long i = 0; i < s.input_count; i++) add(to[i] + q, to_x[i]);
  }
}

// The windows of the words of a step of CBOW, counted from the first place that one of them reads.
struct Windows {
  long begins[TOGETHER], places[TOGETHER], ends[TOGETHER]; // a window is begin .. end - 1 without its place
  long sizes[TOGETHER];                                    // rows in it
  long count, span;
};

// The means over windows: differences of running sums. `rows` are those of the places.
template <class T> void average(const Windows& w, T* const* rows, Step<T>& s) {
  for (long q = 0; q < s.stride; q += LANES<T>) {
    Vector<T> sums[SPAN + 1];
    sums[0] = Vector<T>{};
    for (long p = 0; p < w.span; p++) sums[p + 1] = sums[p] + load(rows[p] + q);
    for (long g = 0; g < w.count; g++) {
      const Vector<T> others = sums[w.ends[g]] - sums[w.begins[g]] - load(rows[w.places[g]] + q);
      store(s.inputs[g] + q, others / static_cast<T>(w.sizes[g]));
    }
  }
}

// A step of CBOW: the gradient of a mean goes to each place of its window, as running sums again.
template <class T> void update(const Windows& w, Step<T>& s, T* const* to) {
  for (long q = 0; q < s.stride; q += LANES<T>) {
    Vector<T> x[TOGETHER], y[MOST_TARGETS], to_x[TOGETHER], to_y[MOST_TARGETS], changes[SPAN + 1];
    for (long g = 0; g < w.count; g++) x[g] = load(s.inputs[g] + q), to_x[g] = s.row(g)[0] * load(s.own[g] + q);
    for (long k = 1; k < s.target_count; k++) y[k] = load(s.targets[k] + q);
    exchange(s, 1, x, y, to_x, to_y);
    for (long k = 1; k < s.target_count; k++) add(s.targets[k] + q, to_y[k]);
    for (long p = 0; p <= w.span; p++) changes[p] = Vector<T>{};
    for (long g = 0; g < w.count; g++) {
      add(s.own[g] + q, s.row(g)[0] * x[g]);
      changes[w.begins[g]] += to_x[g];
      changes[w.places[g]] -= to_x[g];
      changes[w.places[g] + 1] += to_x[g];
      changes[w.ends[g]] -= to_x[g];
    }
    Vector<T> sum = {};
    for (long p = 0; p < w.span; p++) sum += changes[p], add(to[p] + q, sum);
  }
}

template <class T> class Pass {
  const Word2Vec<T>& w;
  Random random;
  std::vector<int32_t> sentence;
  std::vector<T> means, sums, gradients; // of the words of a step; of the pieces of the places in the ring
  Step<T> step;
  int32_t drawn[MOST_TARGETS];
  long read_to, written_to; // places whose pieces are added up, and whose pieces have their gradient

  long length() const { return static_cast<long>(sentence.size()); }
  long size(long place) const { return w.pieces ? w.firsts[sentence[place] + 1] - w.firsts[sentence[place]] : 1; }
  T* summed(long place) { return sums.data() + place % RING * w.stride; }
  T* gradient(long place) { return gradients.data() + place % RING * w.stride; }
  T* input(long place) { return w.pieces ? summed(place) : w.v + sentence[place] * w.stride; }
  T* to_input(long place) { return w.pieces ? gradient(place) : w.v + sentence[place] * w.stride; }

  template <class F> void for_pieces(long place, F f) {
    for (int64_t i = w.firsts[sentence[place]]; i < w.firsts[sentence[place] + 1]; i++) f(w.v + w.pieces[i] * w.stride);
  }

  void prefetch(const T* row) const {
    for (long q = 0; q < w.stride; q += 64 / static_cast<long>(sizeof(T))) __builtin_prefetch(row + q, 1);
  }

  // The next noise words, early, so that their vectors have time to arrive.
  void draw() {
    for (long k = 0; k < w.negatives; k++) {
      const uint64_t bits = random.next();
      const long column = Random::scaled(bits, w.vocabulary);
      drawn[k] = static_cast<int32_t>(static_cast<uint32_t>(bits) < w.noise[2 * column] ? column : w.noise[2 * column + 1]);
      prefetch(w.u + drawn[k] * w.stride);
    }
  }

  void read(long number) {
    sentence.clear();
    for (int64_t i = w.sentences[number]; i < w.sentences[number + 1]; i++)
      if (const float kept = w.kept[w.words[i]]; kept >= 1 || random.uniform() < kept) sentence.push_back(w.words[i]);
  }

  // Has the vectors fetched of the first words of the next sentence: many are as short as that.
  void expect(long number) const {
    if (number >= w.count) return;
    const int64_t first = w.sentences[number], end = std::min<int64_t>(w.sentences[number + 1], first + TOGETHER + w.window);
    for (int64_t i = first; i < end; i++) {
      if (!w.pieces) prefetch(w.v + w.words[i] * w.stride);
      if (i < first + TOGETHER) prefetch(w.u + w.words[i] * w.stride);
    }
  }

  // Makes the vectors of places before `end` ready, and has those after them fetched.
  void arrive(long end) {
    if (!w.pieces) {
      for (long p = end; p < std::min(end + (w.is_cbow ? TOGETHER : 1), length()); p++) prefetch(input(p));
      return;
    }
    for (; read_to < std::min(end, length()); read_to++) {
      if (read_to + 1 < length()) for_pieces(read_to + 1, [&](const T* row) { prefetch(row); });
      const T scale = w.is_cbow ? T(1) : T(1) / static_cast<T>(size(read_to));
      T *sum = summed(read_to), *change = gradient(read_to);
      std::fill(sum, sum + w.stride, T(0)), std::fill(change, change + w.stride, T(0));
      for_pieces(read_to, [&](const T* row) {
        for (long q = 0; q < w.stride; q += LANES<T>) add(sum + q, load(row + q));
      });
      for (long q = 0; q < w.stride; q++) sum[q] *= scale;
    }
  }

  // No step reads places before `end` any more.
  void leave(long end) {
    if (!w.pieces || w.rate == 0) return;
    for (; written_to < end; written_to++)
      for_pieces(written_to, [&](T* row) {
        for (long q = 0; q < w.stride; q += LANES<T>) add(row + q, load(gradient(written_to) + q));
      });
  }

  long reach() { return w.is_drawn ? 1 + random.below(w.window) : w.window; }

  void take_drawn() {
    for (long k = 0; k < w.negatives; k++) step.targets[k + 1] = w.u + drawn[k] * w.stride;
    draw();
  }

  void skip_gram(long place) {
    const long around = reach();
    take_drawn();
    arrive(place + w.window + 1);
    T* to[MOST_INPUTS];
    step.targets[0] = w.u + sentence[place] * w.stride;
    step.input_count = 0;
    for (long i = std::max(0L, place - around); i <= std::min(length() - 1, place + around); i++)
      if (i != place) {
        to[step.input_count] = to_input(i);
        step.own[step.input_count] = step.targets[0];
        step.inputs[step.input_count++] = input(i);
      }
    multiply(step, 0);
    differentiate(step, static_cast<T>(w.rate), loss);
    if (w.rate != 0) update(step, to);
    leave(place - w.window + 1);
  }

  void cbow(long first) {
    Windows windows;
    const long low = std::max(0L, first - w.window);
    windows.count = std::min(TOGETHER, length() - first);
    windows.span = std::min(length(), first + windows.count + w.window) - low;
    for (long g = 0; g < windows.count; g++) {
      const long place = first + g, around = reach();
      windows.begins[g] = std::max(0L, place - around) - low;
      windows.ends[g] = std::min(length(), place + around + 1) - low;
      windows.places[g] = place - low;
      step.own[g] = w.u + sentence[place] * w.stride;
      step.inputs[g] = means.data() + g * w.stride;
      if (place + TOGETHER < length()) prefetch(w.u + sentence[place + TOGETHER] * w.stride);
    }
    take_drawn();
    arrive(low + windows.span);
    T *rows[SPAN], *to[SPAN];
    long before[SPAN + 1] = {0}; // rows of the places before
    for (long p = 0; p < windows.span; p++) {
      rows[p] = input(low + p), to[p] = to_input(low + p);
      before[p + 1] = before[p] + size(low + p);
    }
    for (long g = 0; g < windows.count; g++)
      windows.sizes[g] = before[windows.ends[g]] - before[windows.begins[g]] - size(first + g);
    step.input_count = windows.count;
    average(windows, rows, step);
    multiply_own(step);
    multiply(step, 1);
    differentiate(step, static_cast<T>(w.rate), loss);
    if (w.rate != 0) update(windows, step, to);
    leave(first + windows.count - w.window);
  }

public:
  int64_t pairs = 0;
  LogLoss loss;

  explicit Pass(const Word2Vec<T>& w) : w(w), random{0}, means(w.stride * TOGETHER) {
    step.target_count = w.negatives + 1;
    step.stride = w.stride;
    if (w.pieces) sums.resize(RING * w.stride), gradients.resize(RING * w.stride);
  }

  // What is random in a sentence depends on its number alone, whatever thread reads it.
  void over(long number) {
    random.state = w.seed + static_cast<uint64_t>(number);
    random.state = random.next();
    read(number);
    expect(number + 1);
    if (length() < 2) return;
    read_to = written_to = 0;
    draw();
    const long together = w.is_cbow ? TOGETHER : 1;
    for (long place = 0; place < length(); place += together) {
      if (w.is_cbow) cbow(place);
      else skip_gram(place);
      pairs += step.input_count;
    }
    leave(length());
  }
};

// Each thread has a share of the sentences. With one thread the same call always has the same result; several update the
// same vectors without waiting for each other (Recht et al. 2011).
template <class T> void train(const Word2Vec<T>& w, long threads) {
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const long rank = omp_get_thread_num(), size = omp_get_num_threads();
    Pass<T> pass(w);
    for (long number = w.count * rank / size; number < w.count * (rank + 1) / size; number++) pass.over(number);
    w.loss[rank] = pass.loss.total();
    w.pairs[rank] = pass.pairs;
  }
}

} // namespace seqloom
