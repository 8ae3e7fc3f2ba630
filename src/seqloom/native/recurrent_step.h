// One token of each row through a stack of recurrent layers, as layers/recurrent/native_step.py passes it. The equations are those
// of layers/recurrent/cells.py.
//
// A decoder also reads a context c of its input (attention_step.h). The first layer's input is [x; c] or x, the embedded token;
// that of the last map as much of [h; x; c] as it has inputs.
//
// Weights are packed; products with the input and with the state are added where the gates are computed. Between two parts of a
// layer all threads wait for each other.
#pragma once

#include "attention_step.h"
#include "cells.h"

#include <utility>

namespace seqloom {

enum Connection : long { NONE, RESIDUAL, HIGHWAY }; // as CONNECTIONS in native_step.py

struct LayerState {
  const float *h, *c; // (rows, stride): before
  float *new_h, *new_c;
};

struct RecurrentLayerStep { // as `RecurrentLayerArguments` in native_step.py
  long cell, connection, width;
  PackedLinear input;                // (gates, input): without the raw input gate where widths agree
  PackedLinear hidden[3];            // the products with the state, in the order of the cell's
  PackedLinear projection, highway;  // outputs: 0 where there is none
  const float* bias;                 // (gates * width,): without `candidate_bias`
  const float* candidate_bias;       // (width,): of the candidate's product, where a gate multiplies that; else null
  LayerState state;
  long h_stride, c_stride;

  long outputs() const { return projection.outputs ? projection.outputs : width; }
};

struct RecurrentStep { // as `RecurrentStepArguments` in native_step.py
  const RecurrentLayerStep* layers;
  long count, rows, widest;    // widest: numbers of a row of the largest gates
  const long* ids;             // (rows,)
  const float* embedding;      // (vocabulary, width); null: `stored`
  PackedLinear stored;
  long vocabulary, width, pad, start; // after a pad or a start a row is not as the others
  AttentionStep attention;
  PackedLinear to_output;      // outputs: 0 where there is none
  long maxout;                 // whether y is the larger of each pair of outputs, which are half of them apart
  float* y;                    // (rows, its width)

  // Whether each id is a token that goes on with its document, and has an embedding; and each row has an input.
  bool even() const {
    return attention.even(rows) && std::all_of(ids, ids + rows, [&](long id) { return id >= 0 && id < vocabulary && id != pad && id != start; });
  }

  long workspace_size(long threads) const {
    return rows * (3 * widest + 5 * broad() + read_width() + attention.query.outputs + to_output.outputs) + threads * attention.source;
  }

  // The width of the widest input, state or output of a layer.
  long broad() const {
    long result = width;
    for (long layer = 0; layer < count; layer++) result = std::max({result, layers[layer].width, layers[layer].outputs()});
    return result;
  }

  void operator()(const Member& me, float* at) const {
    const auto take = [&](long wide) { return Rows<float>{std::exchange(at, at + rows * wide), wide}; };
    const Buffers b{take(widest), take(widest), take(widest), take(broad()), take(broad()), take(broad())};
    const Rows<float> between[] = {take(broad()), take(broad())}, read = take(read_width()), query = take(attention.query.outputs), pairs = take(to_output.outputs);
    float* const weights = at + me.rank * attention.source;
    const Rows<float> embedded = read.columns(last_width()), context = embedded.columns(width);
    const Share share = me.of(rows);
    for (long row = share.first; row < share.last; row++) embed(row, embedded[row]);
    const RecurrentLayerStep& last = layers[count - 1];
    if (!attention.from_current) attend(me, {last.state.h, last.h_stride}, query, weights, context);
    me.sync();
    Rows<float> below = embedded;
    for (long layer = 0; layer < count; layer++) {
      const Rows<float> above = layer + 1 < count ? between[layer % 2] : read;
      run(layers[layer], me, b, below, above);
      if (layers[layer].connection != NONE) connect(layers[layer], me, b, below, above);
      below = above;
    }
    if (attention.from_current) {
      attend(me, read, query, weights, context);
      me.sync();
    }
    put(me, read, pairs);
  }

private:
  struct Buffers {
    Rows<float> by_x, by_h, by_other, reset, kept, mixed;
  };

  long last_width() const { return layers[count - 1].outputs(); }
  long read_width() const { return last_width() + width + attention.width; }

  void attend(const Member& me, Rows<const float> states, Rows<float> query, float* weights, Rows<float> context) const {
    if (attention.width == 0) return;
    if (attention.scores == ADDITIVE) {
      attention.query(me, states, rows, query);
      me.sync();
      states = query;
    }
    const Share share = me.of(rows);
    for (long row = share.first; row < share.last; row++) attention(row, states[row], weights, context[row]);
  }

  void put(const Member& me, Rows<const float> read, Rows<float> pairs) const {
    const Share share = me.of(rows);
    if (!to_output.outputs) {
      for (long row = share.first; row < share.last; row++) std::memcpy(y + row * last_width(), read[row], last_width() * sizeof(float));
      return;
    }
    to_output(me, read, rows, maxout ? pairs : Rows<float>{y, to_output.outputs});
    if (!maxout) return;
    me.sync();
    const long half = to_output.outputs / 2;
    for (long row = share.first; row < share.last; row++) {
      const float *one = pairs[row], *other = one + half;
      for (long j = 0; j < half; j++) y[row * half + j] = one[j] > other[j] || one[j] != one[j] ? one[j] : other[j]; // NaN stays NaN
    }
  }

  void embed(long row, float* to) const {
    if (embedding) std::memcpy(to, embedding + ids[row] * width, width * sizeof(float));
    else stored.row(ids[row], to);
  }

  // `above`: h, which is the output; and the new states.
  void run(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<const float> x, Rows<float> above) const {
    const Rows<const float> h{layer.state.h, layer.h_stride};
    const long width = layer.width;
    if (layer.cell == MUT3) {
      each<float>(me, rows, width, [&](long row, long first, long last) {
        const float* from = h[row];
        float* to = b.mixed[row];
        UNITS(j) to[j] = hyperbolic_tangent(from[j]);
      });
      me.sync();
    }
    layer.input(me, x, rows, b.by_x);
    layer.hidden[0](me, layer.cell == MUT3 ? Rows<const float>(b.mixed) : h, rows, b.by_h);
    if (layer.cell == GRU_TORCH || layer.cell == MUT2 || layer.cell == MUT3) layer.hidden[1](me, h, rows, b.by_other);
    me.sync();
    switch (layer.cell) {
    case ELMAN: elman(layer, me, b, above, [](float v) { return hyperbolic_tangent(v); }); break;
    case ELMAN_RELU: elman(layer, me, b, above, [](float v) { return v <= 0.f ? 0.f : v; }); break;
    case ELMAN_SIGMOID: elman(layer, me, b, above, [](float v) { return sigmoid(v); }); break;
    case LSTM: lstm(layer, me, b, above); break;
    case GRU_TORCH: gru_torch(layer, me, b, above); break;
    default: with_reset(layer, me, b, x, above);
    }
    me.sync();
  }

  void keep(const RecurrentLayerStep& layer, long row, const float* h, long first, long last) const {
    float* to = layer.state.new_h + row * layer.h_stride;
    UNITS(j) to[j] = h[j];
  }

  template <class G> void elman(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<float> above, G g) const {
    each<float>(me, rows, layer.width, [&](long row, long first, long last) {
      const float *x = b.by_x[row], *h = b.by_h[row];
      float* y = above[row];
      UNITS(j) y[j] = g(h[j] + (x[j] + layer.bias[j]));
      keep(layer, row, y, first, last);
    });
  }

  void lstm(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<float> above) const {
    const long width = layer.width;
    const Rows<float> out = layer.projection.outputs ? b.mixed : above;
    each<float>(me, rows, width, [&](long row, long first, long last) {
      const float *x = b.by_x[row], *h = b.by_h[row], *bias = layer.bias, *old = layer.state.c + row * layer.c_stride;
      float *c = layer.state.new_c + row * layer.c_stride, *y = out[row];
      UNITS(j) {
        const float i = sigmoid(h[j] + (x[j] + bias[j])), f = sigmoid(h[width + j] + (x[width + j] + bias[width + j]));
        const float g = hyperbolic_tangent(h[2 * width + j] + (x[2 * width + j] + bias[2 * width + j]));
        const float o = sigmoid(h[3 * width + j] + (x[3 * width + j] + bias[3 * width + j]));
        c[j] = f * old[j] + i * g;
        y[j] = o * hyperbolic_tangent(c[j]);
      }
      if (!layer.projection.outputs) keep(layer, row, y, first, last);
    });
    if (!layer.projection.outputs) return;
    me.sync();
    layer.projection(me, b.mixed, rows, above);
    me.sync();
    const Share share = me.of(rows);
    for (long row = share.first; row < share.last; row++) keep(layer, row, above[row], 0, layer.outputs());
  }

  void gru_torch(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<float> above) const {
    const long width = layer.width;
    each<float>(me, rows, width, [&](long row, long first, long last) {
      const float *x = b.by_x[row], *h = b.by_h[row], *other = b.by_other[row], *bias = layer.bias, *old = layer.state.h + row * layer.h_stride;
      float* y = above[row];
      UNITS(j) {
        const float r = sigmoid(h[j] + (x[j] + bias[j])), z = sigmoid(h[width + j] + (x[width + j] + bias[width + j]));
        const float candidate = hyperbolic_tangent(x[2 * width + j] + bias[2 * width + j] + r * (other[j] + layer.candidate_bias[j]));
        y[j] = lerp(candidate, old[j], z);
      }
      keep(layer, row, y, first, last);
    });
  }

  // GRU as published, and the MUTs: the candidate reads r * h.
  void with_reset(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<const float> x, Rows<float> above) const {
    const long width = layer.width, cell = layer.cell;
    const bool raw = layer.input.outputs < 3 * width; // one gate gets x itself
    each<float>(me, rows, width, [&](long row, long first, long last) {
      const float *own = b.by_x[row], *h = b.by_h[row], *other = b.by_other[row], *bias = layer.bias, *old = layer.state.h + row * layer.h_stride;
      float *reset = b.reset[row], *kept = b.kept[row];
      const float *x_r = own, *x_z = own, *h_r = h, *h_z = h, *b_r = bias, *b_z = bias;
      if (cell == GRU) x_z = own + width, h_z = h + width, b_z = bias + width;
      else {
        // z, r and the candidate, of which MUT1 gives the candidate and MUT2 r the raw input
        b_r = bias + width, x_r = own + width;
        if (cell == MUT2 && raw) x_r = x[row];
        h_r = cell == MUT1 ? h : other;
      }
      const bool z_reads = cell != MUT1;
      UNITS(j) {
        const float r = sigmoid(h_r[j] + (x_r[j] + b_r[j]));
        kept[j] = sigmoid((z_reads ? h_z[j] : 0.f) + (x_z[j] + b_z[j]));
        reset[j] = r * old[j];
      }
    });
    me.sync();
    const PackedLinear& by_reset = layer.hidden[cell == MUT2 || cell == MUT3 ? 2 : 1];
    by_reset(me, b.reset, rows, b.by_other);
    me.sync();
    each<float>(me, rows, width, [&](long row, long first, long last) {
      const float *own = b.by_x[row], *candidate = b.by_other[row], *bias = layer.bias + 2 * width, *z = b.kept[row], *old = layer.state.h + row * layer.h_stride;
      const float* x_h = cell == MUT2 && raw ? own + width : own + 2 * width;
      if (cell == MUT1 && raw) x_h = x[row];
      float* y = above[row];
      UNITS(j) {
        const float input = (cell == MUT1 ? hyperbolic_tangent(x_h[j]) : x_h[j]) + bias[j];
        const float made = hyperbolic_tangent(candidate[j] + input);
        y[j] = cell == GRU ? lerp(made, old[j], z[j]) : lerp(old[j], made, z[j]);
      }
      keep(layer, row, y, first, last);
    });
  }

  void connect(const RecurrentLayerStep& layer, const Member& me, const Buffers& b, Rows<const float> below, Rows<float> above) const {
    const long width = layer.outputs();
    if (layer.connection == HIGHWAY) {
      layer.highway(me, below, rows, b.mixed);
      me.sync();
    }
    each<float>(me, rows, width, [&](long row, long first, long last) {
      const float *x = below[row], *gate = b.mixed[row];
      float* y = above[row];
      if (layer.connection == HIGHWAY) UNITS(j) y[j] = lerp(x[j], y[j], sigmoid(gate[j]));
      else UNITS(j) y[j] += x[j];
    });
    me.sync();
  }
};

} // namespace seqloom
