// word2vec with negative sampling (Mikolov et al. 2013b): a pass over sentences that updates the vectors in place.
//
// Of a word o of a sentence and the words i around it (the inputs: each by itself in skip-gram, their mean in CBOW),
// with k words j drawn from the noise,
//
//   loss = -log s(u_o . v_i) - sum_j log s(-u_j . v_i)         s is the logistic function
//
// is summed over the inputs, which share the words that are drawn. The gradient is that at the vectors before the step.
// layers/negative_sampling.py repeats this word by word.
#pragma once

#include "arithmetic.h"

#include <algorithm>
#include <omp.h>
#include <vector>

namespace seqloom {

constexpr long MOST_TARGETS = 32, MOST_INPUTS = 64; // NEGATIVES + 1 and 2 WINDOW in layers/negative_sampling.py
constexpr long GROUP = 6;                           // targets whose vectors are in registers together

template <class T> struct Word2Vec {
  const int32_t* words;     // of all sentences, one after the other
  const int64_t* sentences; // where each begins, and where the last ends
  T *v, *u;                 // input and output vectors: rows of `stride` numbers, a multiple of LANES
  const float* kept;        // probability that an occurrence of a word is read
  const uint32_t* noise;    // an alias table (Walker 1977): column i is the word i with probability noise[2 i] / 2^32,
                            // else the word noise[2 i + 1]
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

// One step: the vectors of its inputs and of its targets, of which the first is the true word.
template <class T> struct Step {
  T *inputs[MOST_INPUTS], *targets[MOST_TARGETS];
  long input_count, target_count, stride;
  T products[MOST_INPUTS * MOST_TARGETS]; // u . v, then the slope of the loss with respect to it: (inputs, targets)

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

// Calls f<N>(first) for targets in groups of N, whose vectors are in registers together.
template <class F> inline void for_groups(long count, F f) {
  long first = 0;
  for (; first + GROUP <= count; first += GROUP) f.template operator()<GROUP>(first);
  switch (count - first) {
  case 5: return f.template operator()<5>(first);
  case 4: return f.template operator()<4>(first);
  case 3: return f.template operator()<3>(first);
  case 2: return f.template operator()<2>(first);
  case 1: return f.template operator()<1>(first);
  }
}

template <class T> void multiply(Step<T>& s) {
  for_groups(s.target_count, [&]<long N>(long first) {
    for (long i = 0; i < s.input_count; i++) {
      Vector<T> sums[N] = {};
      for (long q = 0; q < s.stride; q += LANES<T>) {
        const Vector<T> x = load(s.inputs[i] + q);
#pragma GCC unroll 8
        for (long k = 0; k < N; k++) sums[k] += x * load(s.targets[first + k] + q);
      }
#pragma GCC unroll 8
      for (long k = 0; k < N; k++) s.row(i)[first + k] = sum_of<T>(sums[k]);
    }
  });
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
  for (long k = 1; k < s.target_count; k++)
    if (s.targets[k] == s.targets[0])
      for (long i = 0; i < s.input_count; i++) s.row(i)[k] = T(-1e30); // its probability and its loss are 0
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

// Adds the slopes' share of the targets to the inputs (`to_inputs`, which may be others), and of the inputs to the targets.
// All are read before any is written, for a word may occur twice.
template <class T> void update(Step<T>& s, T* const* to_inputs, long to_count) {
  for (long q = 0; q < s.stride; q += LANES<T>) {
    Vector<T> x[MOST_INPUTS], y[MOST_TARGETS], to_x[MOST_INPUTS], to_y[MOST_TARGETS];
    for (long i = 0; i < s.input_count; i++) x[i] = load(s.inputs[i] + q), to_x[i] = Vector<T>{};
    for (long k = 0; k < s.target_count; k++) y[k] = load(s.targets[k] + q);
    for_groups(s.target_count, [&]<long N>(long first) {
      Vector<T> added[N] = {};
      for (long i = 0; i < s.input_count; i++) {
        const T* slopes = s.row(i) + first;
#pragma GCC unroll 8
        for (long k = 0; k < N; k++) {
          to_x[i] += slopes[k] * y[first + k];
          added[k] += slopes[k] * x[i];
        }
      }
#pragma GCC unroll 8
      for (long k = 0; k < N; k++) to_y[first + k] = added[k];
    });
    for (long k = 0; k < s.target_count; k++) store(s.targets[k] + q, load(s.targets[k] + q) + to_y[k]);
    for (long i = 0; i < to_count; i++) store(to_inputs[i] + q, load(to_inputs[i] + q) + to_x[s.input_count == 1 ? 0 : i]);
  }
}

template <class T> class Pass {
  const Word2Vec<T>& w;
  Random random;
  std::vector<int32_t> sentence;
  std::vector<T> mean;
  Step<T> step;
  int32_t drawn[MOST_TARGETS];

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

  void at(long place) {
    const long length = static_cast<long>(sentence.size());
    const long reach = w.is_drawn ? 1 + random.below(w.window) : w.window;
    step.targets[0] = w.u + sentence[place] * w.stride;
    for (long k = 0; k < w.negatives; k++) step.targets[k + 1] = w.u + drawn[k] * w.stride;
    draw();
    if (place + w.window + 1 < length) prefetch(w.v + sentence[place + w.window + 1] * w.stride);
    T* around[MOST_INPUTS];
    long count = 0;
    for (long i = std::max(0L, place - reach); i <= std::min(length - 1, place + reach); i++)
      if (i != place) around[count++] = w.v + sentence[i] * w.stride;
    if (!count) return;
    step.input_count = w.is_cbow ? 1 : count;
    if (w.is_cbow) {
      for (long q = 0; q < w.stride; q += LANES<T>) {
        Vector<T> sum = {};
        for (long i = 0; i < count; i++) sum += load(around[i] + q);
        store(mean.data() + q, sum / static_cast<T>(count));
      }
      step.inputs[0] = mean.data();
    } else std::copy(around, around + count, step.inputs);
    multiply(step);
    differentiate(step, static_cast<T>(w.rate), loss);
    if (w.rate != 0) update(step, around, count);
    pairs += step.input_count;
  }

public:
  int64_t pairs = 0;
  LogLoss loss;

  explicit Pass(const Word2Vec<T>& w) : w(w), random{0}, mean(w.stride) {
    step.target_count = w.negatives + 1;
    step.stride = w.stride;
  }

  // What is random in a sentence depends on its number alone, whatever thread reads it.
  void over(long number) {
    random.state = w.seed + static_cast<uint64_t>(number);
    random.state = random.next();
    read(number);
    if (sentence.size() < 2) return;
    draw();
    for (long place = 0; place < static_cast<long>(sentence.size()); place++) at(place);
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
