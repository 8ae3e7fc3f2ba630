// The cells of layers/recurrent/cells.py, where their equations are: forward, and backward by hand.
//
// A backward loop may write gradients over the values it reads. So it reads all values of a unit before it writes any.
//
// Each function is the work of one member of a team of threads. It owns a share of the units of every gate, and waits for
// the others wherever a product needs all units.
#pragma once

#include "sequence.h"

namespace seqloom {

enum Cell : long { // as CELLS in cells.py
  ELMAN, ELMAN_RELU, ELMAN_SIGMOID, LSTM, GRU, GRU_TORCH, MUT1, MUT2, MUT3
};

// Elman 1990

template <class T, class G> void elman_forward(const Sequence<T>& s, const Member& me, G g) {
  T* workspace = s.workspace;
  auto by_h = Product<T>::forward(s.w[0], 1, s.width, s.width, workspace);
  by_h.pack(me);
  s.forward([&](auto step) {
    const auto x = s.rows_of(s.gates[0], step, s.width), h = s.new_h(step);
    by_h(me, s.old_h(step), step.rows, x, h);
    each<T>(me, step.rows, s.width, [&](long row, long first, long last) {
      T* h_row = h[row];
      UNITS(j) h_row[j] = g(h_row[j]);
    });
    me.sync();
  });
}

template <class T, class G> void elman_backward(const Sequence<T>& s, const Member& me, G slope) {
  T* workspace = s.workspace;
  auto by_h = Product<T>::transposed(s.w[0], 1, s.width, s.width, workspace);
  by_h.pack(me);
  const Rows<T> d_state{s.d_h, s.width};
  s.backward([&](auto step) {
    const auto h = s.new_h(step), d_x = s.rows_of(s.d_gates[0], step, s.width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, s.width, [&](long row, long first, long last) {
      const T *d_h = d_state[row], *y = d_y[row], *value = h[row];
      T* d = d_x[row];
      UNITS(j) d[j] = slope(d_h[j] + y[j], value[j]);
    });
    me.sync();
    by_h(me, d_x, step.rows, {nullptr, 0}, d_state);
  });
}

// Hochreiter and Schmidhuber 1997, Gers 2000; with a projection Sak et al. 2014; layer-normalised Ba et al. 2016

// Layer normalisation of rows whose features the members share. A row's values lie in groups, `width` apart, of which a
// member has the units from first to last. It writes the moments of its own units; after a barrier all combine them.
template <class T> struct Moments { // mean and 1 / standard deviation
  T *means, *squares, *counts;      // (members, rows)
  long rows, groups, width;

  Moments(long members, long rows, long groups, long width, T*& workspace)
      : means(workspace), squares(workspace + members * rows), counts(workspace + 2 * members * rows), rows(rows), groups(groups), width(width) {
    workspace += 3 * members * rows;
  }

  void accumulate(const Member& me, long row, const T* values, long first, long last) const {
    T sum = 0, square = 0;
    for (long group = 0; group < groups; group++) {
      const T* v = values + group * width;
      UNITS_INTO(sum, j) sum += v[j];
    }
    const T count = T(groups * std::max(0L, last - first)), mean = count > 0 ? sum / count : T(0);
    for (long group = 0; group < groups; group++) {
      const T* v = values + group * width;
      UNITS_INTO(square, j) square += (v[j] - mean) * (v[j] - mean);
    }
    const long at = me.rank * rows + row;
    means[at] = mean, squares[at] = square, counts[at] = count;
  }

  void combine(const Member& me, long row, T& mean, T& deviation) const { // Chan, Golub and LeVeque 1979
    T count = 0, square = 0;
    mean = 0;
    for (long at = row; at < me.size * rows; at += rows) {
      if (counts[at] == T(0)) continue;
      const T all = count + counts[at], apart = means[at] - mean;
      square += squares[at] + apart * apart * count * counts[at] / all;
      mean += apart * counts[at] / all;
      count = all;
    }
    deviation = T(1) / std::sqrt(square / count + T(1e-5)); // EPSILON in cell_operations.py
  }
};

// From the gradient of gain * normal + bias: those of what is normalised, of the gain and of the bias.
template <class T> struct NormBackward {
  const T *gain, *means, *deviations; // (groups * width,), (real steps,)
  T *d_gain, *d_bias;                 // d_bias may be null
  T *sums, *alongs;                   // (members, rows): sums of that gradient, and of its product with the normal
  long rows, groups, width;

  NormBackward(long members, long rows, const T* gain, const T* means, const T* deviations, T* d_gain, T* d_bias, long groups, long width, T*& workspace)
      : gain(gain), means(means), deviations(deviations), d_gain(d_gain), d_bias(d_bias), sums(workspace), alongs(workspace + members * rows), rows(rows),
        groups(groups), width(width) {
    workspace += 2 * members * rows;
  }

  void accumulate(const Member& me, long row, long at, const T* d, const T* values, long first, long last) const {
    const T mean = means[at], deviation = deviations[at];
    T sum = 0, along = 0;
    for (long group = 0; group < groups * width; group += width) {
      const T *d_g = d + group, *v = values + group, *g = gain + group;
      UNITS_INTO_BOTH(sum, along, j) {
        sum += d_g[j] * g[j];
        along += d_g[j] * g[j] * (v[j] - mean) * deviation;
      }
    }
    sums[me.rank * rows + row] = sum, alongs[me.rank * rows + row] = along;
  }

  // Writes to `to` (which may be d), or adds to it.
  template <bool ADD> void combine(const Member& me, long row, long at, const T* d, const T* values, T* to, long first, long last) const {
    const T mean = means[at], deviation = deviations[at], count = T(groups * width);
    T sum = 0, along = 0;
    for (long member = row; member < me.size * rows; member += rows) sum += sums[member] / count, along += alongs[member] / count;
    for (long group = 0; group < groups * width; group += width) {
      const T *d_g = d + group, *v = values + group, *g = gain + group;
      T *t = to + group, *of_gain = d_gain + group;
      if (d_bias) {
        T* of_bias = d_bias + group;
        UNITS(j) of_bias[j] += d_g[j];
      }
      UNITS(j) {
        const T normal = (v[j] - mean) * deviation, d_j = d_g[j];
        of_gain[j] += d_j * normal;
        t[j] = (ADD ? t[j] : T(0)) + deviation * (d_j * g[j] - sum - normal * along);
      }
    }
  }
};

template <class T> void lstm_forward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::forward(s.w[0], 4, width, s.outputs, workspace);
  auto project = Product<T>::forward(s.w_p, 1, s.outputs, s.w_p ? width : 0, workspace);
  const Rows<T> to_project = s.scratch(workspace);
  const Moments<T> of_x(me.size, s.rows, 4, width, workspace), of_h(me.size, s.rows, 4, width, workspace), of_c(me.size, s.rows, 1, width, workspace);
  by_h.pack(me);
  if (s.w_p) project.pack(me);
  s.forward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 4 * width), raw_h = s.rows_of(s.raw_h, step, 4 * width);
    const auto raw_x = s.rows_of(s.raw_x, step, 4 * width);
    const auto old_c = s.old_c(step), new_c = s.new_c(step), tanh_c = s.rows_of(s.saved[0], step, width);
    const auto h = s.w_p ? to_project : s.new_h(step);
    if (!s.gain_h) by_h(me, s.old_h(step), step.rows, gates, gates);
    else {
      by_h(me, s.old_h(step), step.rows, {nullptr, 0}, raw_h);
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_x.accumulate(me, row, raw_x[row], first, last);
        of_h.accumulate(me, row, raw_h[row], first, last);
      });
      me.sync();
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      if (s.gain_h) {
        const long at = step.at + row;
        T mean_x, deviation_x, mean_h, deviation_h;
        of_x.combine(me, row, mean_x, deviation_x);
        of_h.combine(me, row, mean_h, deviation_h);
        if (me.rank == 0) s.mean_x[at] = mean_x, s.deviation_x[at] = deviation_x, s.mean_h[at] = mean_h, s.deviation_h[at] = deviation_h;
        for (long gate = 0; gate < 4 * width; gate += width) {
          const T *x = raw_x[row] + gate, *h = raw_h[row] + gate, *gain_x = s.gain_x + gate, *gain_h = s.gain_h + gate, *b = s.b + gate;
          T* sums = gates[row] + gate;
          UNITS(j) sums[j] = (h[j] - mean_h) * deviation_h * gain_h[j] + ((x[j] - mean_x) * deviation_x * gain_x[j] + b[j]);
        }
      }
      T *i = gates[row], *f = i + width, *g = f + width, *o = g + width, *c = new_c[row], *tanh_row = tanh_c[row], *h_row = h[row];
      const T* old = old_c[row];
      UNITS(j) {
        i[j] = sigmoid(i[j]);
        f[j] = sigmoid(f[j]);
        g[j] = hyperbolic_tangent(g[j]);
        o[j] = sigmoid(o[j]);
        c[j] = f[j] * old[j] + i[j] * g[j];
      }
      if (!s.gain_c) UNITS(j) {
          tanh_row[j] = hyperbolic_tangent(c[j]);
          h_row[j] = o[j] * tanh_row[j];
        }
      else of_c.accumulate(me, row, c, first, last);
    });
    if (s.gain_c) {
      me.sync();
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        T mean, deviation;
        of_c.combine(me, row, mean, deviation);
        if (me.rank == 0) s.mean_c[step.at + row] = mean, s.deviation_c[step.at + row] = deviation;
        const T *c = new_c[row], *o = gates[row] + 3 * width, *gain = s.gain_c, *bias = s.bias_c;
        T *tanh_row = tanh_c[row], *h_row = h[row];
        UNITS(j) {
          tanh_row[j] = hyperbolic_tangent((c[j] - mean) * deviation * gain[j] + bias[j]);
          h_row[j] = o[j] * tanh_row[j];
        }
      });
    }
    me.sync();
    if (s.w_p) {
      project(me, to_project, step.rows, {nullptr, 0}, s.new_h(step));
      me.sync();
    }
  });
}

template <class T> void lstm_backward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::transposed(s.w[0], 4, width, s.outputs, workspace);
  auto project = Product<T>::transposed(s.w_p, 1, s.w_p ? s.outputs : 0, width, workspace);
  const Rows<T> unprojected = s.scratch(workspace), d_normal = s.scratch(workspace), d_state{s.d_h, s.outputs}, d_cell{s.d_c, width};
  const NormBackward<T> of_c(me.size, s.rows, s.gain_c, s.mean_c, s.deviation_c, s.d_gain_c, s.d_bias_c, 1, width, workspace);
  const NormBackward<T> of_h(me.size, s.rows, s.gain_h, s.mean_h, s.deviation_h, s.d_gain_h, nullptr, 4, width, workspace);
  const NormBackward<T> of_x(me.size, s.rows, s.gain_x, s.mean_x, s.deviation_x, s.d_gain_x, s.d_b, 4, width, workspace);
  by_h.pack(me);
  if (s.w_p) project.pack(me);
  s.backward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 4 * width), d_gates = s.rows_of(s.d_gates[0], step, 4 * width);
    const auto tanh_c = s.rows_of(s.saved[0], step, width), c = s.new_c(step), old_c = s.old_c(step);
    const auto d_y = s.d_y_of(step);
    const auto raw_x = s.rows_of(s.raw_x, step, 4 * width);
    const auto raw_h = s.rows_of(s.raw_h, step, 4 * width), d_raw_h = s.rows_of(s.d_raw_h, step, 4 * width);
    if (s.w_p) {
      const auto d_projected = s.rows_of(s.d_projected, step, s.outputs);
      each<T>(me, step.rows, s.outputs, [&](long row, long first, long last) {
        const T *d_h = d_state[row], *y = d_y[row];
        T* d = d_projected[row];
        UNITS(j) d[j] = d_h[j] + y[j];
      });
      me.sync();
      project(me, d_projected, step.rows, {nullptr, 0}, unprojected);
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *o = gates[row] + 3 * width, *tanh_row = tanh_c[row], *d_h = s.w_p ? unprojected[row] : d_state[row];
      const T* y = s.w_p ? nullptr : d_y[row];
      T *d_o = d_gates[row] + 3 * width, *d_c = d_cell[row], *d_n = d_normal[row];
      UNITS(j) {
        const T d = y ? d_h[j] + y[j] : d_h[j], through_h = tanh_backward(d * o[j], tanh_row[j]);
        d_o[j] = sigmoid_backward(d * tanh_row[j], o[j]);
        if (s.gain_c) d_n[j] = through_h;
        else d_c[j] += through_h;
      }
      if (s.gain_c) of_c.accumulate(me, row, step.at + row, d_n, c[row], first, last);
    });
    if (s.gain_c) {
      me.sync();
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_c.template combine<true>(me, row, step.at + row, d_normal[row], c[row], d_cell[row], first, last);
      });
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *i = gates[row], *f = i + width, *g = f + width, *old = old_c[row];
      T *d_i = d_gates[row], *d_f = d_i + width, *d_g = d_f + width, *d_c = d_cell[row];
      UNITS(j) {
        const T d = d_c[j], i_j = i[j], f_j = f[j], g_j = g[j];
        d_i[j] = sigmoid_backward(d * g_j, i_j);
        d_f[j] = sigmoid_backward(d * old[j], f_j);
        d_g[j] = tanh_backward(d * i_j, g_j);
        d_c[j] = d * f_j;
      }
      if (!s.gain_h) return;
      of_h.accumulate(me, row, step.at + row, d_i, raw_h[row], first, last);
      of_x.accumulate(me, row, step.at + row, d_i, raw_x[row], first, last);
    });
    me.sync();
    if (s.gain_h) {
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_h.template combine<false>(me, row, step.at + row, d_gates[row], raw_h[row], d_raw_h[row], first, last);
        of_x.template combine<false>(me, row, step.at + row, d_gates[row], raw_x[row], d_gates[row], first, last);
      });
      me.sync();
    }
    by_h(me, s.gain_h ? d_raw_h : d_gates, step.rows, {nullptr, 0}, d_state);
  });
}

// Shared by the cells with a reset gate: the gates and r ⊙ h, and the backward pass through that product.

template <class T> void gates_and_reset(const Member& me, long rows, long width, Rows<T> update, Rows<T> gate, Rows<T> old, Rows<T> reset) {
  each<T>(me, rows, width, [&](long row, long first, long last) {
    T *z = update[row], *r = gate[row], *r_h = reset[row];
    const T* h = old[row];
    UNITS(j) {
      z[j] = sigmoid(z[j]);
      r[j] = sigmoid(r[j]);
      r_h[j] = r[j] * h[j];
    }
  });
}

template <class T>
void reset_backward(const Member& me, long rows, long width, Rows<T> gate, Rows<T> old, Rows<T> d_reset, Rows<T> d_gate, Rows<T> d_state) {
  each<T>(me, rows, width, [&](long row, long first, long last) {
    const T *r = gate[row], *h = old[row], *d = d_reset[row];
    T *d_r = d_gate[row], *d_h = d_state[row];
    UNITS(j) {
      const T r_j = r[j];
      d_r[j] = sigmoid_backward(d[j] * h[j], r_j);
      d_h[j] += d[j] * r_j;
    }
  });
}

// Cho et al. 2014, as published

template <class T> void gru_forward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::forward(s.w[0], 2, width, width, workspace), by_reset = Product<T>::forward(s.w[1], 1, width, width, workspace);
  by_h.pack(me);
  by_reset.pack(me);
  s.forward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 2 * width), candidate = s.rows_of(s.gates[1], step, width);
    const auto reset = s.rows_of(s.saved[0], step, width), old = s.old_h(step), next = s.new_h(step);
    by_h(me, old, step.rows, gates, gates);
    gates_and_reset(me, step.rows, width, gates.columns(width), gates, old, reset);
    me.sync();
    by_reset(me, reset, step.rows, candidate, candidate);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = gates[row] + width, *h = old[row];
      T *c = candidate[row], *h_next = next[row];
      UNITS(j) {
        c[j] = hyperbolic_tangent(c[j]);
        h_next[j] = lerp(c[j], h[j], z[j]);
      }
    });
    me.sync();
  });
}

template <class T> void gru_backward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::transposed(s.w[0], 2, width, width, workspace), by_reset = Product<T>::transposed(s.w[1], 1, width, width, workspace);
  const Rows<T> d_reset = s.scratch(workspace), d_state{s.d_h, width};
  by_h.pack(me);
  by_reset.pack(me);
  s.backward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 2 * width), candidate = s.rows_of(s.gates[1], step, width), old = s.old_h(step);
    const auto d_gates = s.rows_of(s.d_gates[0], step, 2 * width), d_candidate = s.rows_of(s.d_gates[1], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = gates[row] + width, *c = candidate[row], *h = old[row], *y = d_y[row];
      T *d_z = d_gates[row] + width, *d_c = d_candidate[row], *d_h = d_state[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], z_j = z[j], c_j = c[j], through_h = d * z_j;
        d_z[j] = sigmoid_backward(d * (h[j] - c_j), z_j);
        d_c[j] = tanh_backward(d - through_h, c_j);
        d_h[j] = through_h;
      }
    });
    me.sync();
    by_reset(me, d_candidate, step.rows, {nullptr, 0}, d_reset);
    reset_backward(me, step.rows, width, gates, old, d_reset, d_gates, d_state);
    me.sync();
    by_h(me, d_gates, step.rows, d_state, d_state);
  });
}

// The GRU of torch.nn.GRU and cuDNN

template <class T> void gru_torch_forward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::forward(s.w[0], 2, width, width, workspace), to_candidate = Product<T>::forward(s.w[1], 1, width, width, workspace);
  by_h.pack(me);
  to_candidate.pack(me);
  s.forward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 2 * width), candidate = s.rows_of(s.gates[1], step, width);
    const auto of_h = s.rows_of(s.saved[0], step, width), old = s.old_h(step), next = s.new_h(step);
    by_h(me, old, step.rows, gates, gates);
    to_candidate(me, old, step.rows, {s.b_h, 0}, of_h);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      T *r = gates[row], *z = r + width, *c = candidate[row], *h_next = next[row];
      const T *of_row = of_h[row], *h = old[row];
      UNITS(j) {
        r[j] = sigmoid(r[j]);
        z[j] = sigmoid(z[j]);
        c[j] = hyperbolic_tangent(c[j] + r[j] * of_row[j]);
        h_next[j] = lerp(c[j], h[j], z[j]);
      }
    });
    me.sync();
  });
}

template <class T> void gru_torch_backward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width;
  auto by_h = Product<T>::transposed(s.w[0], 2, width, width, workspace), to_candidate = Product<T>::transposed(s.w[1], 1, width, width, workspace);
  const Rows<T> d_state{s.d_h, width};
  by_h.pack(me);
  to_candidate.pack(me);
  s.backward([&](auto step) {
    const auto gates = s.rows_of(s.gates[0], step, 2 * width), candidate = s.rows_of(s.gates[1], step, width), old = s.old_h(step);
    const auto d_gates = s.rows_of(s.d_gates[0], step, 2 * width), d_candidate = s.rows_of(s.d_gates[1], step, width);
    const auto of_h = s.rows_of(s.saved[0], step, width), d_of_h = s.rows_of(s.d_gates[2], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *r = gates[row], *z = r + width, *c = candidate[row], *h = old[row], *y = d_y[row], *of_row = of_h[row];
      T *d_r = d_gates[row], *d_z = d_r + width, *d_c = d_candidate[row], *d_h = d_state[row], *d_of = d_of_h[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], r_j = r[j], z_j = z[j], c_j = c[j], through_h = d * z_j, to_c = tanh_backward(d - through_h, c_j);
        d_z[j] = sigmoid_backward(d * (h[j] - c_j), z_j);
        d_r[j] = sigmoid_backward(to_c * of_row[j], r_j);
        d_of[j] = to_c * r_j;
        d_c[j] = to_c;
        d_h[j] = through_h;
      }
    });
    me.sync();
    by_h(me, d_gates, step.rows, d_state, d_state);
    to_candidate(me, d_of_h, step.rows, d_state, d_state);
  });
}

// Jozefowicz et al. 2015: three cells that differ in the inputs of z and r

template <class T, int MUT> void mut_forward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width, z_reads_h = MUT == 1 ? 0 : 1; // z of MUT1 does not read the state
  auto to_z = Product<T>::forward(s.w[0], 1, width, width, workspace), to_r = Product<T>::forward(s.w[z_reads_h], 1, width, width, workspace);
  auto by_reset = Product<T>::forward(s.w[z_reads_h + 1], 1, width, width, workspace);
  if (z_reads_h) to_z.pack(me);
  to_r.pack(me);
  by_reset.pack(me);
  const auto take_tanh = [&](Rows<T> h, Rows<T> tanh_h, long rows) {
    each<T>(me, rows, width, [&](long row, long first, long last) {
      const T* value = h[row];
      T* y = tanh_h[row];
      UNITS(j) y[j] = hyperbolic_tangent(value[j]);
    });
  };
  if (MUT == 3) {
    take_tanh({s.h, width}, {s.saved[1], width}, s.batch_sizes[0]);
    me.sync();
  }
  long number = 0;
  s.forward([&](auto step) {
    const auto update = s.rows_of(s.gates[0], step, width), gate = s.rows_of(s.gates[1], step, width);
    const auto candidate = s.rows_of(s.gates[2], step, width), reset = s.rows_of(s.saved[0], step, width);
    const auto old = s.old_h(step), next = s.new_h(step);
    if (MUT == 2) to_z(me, old, step.rows, update, update);
    if (MUT == 3) to_z(me, s.rows_of(s.saved[1], step, width), step.rows, update, update);
    to_r(me, old, step.rows, gate, gate);
    gates_and_reset(me, step.rows, width, update, gate, old, reset);
    me.sync();
    by_reset(me, reset, step.rows, candidate, candidate);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = update[row], *h = old[row];
      T *c = candidate[row], *h_next = next[row];
      UNITS(j) {
        c[j] = hyperbolic_tangent(c[j]);
        h_next[j] = lerp(h[j], c[j], z[j]);
      }
    });
    if (MUT == 3 && ++number < s.steps) take_tanh(next, {s.saved[1] + (step.at + step.rows) * width, width}, s.batch_sizes[number]);
    me.sync();
  });
}

template <class T, int MUT> void mut_backward(const Sequence<T>& s, const Member& me) {
  T* workspace = s.workspace;
  const long width = s.width, z_reads_h = MUT == 1 ? 0 : 1;
  auto to_z = Product<T>::transposed(s.w[0], 1, width, width, workspace), to_r = Product<T>::transposed(s.w[z_reads_h], 1, width, width, workspace);
  auto by_reset = Product<T>::transposed(s.w[z_reads_h + 1], 1, width, width, workspace);
  const Rows<T> d_input = s.scratch(workspace), d_state{s.d_h, width};
  if (z_reads_h) to_z.pack(me);
  to_r.pack(me);
  by_reset.pack(me);
  s.backward([&](auto step) {
    const auto update = s.rows_of(s.gates[0], step, width), gate = s.rows_of(s.gates[1], step, width);
    const auto candidate = s.rows_of(s.gates[2], step, width), old = s.old_h(step);
    const auto d_update = s.rows_of(s.d_gates[0], step, width), d_gate = s.rows_of(s.d_gates[1], step, width);
    const auto d_candidate = s.rows_of(s.d_gates[2], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = update[row], *c = candidate[row], *h = old[row], *y = d_y[row];
      T *d_z = d_update[row], *d_c = d_candidate[row], *d_h = d_state[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], z_j = z[j], c_j = c[j], to_candidate = d * z_j;
        d_z[j] = sigmoid_backward(d * (c_j - h[j]), z_j);
        d_c[j] = tanh_backward(to_candidate, c_j);
        d_h[j] = d - to_candidate;
      }
    });
    me.sync();
    by_reset(me, d_candidate, step.rows, {nullptr, 0}, d_input);
    reset_backward(me, step.rows, width, gate, old, d_input, d_gate, d_state);
    me.sync();
    to_r(me, d_gate, step.rows, d_state, d_state);
    if (MUT == 2) to_z(me, d_update, step.rows, d_state, d_state);
    if (MUT == 3) {
      to_z(me, d_update, step.rows, {nullptr, 0}, d_input);
      const auto tanh_h = s.rows_of(s.saved[1], step, width);
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        const T *value = tanh_h[row], *d = d_input[row];
        T* d_h = d_state[row];
        UNITS(j) d_h[j] += tanh_backward(d[j], value[j]);
      });
    }
  });
}

} // namespace seqloom
