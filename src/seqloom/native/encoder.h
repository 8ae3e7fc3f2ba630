// Whole rows through a stack of Transformer blocks in which a token sees all of its row: `Stack.encode` in
// layers/transformer/blocks.py, as native_encoder.py passes it.
//
// The tokens of all rows lie one after the other, without padding. A few rows go through all blocks before the next ones, so that
// what becomes of them stays in a core's cache: each thread takes some, or all work together on each where there are too few.
// A row's sums have one order, whatever the other rows and the number of threads.
#pragma once

#include "transformer.h"

namespace seqloom {

struct Encoder : TransformerStack { // as `EncoderArguments` in native_encoder.py
  long rows;
  const long* starts;               // (rows + 1,): the first token of each row, and the end
  const float* bias;                // added to the scores, (rows or 1, heads, steps, steps); null: nothing
  const long* places;               // (rows,): where in these steps a row's first token is
  long row_bias, steps;             // from one row's bias to the next one's, 0 where all agree
  float* x;                         // (tokens, width): in: the embedded tokens; out: the hidden states

  static constexpr long TOGETHER = 96; // tokens whose hidden features stay in the L2 cache

  long tokens_of(Share some) const { return starts[some.last] - starts[some.first]; }
  static long padded(long size) { return Product<float>::blocks_of(size) * LANES<float>; }

  // Rows that go through the blocks together, one after the other; as many for each thread as for the others, where that can be.
  std::vector<Share> shares(long threads) const {
    const long tokens = starts[rows], rounds = (tokens + threads * TOGETHER - 1) / (threads * TOGETHER);
    const long most = rounds ? (tokens + threads * rounds - 1) / (threads * rounds) : 0;
    std::vector<Share> found;
    for (long row = 0; row < rows; row++)
      if (!found.empty() && starts[row + 1] - starts[found.back().first] <= most) found.back().last = row + 1;
      else found.push_back({row, row + 1});
    return found;
  }

  // For rows of so many tokens, the longest of `longest`.
  long workspace_size(long tokens, long longest, long threads) const {
    const long together = std::min(tokens, TOGETHER);
    return tokens * (width + 4 * inner()) + together * (width + blocks[0].hidden.outputs) + threads * attention_size(longest);
  }

  void operator()(const Member& me, Share share, float* at) const {
    const long tokens = tokens_of(share), together = std::min(tokens, TOGETHER);
    const auto take = [&](long count, long wide) { return Rows<float>{std::exchange(at, at + count * wide), wide}; };
    const Rows<float> states{x + starts[share.first] * width, width}, normed = take(tokens, width), parts = take(tokens, 3 * inner());
    const Rows<float> mixed = take(tokens, inner()), added = take(together, width), wide = take(together, blocks[0].hidden.outputs);
    long longest = 0;
    for (long row = share.first; row < share.last; row++) longest = std::max(longest, starts[row + 1] - starts[row]);
    at += me.rank * attention_size(longest);

    if (norm_before) each(me, {0, tokens}, [&](long token) { blocks[0].attention_norm(states[token], normed[token], width); });
    const Rows<float> read = norm_before ? normed : states;
    for (long layer = 0; layer < layers; layer++) {
      const TransformerBlock& block = blocks[layer];
      const Norm* const next = layer + 1 < layers ? &blocks[layer + 1].attention_norm : nullptr;
      for (long from = 0; from < tokens; from += TOGETHER) block.query_key_value(me, below(read, from), std::min(TOGETHER, tokens - from), below(parts, from));
      me.sync();
      const Share pairs = me.of((share.last - share.first) * heads);
      for (long pair = pairs.first; pair < pairs.last; pair++) {
        const long row = share.first + pair / heads, first = starts[row] - starts[share.first];
        attend(row, pair % heads, below(parts, first), below(mixed, first), at);
      }
      me.sync();
      for (long from = 0; from < tokens; from += TOGETHER) {
        const Share some{from, std::min(from + TOGETHER, tokens)};
        const long count = some.last - from;
        block.attention_output(me, below(mixed, from), count, added);
        me.sync();
        each(me, some, [&](long token) { add(states[token], added[token - from], normed[token], block.attention_norm, &block.feed_forward_norm); });
        block.hidden(me, below(read, from), count, wide);
        if (block.gated()) me.sync(); // a feature and its gate may be of two members
        activate_columns(block, block.gated() ? me.of(block.output.inputs) : block.hidden.columns_of(me), count, wide);
        me.sync();
        block.output(me, wide, count, added);
        me.sync();
        each(me, some, [&](long token) { add(states[token], added[token - from], normed[token], block.feed_forward_norm, next); });
      }
    }
    if (norm_before) each(me, {0, tokens}, [&](long token) { norm(states[token], states[token], width); });
  }

private:
  static Rows<float> below(Rows<float> rows, long first) { return {rows[first], rows.stride}; }

  template <class F> static void each(const Member& me, Share tokens, F f) {
    const Share share = me.of(tokens.last - tokens.first);
    for (long token = share.first; token < share.last; token++) f(tokens.first + token);
    me.sync();
  }

  // Keys, values, and the weights of a tile of queries.
  long attention_size(long longest) const { return padded(longest) * head_width + longest * padded(head_width) + TILE_ROWS * padded(longest); }

  // softmax(Q Kᵀ * scale + bias) V of a row in one head, a tile of queries at a time.
  void attend(long row, long head, Rows<float> parts, Rows<float> mixed, float* at) const {
    const long count = starts[row + 1] - starts[row], wide = padded(count);
    const Rows<float> queries = parts.columns(head * head_width), out = mixed.columns(head * head_width);
    float *keys = at, *values = keys + wide * head_width, *weights = values + count * padded(head_width);
    pack(queries.columns(inner()), queries.columns(2 * inner()), count, keys, values);
    for (long first = 0; first < count; first += TILE_ROWS) {
      const long high = std::min<long>(TILE_ROWS, count - first);
      multiply(below(queries, first), high, keys, head_width, {weights, wide}, wide);
      for (long query = 0; bias && query < high; query++) {
        const float* plus = bias + row * row_bias + (head * steps + places[row] + first + query) * steps + places[row];
        for (long key = 0; key < count; key++) weights[query * wide + key] += plus[key] / scale;
      }
      softmax({weights, wide}, high, count);
      multiply({weights, wide}, high, values, count, below(out, first), head_width);
    }
  }

  // Keys in strips of as many keys as a vector has lanes, zeros after the last one; values in strips of features.
  void pack(Rows<float> key, Rows<float> value, long count, float* keys, float* values) const {
    constexpr long WIDE = LANES<float>;
    for (long first = 0; first < count; first += WIDE, keys += WIDE * head_width)
      for (long in = 0; in < head_width; in += WIDE)
        for (long lane = 0; lane < WIDE; lane++)
          for (long each = in; each < std::min(head_width, in + WIDE); each++) keys[each * WIDE + lane] = first + lane < count ? key[first + lane][each] : 0.f;
    for (long column = 0; column < head_width; column += WIDE)
      for (long token = 0; token < count; token++, values += WIDE) {
        const float* from = value[token] + column;
        for (long lane = 0; lane < WIDE; lane++) values[lane] = column + lane < head_width ? from[lane] : 0.f;
      }
  }

  // y = u W for a tile of rows and all strips of W.
  static void multiply(Rows<float> u, long high, const float* strips, long depth, Rows<float> y, long columns) {
    constexpr long WIDE = LANES<float>;
    const Rows<const float> none[2] = {{nullptr, 0}, {nullptr, 0}};
    for (long column = 0; column < columns; column += 2 * WIDE, strips += 2 * WIDE * depth) {
      const float* w[2] = {strips, strips + WIDE * depth};
      const Rows<float> to[2] = {y.columns(column), y.columns(column + WIDE)};
      const long lanes[2] = {std::min(WIDE, columns - column), std::min(WIDE, columns - column - WIDE)};
      if (lanes[1] > 0) tile_of<float, 2>(high, u, w, depth, none, to, lanes);
      else tile_of<float, 1>(high, u, w, depth, none, to, lanes);
    }
  }

  // All lanes together, by an operation on vectors and numbers.
  template <class F> static float reduced(Vector<float> v, F f) {
    typedef float Quarter __attribute__((vector_size(16)));
    Quarter quarters[BYTES / 16];
    std::memcpy(quarters, &v, sizeof quarters);
    Quarter found = quarters[0];
    for (int i = 1; i < BYTES / 16; i++) found = f(found, quarters[i]);
    return f(f(found[0], found[1]), f(found[2], found[3]));
  }

  // Of each row of some scores; 0 where nothing is seen. What is after the last one is not read. By whole vectors, as most rows are
  // short, and each part for all rows, which do not wait for each other.
  void softmax(Rows<float> weights, long high, long count) const {
    constexpr float NEVER = -std::numeric_limits<float>::infinity();
    constexpr long WIDE = LANES<float>;
    const long wide = padded(count);
    float most[TILE_ROWS], share[TILE_ROWS];
    bool sees[TILE_ROWS];
    for (long row = 0; row < high; row++) {
      Vector<float> largest = Vector<float>{} + NEVER;
      for (long key = 0; key < wide; key += WIDE) {
        float* at = weights[row] + key;
        for (long lane = 0; lane < WIDE; lane++) at[lane] = lane < count - key ? at[lane] : NEVER;
        const Vector<float> some = load(at);
        largest = some > largest ? some : largest;
      }
      most[row] = reduced(largest, [](auto a, auto b) { return a > b ? a : b; });
      sees[row] = most[row] != NEVER;
      if (!sees[row]) most[row] = 0;
    }
    for (long row = 0; row < high; row++) {
      Vector<float> total{};
      for (long key = 0; key < wide; key += WIDE) {
        float* at = weights[row] + key;
        for (long lane = 0; lane < WIDE; lane++) at[lane] = exponential(scale * (at[lane] - most[row]));
        total += load(at);
      }
      share[row] = !sees[row] ? 0.f : 1.f / reduced(total, [](auto a, auto b) { return a + b; });
    }
    for (long row = 0; row < high; row++)
      for (long key = 0; key < wide; key += WIDE) store(weights[row] + key, load(weights[row] + key) * share[row]);
  }
};

inline void encode(const Encoder& encoder, long threads) {
  const std::vector<Share> shares = encoder.shares(threads);
  long tokens = 0, longest = 0;
  for (const Share share : shares) tokens = std::max(tokens, encoder.tokens_of(share));
  for (long row = 0; row < encoder.rows; row++) longest = std::max(longest, encoder.tokens_of({row, row + 1}));
  const long alone = static_cast<long>(shares.size()) >= threads, members = alone ? 1 : threads;
  const size_t size = encoder.workspace_size(tokens, longest, members);
  std::vector<float> shared(alone ? 0 : size);
  std::atomic<size_t> next{0};
  Barrier barrier;
#pragma omp parallel num_threads(static_cast<int>(threads))
  if (alone) {
    static thread_local std::vector<float> workspace;
    if (workspace.size() < size) workspace.resize(size);
    for (size_t at = next++; at < shares.size(); at = next++) encoder(Member{barrier, 0, 1}, shares[at], workspace.data());
  } else {
    const Member me{barrier, omp_get_thread_num(), omp_get_num_threads()};
    for (const Share share : shares) {
      encoder(me, share, shared.data());
      me.sync();
    }
  }
}

} // namespace seqloom
