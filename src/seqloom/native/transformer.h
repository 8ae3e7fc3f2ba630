// One token of each row through a stack of Transformer blocks: layers/transformer/blocks.py, as native_step.py passes it.
//
//   norm before   z = x + A(LN x),   y = z + F(LN z),   and one LN after the last block
//   norm after    z = LN(x + A(x)),  y = LN(z + F(z))
//
// With an encoder, z goes through attention to its memory in the same way before F. Keys and values are appended to the caches in
// place; those of an input are read where they are by all rows of it. Between two parts of a block all threads wait for each other.
#pragma once

#include "cached_attention.h"
#include "packed_linear.h"

#include <utility>

namespace seqloom {

enum Activation : long { GELU, GELU_TANH, RELU, SILU, SWISH, TANH }; // as ACTIVATIONS in native_step.py

SEQLOOM_INLINE float error_function(float x) { // x P(x^2) / Q(x^2), as in Eigen: within 3e-7
  x = x < -4.f ? -4.f : x > 4.f ? 4.f : x;
  const float square = x * x;
  float p = -2.72614225801306e-10f;
  p = p * square + 2.77068142495902e-08f;
  p = p * square - 2.10102402082508e-06f;
  p = p * square - 5.69250639462346e-05f;
  p = p * square - 7.34990630326855e-04f;
  p = p * square - 2.95459980854025e-03f;
  p = p * square - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * square - 2.13374055278905e-04f;
  q = q * square - 1.68282697438203e-03f;
  q = q * square - 7.37332916720468e-03f;
  q = q * square - 1.42647390514189e-02f;
  return x * p / q;
}

SEQLOOM_INLINE float activated(Activation kind, float beta, float x) {
  switch (kind) {
  case GELU: return 0.5f * x * (1.f + error_function(x * 0.70710678118654752f));
  case GELU_TANH: return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); // 1 + tanh(y) = 2 sigmoid(2 y)
  case RELU: return x <= 0.f ? 0.f : x;
  case SILU: return x * sigmoid(x);
  case SWISH: return x * sigmoid(beta * x);
  case TANH: return hyperbolic_tangent(x);
  }
  return x;
}

template <Activation KIND> SEQLOOM_INLINE void activate(float* x, float beta, long size) {
#pragma GCC ivdep
  for (long i = 0; i < size; i++) x[i] = activated(KIND, beta, x[i]);
}

struct Norm { // as `NormArguments` in step_arguments.py
  const float *gain, *bias; // no bias: null
  long centred;             // LayerNorm: 1, RMSNorm: 0
  float epsilon;

  void operator()(const float* x, float* y, long width) const {
    float sum = 0, squares = 0;
    if (centred) {
#pragma omp simd reduction(+ : sum)
      for (long i = 0; i < width; i++) sum += x[i];
    }
    const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.f / std::sqrt(squares / width + epsilon);
    for (long i = 0; i < width; i++) y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0.f);
  }
};

struct TransformerBlock { // as `BlockArguments` in step_arguments.py
  Norm attention_norm, memory_norm, feed_forward_norm;
  PackedLinear query_key_value, attention_output, query, memory_output, hidden, output; // those of the memory: where there is one
  float beta;                                                                           // of swish

  bool gated() const { return hidden.outputs > output.inputs; }
};

struct EncoderMemory { // as `MemoryArguments` in step_arguments.py
  const float* const* layers; // keys and values of each block in turn: (inputs, heads, steps, head_width) each; null: no encoder
  const uint8_t* is_token;    // (inputs, steps); null: all are
  const long* source;         // (rows,): the input that each row reads
  long inputs, steps;
};

struct EvenTokens { // of rows that have read `length` tokens each
  const long* ids;  // (rows,); null: `x` holds the embedded tokens
  long *known, known_stride; // where the ids are kept, (rows, slots)
  const float *embedding, *positions; // (vocabulary, width), and the row of this position; null where there is none
  PackedLinear stored;                // in place of `embedding` where that is null
  long vocabulary, pad, start; // after a pad or a start rows differ
  float scale;                 // of the embedding
  Norm norm;                   // of the sum; no gain: null
};

struct TransformerStack { // as `StackArguments` in step_arguments.py
  const TransformerBlock* blocks;
  Norm norm; // after the last block, where norms come before
  long layers, norm_before, activation;
  float scale; // of the scores
  long width, heads, head_width;

  long inner() const { return heads * head_width; }

  // A sub-block's output is added to its input, with the norm `own` after it or the norm `next` before what follows.
  void add(float* state, const float* added, float* normed, const Norm& own, const Norm* next) const {
    for (long i = 0; i < width; i++) state[i] += added[i];
    if (!norm_before) own(state, state, width);
    else if (next) (*next)(state, normed, width);
  }

  void activate_columns(const TransformerBlock& block, Share columns, long rows, Rows<float> y) const {
    const long size = columns.last - columns.first;
    for (long row = 0; row < rows; row++) {
      float* at = y[row] + columns.first;
      switch (activation) {
      case GELU: activate<GELU>(at, block.beta, size); break;
      case GELU_TANH: activate<GELU_TANH>(at, block.beta, size); break;
      case RELU: activate<RELU>(at, block.beta, size); break;
      case SILU: activate<SILU>(at, block.beta, size); break;
      case SWISH: activate<SWISH>(at, block.beta, size); break;
      case TANH: activate<TANH>(at, block.beta, size); break;
      }
      if (block.gated())
        for (long i = 0; i < size; i++) at[i] *= at[block.output.inputs + i];
    }
  }
};

struct TransformerStep : TransformerStack { // as `StepArguments` in step_arguments.py
  float* const* caches; // keys and values of each block in turn: (rows, heads, slots, head_width) each
  long rows;
  long slots, length;                // of the caches: room, and what is filled
  float* const* context;             // keys and values of each block that all rows read before their own, (heads, context_slots, head_width) each
  long context_slots, context_length; // 0: nothing, which only `tokens` may change
  const uint8_t* visible;            // (rows, length + 1): the keys that a row sees; null: all
  const float *cosines, *sines;      // of rotary positions, (rows, head_width / 2); else null
  long angle_stride;                 // from one row's angles to the next one's: 0 where all agree
  const float* bias;                 // what is added to the scores of the keys, of each head in each row; null: nothing
  long row_bias, head_bias;          // from one row's to the next one's, 0 where all agree; and of heads
  EncoderMemory memory;
  EvenTokens tokens;
  float* x;                          // (rows, width): in: the embedded tokens, unless `tokens` are given; out: the hidden states

  // Whether all rows stay even, and all ids have an embedding. Otherwise it must not run: Python knows about uneven rows.
  bool even() const {
    if (memory.layers && !std::all_of(memory.source, memory.source + rows, [&](long input) { return input >= 0 && input < memory.inputs; })) return false;
    if (!tokens.ids) return true;
    return std::all_of(tokens.ids, tokens.ids + rows, [&](long id) { return id >= 0 && id < tokens.vocabulary && id != tokens.pad && id != tokens.start; });
  }

  long most_keys() const { return std::max(context_length + length + 1, memory.steps); }
  long workspace_size(long threads) const { return rows * (2 * width + 4 * inner() + blocks[0].hidden.outputs) + threads * RowGroup::MOST * most_keys(); }

  void operator()(const Member& me, float* at) const {
    const auto take = [&](long wide) { return Rows<float>{std::exchange(at, at + rows * wide), wide}; };
    const Rows<float> states{x, width}, normed = take(width), added = take(width), parts = take(3 * inner()), mixed = take(inner()), wide = take(blocks[0].hidden.outputs);
    float* weights = at + me.rank * RowGroup::MOST * most_keys();
    const std::vector<RowGroup> by_text = groups_by_text(), by_input = groups_by_input();

    each_row(me, [&](long row) {
      if (tokens.ids) embed(row, states[row]);
      if (norm_before) blocks[0].attention_norm(states[row], normed[row], width);
    });
    const Rows<float> read = norm_before ? normed : states;
    for (long layer = 0; layer < layers; layer++) {
      const TransformerBlock& block = blocks[layer];
      block.query_key_value(me, read, rows, parts);
      me.sync();
      each_head(me, by_text, [&](const RowGroup& group, long head) { attend_to_text(group, layer, head, parts, mixed, weights); });
      block.attention_output(me, mixed, rows, added);
      me.sync();
      const Norm& after_attention = memory.layers ? block.memory_norm : block.feed_forward_norm;
      each_row(me, [&](long row) { add(states[row], added[row], normed[row], block.attention_norm, &after_attention); });
      if (memory.layers) {
        block.query(me, read, rows, parts);
        me.sync();
        each_head(me, by_input, [&](const RowGroup& group, long head) { attend_to_memory(group, layer, head, parts, mixed, weights); });
        block.memory_output(me, mixed, rows, added);
        me.sync();
        each_row(me, [&](long row) { add(states[row], added[row], normed[row], block.memory_norm, &block.feed_forward_norm); });
      }
      block.hidden(me, read, rows, wide);
      if (block.gated()) me.sync(); // a feature and its gate may be of two members
      activate_columns(block, block.gated() ? me.of(block.output.inputs) : block.hidden.columns_of(me), rows, wide);
      me.sync();
      block.output(me, wide, rows, added);
      me.sync();
      const Norm* next = layer + 1 < layers ? &blocks[layer + 1].attention_norm : nullptr;
      each_row(me, [&](long row) { add(states[row], added[row], normed[row], block.feed_forward_norm, next); });
    }
    if (norm_before) each_row(me, [&](long row) { norm(states[row], states[row], width); });
  }

private:
  void embed(long row, float* to) const {
    const long id = tokens.ids[row];
    if (tokens.embedding) std::memcpy(to, tokens.embedding + id * width, width * sizeof(float));
    else tokens.stored.row(id, to);
    for (long i = 0; i < width; i++) to[i] = tokens.scale * to[i] + (tokens.positions ? tokens.positions[i] : 0.f);
    if (tokens.norm.gain) tokens.norm(to, to, width);
    tokens.known[row * tokens.known_stride + length] = id;
  }

  template <class F> void each_row(const Member& me, F f) const {
    const Share share = me.of(rows);
    for (long row = share.first; row < share.last; row++) f(row);
    me.sync();
  }

  // One head of all groups is done before the next, as groups may look at the same keys.
  template <class F> void each_head(const Member& me, const std::vector<RowGroup>& groups, F f) const {
    const long count = static_cast<long>(groups.size());
    const Share pairs = me.of(count * heads);
    for (long pair = pairs.first; pair < pairs.last; pair++) f(groups[pair % count], pair / count);
    me.sync();
  }

  // Pair i, (i, i + half), is rotated by its angle (Su et al. 2021).
  void rotate(float* x, long row) const {
    const long half = head_width / 2;
    const float *cosine = cosines + row * angle_stride, *sine = sines + row * angle_stride;
    for (long i = 0; i < half; i++) {
      const float first = x[i], second = x[i + half];
      x[i] = first * cosine[i] - second * sine[i];
      x[i + half] = first * sine[i] + second * cosine[i];
    }
  }

  // The key and the value of a new token in one head.
  void append(long layer, long row, long head, float* parts) const {
    float *query = parts + head * head_width, *key = query + inner(), *value = key + inner();
    if (cosines) {
      rotate(query, row);
      rotate(key, row);
    }
    const long place = ((row * heads + head) * slots + length) * head_width;
    std::memcpy(caches[2 * layer] + place, key, head_width * sizeof(float));
    std::memcpy(caches[2 * layer + 1] + place, value, head_width * sizeof(float));
  }

  // What a row has read in one head, from slot `first` on.
  Slots read_so_far(long layer, long row, long head, long first) const {
    const long place = ((row * heads + head) * slots + first) * head_width;
    return {caches[2 * layer] + place, caches[2 * layer + 1] + place, length + 1 - first};
  }

  // Attention of the rows of a group to what they have read.
  void attend_to_text(const RowGroup& group, long layer, long head, Rows<float> parts, Rows<float> mixed, float* weights) const {
    const long own_shared = std::max(0L, group.shared - context_length);
    Query queries[RowGroup::MOST];
    for (long n = 0; n < group.count; n++) {
      const long row = group.rows[n];
      append(layer, row, head, parts[row]);
      queries[n] = {parts[row] + head * head_width, mixed[row] + head * head_width, read_so_far(layer, row, head, own_shared),
                    visible ? visible + row * (length + 1) : nullptr, bias ? bias + row * row_bias + head * head_bias : nullptr};
    }
    Slots before{}, shared = read_so_far(layer, group.rows[0], head, 0);
    shared.count = own_shared;
    if (context_length) {
      const long place = head * context_slots * head_width;
      before = {context[2 * layer] + place, context[2 * layer + 1] + place, context_length};
    }
    attention().attend(queries, group.count, {before, shared}, most_keys(), weights);
  }

  // Attention of rows that read one input to its memory.
  void attend_to_memory(const RowGroup& group, long layer, long head, Rows<float> parts, Rows<float> mixed, float* weights) const {
    const long input = memory.source[group.rows[0]], place = (input * heads + head) * memory.steps * head_width;
    const uint8_t* is_token = memory.is_token ? memory.is_token + input * memory.steps : nullptr;
    Query queries[RowGroup::MOST];
    for (long n = 0; n < group.count; n++) {
      const long row = group.rows[n];
      queries[n] = {parts[row] + head * head_width, mixed[row] + head * head_width, {}, is_token, nullptr};
    }
    const Slots remembered{memory.layers[2 * layer] + place, memory.layers[2 * layer + 1] + place, memory.steps};
    attention().attend(queries, group.count, {remembered}, most_keys(), weights);
  }

  CachedAttention attention() const { return {head_width, scale}; }

  // Where all are even, rows that read the same input and have read the same tokens have the same keys.
  long agreement(long one, long other) const {
    if (memory.layers && memory.source[one] != memory.source[other]) return 0;
    const long *a = tokens.known + one * tokens.known_stride, *b = tokens.known + other * tokens.known_stride;
    return context_length + (std::mismatch(a, a + length, b).first - a);
  }

  std::vector<RowGroup> groups_by_text() const {
    return grouped(rows, [&](long one, long other) { return tokens.ids ? agreement(one, other) : 0; });
  }

  std::vector<RowGroup> groups_by_input() const {
    return grouped(memory.layers ? rows : 0, [&](long one, long other) { return memory.source[one] == memory.source[other] ? RowGroup::WORTH : 0; });
  }
};

} // namespace seqloom
