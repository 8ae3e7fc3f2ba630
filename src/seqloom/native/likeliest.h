// The likeliest of a softmax over W x + b, and their log-probabilities, without a row of logits in memory: they are made some
// strips at a time, and only the largest, and how much all of them sum to, are kept.
#pragma once

#include "packed_linear.h"

#include <limits>
#include <utility>

namespace seqloom {

struct Likeliest { // as `LikeliestArguments` in likeliest.py
  PackedLinear linear;
  Rows<const float> x;
  long rows, count;                   // count: wanted of each row, at most `outputs`
  const long *suppressed, *forbidden; // rising. Suppressed ones have no probability, forbidden ones are only not wanted.
  long suppressed_count, forbidden_count;
  float* log_probs; // (rows, count), in the order of the ids
  long* ids;

  static constexpr long STRIPS = 8, COLUMNS = STRIPS * LANES<float>; // of a part
  static constexpr float NEVER = -std::numeric_limits<float>::infinity();

  struct Logit {
    float value;
    long id;
  };
  struct Part { // Σ exp(x - largest) of some logits
    float largest, sum;
  };
  struct Shared {
    std::vector<Part> parts;   // (rows, parts)
    std::vector<Logit> chosen; // (threads, rows, count), the largest first
  };

  long parts() const { return (linear.strips_of() + STRIPS - 1) / STRIPS; }
  Shared shared(long threads) const { return {std::vector<Part>(rows * parts()), std::vector<Logit>(threads * rows * count, Logit{NEVER, 0})}; }

  void operator()(const Member& me, Shared& shared) const {
    const Share own = me.of(parts());
    const Inputs given = linear.prepared(x, rows);
    std::vector<float> logits(rows * COLUMNS);
    Logit* const chosen = shared.chosen.data() + me.rank * rows * count;
    for (long part = own.first; part < own.last; part++) {
      const long first = part * COLUMNS, size = std::min(COLUMNS, linear.outputs - first);
      linear({part * STRIPS, std::min((part + 1) * STRIPS, linear.strips_of())}, given, {logits.data() - first, COLUMNS});
      for (long row = 0; row < rows; row++) {
        float* const at = logits.data() + row * COLUMNS;
        std::fill(at + size, at + COLUMNS, NEVER); // so that all loops have one size, which makes them faster
        rule_out(suppressed, suppressed_count, at, first, size);
        shared.parts[row * parts() + part] = part_of(at);
        rule_out(forbidden, forbidden_count, at, first, size);
        choose(at, first, chosen + row * count);
      }
    }
    me.sync();
    const Share mine = me.of(rows);
    for (long row = mine.first; row < mine.last; row++) finish(row, shared, me.size);
  }

private:
  static void rule_out(const long* ids, long ids_size, float* logits, long first, long size) {
    for (const long* id = std::lower_bound(ids, ids + ids_size, first); id < ids + ids_size && *id < first + size; id++) logits[*id - first] = NEVER;
  }

  static float largest_of(const float* logits, long size) {
    float largest = NEVER;
#pragma omp simd reduction(max : largest)
    for (long i = 0; i < size; i++) largest = larger(largest, logits[i]);
    return largest;
  }

  static Part part_of(const float* logits) {
    const float largest = largest_of(logits, COLUMNS);
    const float from = largest == NEVER ? 0.f : largest; // exp(-inf) is 0 then, and NaN stays NaN
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < COLUMNS; i++) sum += logits[i] == NEVER ? 0.f : exponential(logits[i] - from);
    return {largest, sum};
  }

  // Puts those that are larger than the least of `best` among them; the first of equals stays first.
  void choose(const float* logits, long first, Logit* best) const {
    if (!(largest_of(logits, COLUMNS) > best[count - 1].value)) return;
    for (long some = 0; some < COLUMNS; some += LANES<float>) {
      if (!(largest_of(logits + some, LANES<float>) > best[count - 1].value)) continue;
      for (long i = some; i < some + LANES<float>; i++)
        if (logits[i] > best[count - 1].value) insert({logits[i], first + i}, best);
    }
  }

  void insert(Logit one, Logit* best) const {
    long place = count - 1;
    for (; place > 0 && best[place - 1].value < one.value; place--) best[place] = best[place - 1];
    best[place] = one;
  }

  // Members have rising ids and parts have one order, so neither depends on how many members there are.
  void finish(long row, Shared& shared, long members) const {
    Logit* const best = shared.chosen.data() + row * count;
    for (long member = 1; member < members; member++) {
      const Logit* const others = best + member * rows * count;
      for (long i = 0; i < count && others[i].value > best[count - 1].value; i++) insert(others[i], best);
    }
    const Part* const own = shared.parts.data() + row * parts();
    float largest = NEVER;
    double sum = 0;
    for (long part = 0; part < parts(); part++) largest = std::max(largest, own[part].largest);
    for (long part = 0; part < parts(); part++) sum += own[part].largest == NEVER ? own[part].sum : own[part].sum * exponential(own[part].largest - largest);
    const float total = largest + static_cast<float>(std::log(sum));
    std::sort(best, best + count, [](const Logit& a, const Logit& b) { return a.id < b.id; });
    for (long i = 0; i < count; i++) {
      log_probs[row * count + i] = best[i].value - total;
      ids[row * count + i] = best[i].id;
    }
  }
};

inline void find(const Likeliest& call, long threads) {
  Likeliest::Shared shared = call.shared(threads);
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  call(Member{barrier, omp_get_thread_num(), omp_get_num_threads()}, shared);
}

} // namespace seqloom
