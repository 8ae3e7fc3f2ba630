// word2vec with negative sampling (Mikolov et al. 2013b): a pass over sentences that updates the vectors in place.
//
// In skip-gram each word i around a word o of a sentence is an input x = v_i; in CBOW their mean is one. With k words j drawn
// from the noise,
//
//   loss = -log s(u_o . x) - sum_j log s(-u_j . x)         s is the logistic function
//
// is summed over the inputs of a step, which share the words that are drawn: those of a word in skip-gram, and of one word of
// each of TOGETHER streams of sentences in CBOW, for words beside each other have nearly the same x, and a drawn word would be
// moved TOGETHER times as far in one direction. The gradient is that at the vectors before the step. A word may have pieces
// (fastText, Bojanowski et al. 2017): its v_i is the mean of several rows, read when the window comes to the word and changed
// when it has left it. layers/word2vec.py repeats this step by step.
#pragma once

#include "own_rows.h"

#include <bit>
#include <limits>
#include <omp.h>
#include <vector>

// What a loop calls: a call would put the vectors of a step from registers into memory.
#define INLINE __attribute__((always_inline)) inline

namespace seqloom {

constexpr long MOST_TARGETS = 32, MOST_INPUTS = 64; // NEGATIVES + 1 and 2 WINDOW in layers/word2vec.py
constexpr long TOGETHER = 8;                        // words of a step of CBOW, each of a stream of sentences
constexpr long ROUND = 256;                         // words that a thread reads before ordered updates are added up
// Targets whose vectors are in registers together; their products with one input fit into a vector.
template <class T> constexpr long GROUP = std::min(LANES<T>, BYTES == 64 ? 8L : 6L);

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
  long count, vocabulary, rows, stride, window, negatives, is_cbow, is_drawn; // rows: of v
  long is_ordered; // whether threads add up their updates in an order
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

// Parts of SIZE lanes of `a` and then of `b`, each folded: the first half of its lanes plus the second.
template <class T, long SIZE> INLINE Vector<T> folded(Vector<T> a, Vector<T> b) {
  typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Lane __attribute__((vector_size(BYTES)));
  Lane first, second;
  for (long lane = 0; lane < LANES<T>; lane++) {
    first[lane] = lane / (SIZE / 2) * SIZE + lane % (SIZE / 2);
    second[lane] = first[lane] + SIZE / 2;
  }
  return __builtin_shuffle(a, b, first) + __builtin_shuffle(a, b, second);
}

// The sums of COUNT vectors' lanes as the first COUNT lanes of one, COUNT <= LANES; v is overwritten.
template <class T, long COUNT, long SIZE = LANES<T>> INLINE Vector<T> sums_of(Vector<T>* v) {
  if constexpr (SIZE == 1) return v[0];
  else {
    constexpr long HALF = (COUNT + 1) / 2;
#pragma GCC unroll 16
    for (long n = 0; n < HALF; n++) v[n] = folded<T, SIZE>(v[2 * n], v[std::min(2 * n + 1, COUNT - 1)]);
    return sums_of<T, HALF, SIZE / 2>(v);
  }
}

// Calls f<N>(first) for targets from `first` on in groups of N, whose vectors are in registers together.
template <class T, class F> INLINE void for_groups(long first, long count, F f) {
  for (; first + GROUP<T> <= count; first += GROUP<T>) f.template operator()<GROUP<T>>(first);
  switch (count - first) {
#define SEQLOOM_REST(N) case N: if constexpr (N < GROUP<T>) return f.template operator()<N>(first); else break;
    SEQLOOM_REST(7) SEQLOOM_REST(6) SEQLOOM_REST(5) SEQLOOM_REST(4) SEQLOOM_REST(3) SEQLOOM_REST(2) SEQLOOM_REST(1)
#undef SEQLOOM_REST
  }
}

// The products with targets from `first` on.
template <class T> void multiply(Step<T>& s, long first) {
  for_groups<T>(first, s.target_count, [&]<long N>(long target) __attribute__((always_inline)) {
    constexpr long M = LANES<T> / N; // inputs whose products with N targets fit into a vector
    for (long input = 0; input < s.input_count; input += M) {
      const T* x[M];
      for (long m = 0; m < M; m++) x[m] = s.inputs[std::min(input + m, s.input_count - 1)];
      Vector<T> sums[M * N] = {};
      for (long q = 0; q < s.stride; q += LANES<T>) {
#pragma GCC unroll 8
        for (long k = 0; k < N; k++) {
          const Vector<T> y = load(s.targets[target + k] + q);
#pragma GCC unroll 16
          for (long m = 0; m < M; m++) sums[m * N + k] += y * load(x[m] + q);
        }
      }
      T products[LANES<T>];
      store(products, sums_of<T, M * N>(sums));
      for (long m = 0; m < std::min(M, s.input_count - input); m++)
        std::copy(products + m * N, products + m * N + N, s.row(input + m) + target);
    }
  });
}

template <class T> void multiply_own(Step<T>& s) {
  for (long i = 0; i < s.input_count; i++) {
    Vector<T> sum[1] = {};
    for (long q = 0; q < s.stride; q += LANES<T>) sum[0] += load(s.inputs[i] + q) * load(s.own[i] + q);
    s.row(i)[0] = sums_of<T, 1>(sum)[0];
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
  for_groups<T>(first, s.target_count, [&]<long N>(long target) __attribute__((always_inline)) {
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

// The rows around a word of a step of CBOW.
template <class T> struct Around {
  T *rows[MOST_INPUTS], *to[MOST_INPUTS]; // where they are read, and where their gradient goes
  long count, size;                       // rows, and what their sum is divided by
};

template <class T> void average(const Around<T>& around, long stride, T* mean) {
  for (long q = 0; q < stride; q += LANES<T>) {
    Vector<T> sum = {};
    for (long i = 0; i < around.count; i++) sum += load(around.rows[i] + q);
    store(mean + q, sum / static_cast<T>(around.size));
  }
}

// A step of CBOW: the gradient of a mean goes to each of its rows.
template <class T> void update(const Around<T>* around, Step<T>& s) {
  for (long q = 0; q < s.stride; q += LANES<T>) {
    Vector<T> x[TOGETHER], y[MOST_TARGETS], to_x[TOGETHER], to_y[MOST_TARGETS];
    for (long i = 0; i < s.input_count; i++) x[i] = load(s.inputs[i] + q), to_x[i] = s.row(i)[0] * load(s.own[i] + q);
    for (long k = 1; k < s.target_count; k++) y[k] = load(s.targets[k] + q);
    exchange(s, 1, x, y, to_x, to_y);
    for (long k = 1; k < s.target_count; k++) add(s.targets[k] + q, to_y[k]);
    for (long i = 0; i < s.input_count; i++) {
      add(s.own[i] + q, s.row(i)[0] * x[i]);
      for (long place = 0; place < around[i].count; place++) add(around[i].to[place] + q, to_x[i]);
    }
  }
}

// Sentences that are read one after the other, word by word.
template <class T> struct Stream {
  long next, end; // sentences that are still to be read
  Random random{0};
  std::vector<int32_t> sentence;
  long place = 0;             // of the next step
  long read_to, written_to;   // places whose pieces are added up, and whose pieces have their gradient
  std::vector<T> sums, gradients; // of the pieces of the places near `place`, in a ring

  long length() const { return static_cast<long>(sentence.size()); }
  bool is_over() const { return place >= length(); }
};

template <class T> class Pass {
  const Word2Vec<T>& w;
  OwnRows<T>*const own_v, *const own_u; // null: the thread changes the shared rows at once
  Random noise;
  const long ring; // places whose pieces are added up, more than those of a window
  std::vector<Stream<T>> streams;
  std::vector<T> means; // of the words of a step
  Step<T> step;
  int32_t drawn[MOST_TARGETS];  // words for the next step
  uint64_t bits[MOST_TARGETS];   // random, for the words of the step after it

  long size(int32_t word) const { return w.pieces ? w.firsts[word + 1] - w.firsts[word] : 1; }
  T* in_ring(std::vector<T>& rows, long place) { return rows.data() + (place & (ring - 1)) * w.stride; }
  T* v(long row) { return own_v ? own_v->row(row) : w.v + row * w.stride; }
  T* u(long row) { return own_u ? own_u->row(row) : w.u + row * w.stride; }
  T* input(Stream<T>& s, long place) { return w.pieces ? in_ring(s.sums, place) : v(s.sentence[place]); }
  T* to_input(Stream<T>& s, long place) { return w.pieces ? in_ring(s.gradients, place) : v(s.sentence[place]); }

  template <class F> void for_pieces(int32_t word, F f) {
    for (int64_t i = w.firsts[word]; i < w.firsts[word + 1]; i++) f(w.pieces[i]);
  }

  void prefetch(const T* row) const {
    for (long q = 0; q < w.stride; q += 64 / static_cast<long>(sizeof(T))) __builtin_prefetch(row + q, 1);
  }

  // The noise words of the next step, early, so that their vectors have time to arrive, and what is read of the table for the
  // step after it.
  void draw() {
    for (long k = 0; k < w.negatives; k++) {
      const uint32_t* column = column_of(bits[k]);
      // all ones or all zeros: half of the time a processor would predict a branch wrongly
      const uint32_t itself = -static_cast<uint32_t>(static_cast<uint32_t>(bits[k]) < column[0]);
      drawn[k] = static_cast<int32_t>((itself & static_cast<uint32_t>((column - w.noise) / 2)) | (~itself & column[1]));
      prefetch(w.u + drawn[k] * w.stride);
    }
    draw_bits();
  }

  const uint32_t* column_of(uint64_t random) const { return w.noise + 2 * Random::scaled(random, w.vocabulary); }

  void draw_bits() {
    for (long k = 0; k < w.negatives; k++) __builtin_prefetch(column_of(bits[k] = noise.next()));
  }

  // Comes to the next sentence with two words. What is random in it depends on its number alone.
  void begin(Stream<T>& s) {
    s.place = s.read_to = s.written_to = 0;
    do {
      s.sentence.clear();
      if (s.next == s.end) return;
      s.random.state = w.seed + static_cast<uint64_t>(s.next);
      s.random.state = s.random.next();
      for (int64_t i = w.sentences[s.next]; i < w.sentences[s.next + 1]; i++)
        if (const float kept = w.kept[w.words[i]]; kept >= 1 || s.random.uniform() < kept) s.sentence.push_back(w.words[i]);
      s.next++;
    } while (s.length() < 2);
    expect(s);
  }

  // Has the vectors fetched of the first words of the next sentence.
  void expect(const Stream<T>& s) const {
    if (s.next == s.end) return;
    const int64_t first = w.sentences[s.next], end = std::min<int64_t>(w.sentences[s.next + 1], first + w.window + 1);
    prefetch(w.u + w.words[first] * w.stride);
    for (int64_t i = first; i < end && !w.pieces; i++) prefetch(w.v + w.words[i] * w.stride);
  }

  // Makes the vectors of places before `end` ready, and has those of the next place fetched.
  void arrive(Stream<T>& s, long end) {
    if (s.place + 1 < s.length()) prefetch(w.u + s.sentence[s.place + 1] * w.stride);
    if (end < s.length()) {
      if (!w.pieces) prefetch(w.v + s.sentence[end] * w.stride);
      else for_pieces(s.sentence[end], [&](long row) { prefetch(w.v + row * w.stride); });
    }
    if (!w.pieces) return;
    for (; s.read_to < std::min(end, s.length()); s.read_to++) {
      const int32_t word = s.sentence[s.read_to];
      const T scale = w.is_cbow ? T(1) : T(1) / static_cast<T>(size(word));
      T *sum = in_ring(s.sums, s.read_to), *change = in_ring(s.gradients, s.read_to);
      std::fill(sum, sum + w.stride, T(0)), std::fill(change, change + w.stride, T(0));
      for_pieces(word, [&](long row) {
        const T* from = v(row);
        for (long q = 0; q < w.stride; q += LANES<T>) add(sum + q, load(from + q));
      });
      for (long q = 0; q < w.stride; q++) sum[q] *= scale;
    }
  }

  // No step reads places before `end` any more.
  void leave(Stream<T>& s, long end) {
    if (!w.pieces || w.rate == 0) return;
    for (; s.written_to < end; s.written_to++)
      for_pieces(s.sentence[s.written_to], [&](long row) {
        T* to = v(row);
        for (long q = 0; q < w.stride; q += LANES<T>) add(to + q, load(in_ring(s.gradients, s.written_to) + q));
      });
  }

  // Calls f(place) for the places around the next word of a stream.
  template <class F> INLINE void for_window(Stream<T>& s, F f) {
    const long reach = w.is_drawn ? 1 + s.random.below(w.window) : w.window;
    arrive(s, s.place + w.window + 1);
    for (long i = std::max(0L, s.place - reach); i < s.place; i++) f(i);
    for (long i = s.place + 1; i <= std::min(s.length() - 1, s.place + reach); i++) f(i);
  }

  void advance(Stream<T>& s) {
    s.place++;
    leave(s, s.is_over() ? s.length() : s.place - w.window);
    if (s.is_over()) begin(s);
  }

  void take_drawn() {
    for (long k = 0; k < w.negatives; k++) step.targets[k + 1] = u(drawn[k]);
    draw();
  }

  void skip_gram(Stream<T>& s) {
    T* to[MOST_INPUTS];
    step.targets[0] = u(s.sentence[s.place]);
    step.input_count = 0;
    take_drawn();
    for_window(s, [&](long i) {
      to[step.input_count] = to_input(s, i);
      step.own[step.input_count] = step.targets[0];
      step.inputs[step.input_count++] = input(s, i);
    });
    multiply(step, 0);
    differentiate(step, static_cast<T>(w.rate), loss);
    if (w.rate != 0) update(step, to);
    advance(s);
  }

  void cbow() {
    Around<T> around[TOGETHER];
    step.input_count = 0;
    for (Stream<T>& s : streams) {
      if (s.is_over()) continue;
      Around<T>& here = around[step.input_count];
      here.count = here.size = 0;
      for_window(s, [&](long i) {
        here.rows[here.count] = input(s, i);
        here.to[here.count++] = to_input(s, i);
        here.size += size(s.sentence[i]);
      });
      step.own[step.input_count] = u(s.sentence[s.place]);
      step.inputs[step.input_count] = means.data() + step.input_count * w.stride;
      average(here, w.stride, step.inputs[step.input_count++]);
    }
    take_drawn();
    multiply_own(step);
    multiply(step, 1);
    differentiate(step, static_cast<T>(w.rate), loss);
    if (w.rate != 0) update(around, step);
    for (Stream<T>& s : streams)
      if (!s.is_over()) advance(s);
  }

public:
  int64_t pairs = 0;
  LogLoss loss;

  // Over the sentences first .. end - 1.
  Pass(const Word2Vec<T>& w, long first, long end, OwnRows<T>* own_v, OwnRows<T>* own_u)
      : w(w), own_v(own_v), own_u(own_u), noise{~(w.seed + static_cast<uint64_t>(first))},
        ring(static_cast<long>(std::bit_ceil(static_cast<uint64_t>(2 * w.window + 2)))),
        streams(w.is_cbow ? TOGETHER : 1), means(w.stride * TOGETHER) {
    step.target_count = w.negatives + 1;
    step.stride = w.stride;
    const long count = static_cast<long>(streams.size());
    for (long i = 0; i < count; i++) {
      Stream<T>& s = streams[i];
      s.next = first + (end - first) * i / count;
      s.end = first + (end - first) * (i + 1) / count;
      if (w.pieces) s.sums.resize(ring * w.stride), s.gradients.resize(ring * w.stride);
      begin(s);
    }
    draw_bits();
    draw();
  }

  long words_of_a_step() const { return static_cast<long>(streams.size()); }

  bool is_over() const {
    return std::all_of(streams.begin(), streams.end(), [](const Stream<T>& s) { return s.is_over(); });
  }

  void run(long steps) {
    for (; steps && !is_over(); steps--) {
      if (w.is_cbow) cbow();
      else skip_gram(streams[0]);
      pairs += step.input_count;
    }
  }
};

// What several threads need to update in an order.
template <class T> struct Rounds {
  std::vector<OwnRows<T>> v, u;
  std::vector<char> is_over; // of each thread
  Barrier barrier;

  Rounds(const Word2Vec<T>& w, long threads) : is_over(threads) {
    for (long rank = 0; rank < threads; rank++) {
      v.emplace_back(w.v, w.rows, w.stride);
      if (w.u != w.v) u.emplace_back(w.u, w.vocabulary, w.stride);
    }
  }

  OwnRows<T>* of_u(long rank) { return u.empty() ? &v[rank] : &u[rank]; }
};

// Runs a pass in rounds, together with the other threads.
template <class T> void run(Pass<T>& pass, Rounds<T>& rounds, const Member& me) {
  for (bool is_over = false; !is_over;) {
    pass.run(ROUND / pass.words_of_a_step());
    rounds.is_over[me.rank] = pass.is_over();
    me.sync();
    is_over = std::all_of(rounds.is_over.begin(), rounds.is_over.end(), [](char over) { return over; });
    OwnRows<T>::add_up(rounds.v, me);
    if (!rounds.u.empty()) OwnRows<T>::add_up(rounds.u, me);
    me.sync();
    rounds.v[me.rank].forget_copies();
    rounds.of_u(me.rank)->forget_copies();
  }
}

// Each thread has a share of the sentences. With one thread, or ordered updates, the same call always has the same result;
// otherwise several threads update the same vectors without waiting for each other (Recht et al. 2011).
template <class T> void train(const Word2Vec<T>& w, long threads) {
  std::unique_ptr<Rounds<T>> rounds;
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    const long rank = omp_get_thread_num(), size = omp_get_num_threads(); // OpenMP may give fewer threads than asked for
    if (w.is_ordered && size > 1) {
#pragma omp single
      rounds = std::make_unique<Rounds<T>>(w, size);
    }
    Pass<T> pass(w, w.count * rank / size, w.count * (rank + 1) / size, rounds ? &rounds->v[rank] : nullptr,
                 rounds ? rounds->of_u(rank) : nullptr);
    if (rounds) run(pass, *rounds, Member{rounds->barrier, static_cast<int>(rank), static_cast<int>(size)});
    else pass.run(std::numeric_limits<long>::max());
    w.loss[rank] = pass.loss.total();
    w.pairs[rank] = pass.pairs;
  }
}

} // namespace seqloom
