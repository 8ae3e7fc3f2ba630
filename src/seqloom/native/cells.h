// The cells of seqloom/layers/cells.py, with the equations that stand there: forward, and backward by hand.
//
// What goes back may be written over what is read there, unit by unit, so a unit's values are read before any is written.
//
// Each is what one member of a team does. It owns a share of the units of every gate, and meets the others wherever a
// product needs all units of what they made.
#pragma once

#include "sequence.h"

namespace seqloom {

// Elman 1990

template <class T, class G> void elman_ahead(const Sequence<T>& s, const Member& me, G g) {
  T* room = s.room;
  auto by_h = Product<T>::ahead(s.w[0], 1, s.width, s.width, room);
  by_h.pack(me);
  s.ahead([&](auto step) {
    const auto x = s.rows_of(s.part[0], step, s.width), h = s.new_h(step);
    by_h(me, s.old_h(step), step.rows, x, h);
    each<T>(me, step.rows, s.width, [&](long row, long first, long last) {
      T* h_row = h[row];
      UNITS(j) h_row[j] = g(h_row[j]);
    });
    me.meet();
  });
}

template <class T, class G> void elman_back(const Sequence<T>& s, const Member& me, G slope) {
  T* room = s.room;
  auto by_h = Product<T>::back(s.w[0], 1, s.width, s.width, room);
  by_h.pack(me);
  const Rows<T> d_state{s.d_h, s.width};
  s.back([&](auto step) {
    const auto h = s.new_h(step), d_x = s.rows_of(s.d_part[0], step, s.width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, s.width, [&](long row, long first, long last) {
      const T *d_h = d_state[row], *y = d_y[row], *value = h[row];
      T* d = d_x[row];
      UNITS(j) d[j] = slope(d_h[j] + y[j], value[j]);
    });
    me.meet();
    by_h(me, d_x, step.rows, {nullptr, 0}, d_state);
  });
}

// Hochreiter and Schmidhuber 1997, Gers 2000; with a projection Sak et al. 2014; layer-normalised Ba et al. 2016

// Layer normalisation of rows whose features the members share. A row's values lie in groups, `width` apart, of which a
// member has the units from first to last: it tells what it knows of its own, and after a meeting all find the whole.
template <class T> struct Moments { // mean and 1 / standard deviation
  T *means, *squares, *counts;      // (members, rows)
  long rows, groups, width;

  Moments(long members, long rows, long groups, long width, T*& room)
      : means(room), squares(room + members * rows), counts(room + 2 * members * rows), rows(rows), groups(groups), width(width) {
    room += 3 * members * rows;
  }

  void tell(const Member& me, long row, const T* values, long first, long last) const {
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

  void find(const Member& me, long row, T& mean, T& deviation) const { // Chan, Golub and LeVeque 1979
    T count = 0, square = 0;
    mean = 0;
    for (long at = row; at < me.size * rows; at += rows) {
      if (counts[at] == T(0)) continue;
      const T all = count + counts[at], apart = means[at] - mean;
      square += squares[at] + apart * apart * count * counts[at] / all;
      mean += apart * counts[at] / all;
      count = all;
    }
    deviation = T(1) / std::sqrt(square / count + T(1e-5)); // EPSILON in recurrence.py
  }
};

template <class T> struct NormBack { // the gradients of what is normalised, of the gain and the bias, from that of gain * normal + bias
  const T *gain, *means, *deviations; // (groups * width,), (true steps,)
  T *d_gain, *d_bias;                 // the second may be none
  T *sums, *alongs;                   // (members, rows): of that gradient, and of it along the normal
  long rows, groups, width;

  NormBack(long members, long rows, const T* gain, const T* means, const T* deviations, T* d_gain, T* d_bias, long groups, long width, T*& room)
      : gain(gain), means(means), deviations(deviations), d_gain(d_gain), d_bias(d_bias), sums(room), alongs(room + members * rows), rows(rows),
        groups(groups), width(width) {
    room += 2 * members * rows;
  }

  void tell(const Member& me, long row, long at, const T* d, const T* values, long first, long last) const {
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

  // Into `to` (which may be d), or added to what is there.
  template <bool ADD> void find(const Member& me, long row, long at, const T* d, const T* values, T* to, long first, long last) const {
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

template <class T> void lstm_ahead(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::ahead(s.w[0], 4, width, s.outputs, room);
  auto project = Product<T>::ahead(s.w_p, 1, s.outputs, s.w_p ? width : 0, room);
  const Rows<T> to_project = s.scratch(room);
  const Moments<T> of_x(me.size, s.rows, 4, width, room), of_h(me.size, s.rows, 4, width, room), of_c(me.size, s.rows, 1, width, room);
  by_h.pack(me);
  if (s.w_p) project.pack(me);
  s.ahead([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 4 * width), raw_h = s.rows_of(s.raw_h, step, 4 * width);
    const auto raw_x = s.rows_of(s.raw_x, step, 4 * width);
    const auto old_c = s.old_c(step), new_c = s.new_c(step), tanh_c = s.rows_of(s.kept[0], step, width);
    const auto h = s.w_p ? to_project : s.new_h(step);
    if (!s.gain_h) by_h(me, s.old_h(step), step.rows, gates, gates);
    else {
      by_h(me, s.old_h(step), step.rows, {nullptr, 0}, raw_h);
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_x.tell(me, row, raw_x[row], first, last);
        of_h.tell(me, row, raw_h[row], first, last);
      });
      me.meet();
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      if (s.gain_h) {
        const long at = step.at + row;
        T mean_x, deviation_x, mean_h, deviation_h;
        of_x.find(me, row, mean_x, deviation_x);
        of_h.find(me, row, mean_h, deviation_h);
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
      else of_c.tell(me, row, c, first, last);
    });
    if (s.gain_c) {
      me.meet();
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        T mean, deviation;
        of_c.find(me, row, mean, deviation);
        if (me.rank == 0) s.mean_c[step.at + row] = mean, s.deviation_c[step.at + row] = deviation;
        const T *c = new_c[row], *o = gates[row] + 3 * width, *gain = s.gain_c, *bias = s.bias_c;
        T *tanh_row = tanh_c[row], *h_row = h[row];
        UNITS(j) {
          tanh_row[j] = hyperbolic_tangent((c[j] - mean) * deviation * gain[j] + bias[j]);
          h_row[j] = o[j] * tanh_row[j];
        }
      });
    }
    me.meet();
    if (s.w_p) {
      project(me, to_project, step.rows, {nullptr, 0}, s.new_h(step));
      me.meet();
    }
  });
}

template <class T> void lstm_back(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::back(s.w[0], 4, width, s.outputs, room);
  auto project = Product<T>::back(s.w_p, 1, s.w_p ? s.outputs : 0, width, room);
  const Rows<T> unprojected = s.scratch(room), d_normal = s.scratch(room), d_state{s.d_h, s.outputs}, d_cell{s.d_c, width};
  const NormBack<T> of_c(me.size, s.rows, s.gain_c, s.mean_c, s.deviation_c, s.d_gain_c, s.d_bias_c, 1, width, room);
  const NormBack<T> of_h(me.size, s.rows, s.gain_h, s.mean_h, s.deviation_h, s.d_gain_h, nullptr, 4, width, room);
  const NormBack<T> of_x(me.size, s.rows, s.gain_x, s.mean_x, s.deviation_x, s.d_gain_x, s.d_b, 4, width, room);
  by_h.pack(me);
  if (s.w_p) project.pack(me);
  s.back([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 4 * width), d_gates = s.rows_of(s.d_part[0], step, 4 * width);
    const auto tanh_c = s.rows_of(s.kept[0], step, width), c = s.new_c(step), old_c = s.old_c(step);
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
      me.meet();
      project(me, d_projected, step.rows, {nullptr, 0}, unprojected);
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *o = gates[row] + 3 * width, *tanh_row = tanh_c[row], *d_h = s.w_p ? unprojected[row] : d_state[row];
      const T* y = s.w_p ? nullptr : d_y[row];
      T *d_o = d_gates[row] + 3 * width, *d_c = d_cell[row], *d_n = d_normal[row];
      UNITS(j) {
        const T d = y ? d_h[j] + y[j] : d_h[j], through_h = tanh_slope(d * o[j], tanh_row[j]);
        d_o[j] = sigmoid_slope(d * tanh_row[j], o[j]);
        if (s.gain_c) d_n[j] = through_h;
        else d_c[j] += through_h;
      }
      if (s.gain_c) of_c.tell(me, row, step.at + row, d_n, c[row], first, last);
    });
    if (s.gain_c) {
      me.meet();
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_c.template find<true>(me, row, step.at + row, d_normal[row], c[row], d_cell[row], first, last);
      });
    }
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *i = gates[row], *f = i + width, *g = f + width, *old = old_c[row];
      T *d_i = d_gates[row], *d_f = d_i + width, *d_g = d_f + width, *d_c = d_cell[row];
      UNITS(j) {
        const T d = d_c[j], i_j = i[j], f_j = f[j], g_j = g[j];
        d_i[j] = sigmoid_slope(d * g_j, i_j);
        d_f[j] = sigmoid_slope(d * old[j], f_j);
        d_g[j] = tanh_slope(d * i_j, g_j);
        d_c[j] = d * f_j;
      }
      if (!s.gain_h) return;
      of_h.tell(me, row, step.at + row, d_i, raw_h[row], first, last);
      of_x.tell(me, row, step.at + row, d_i, raw_x[row], first, last);
    });
    me.meet();
    if (s.gain_h) {
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        of_h.template find<false>(me, row, step.at + row, d_gates[row], raw_h[row], d_raw_h[row], first, last);
        of_x.template find<false>(me, row, step.at + row, d_gates[row], raw_x[row], d_gates[row], first, last);
      });
      me.meet();
    }
    by_h(me, s.gain_h ? d_raw_h : d_gates, step.rows, {nullptr, 0}, d_state);
  });
}

// What the cells with a reset gate share: the gates and r ⊙ h, and the way back through that.

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
void reset_back(const Member& me, long rows, long width, Rows<T> gate, Rows<T> old, Rows<T> d_reset, Rows<T> d_gate, Rows<T> d_state) {
  each<T>(me, rows, width, [&](long row, long first, long last) {
    const T *r = gate[row], *h = old[row], *d = d_reset[row];
    T *d_r = d_gate[row], *d_h = d_state[row];
    UNITS(j) {
      const T r_j = r[j];
      d_r[j] = sigmoid_slope(d[j] * h[j], r_j);
      d_h[j] += d[j] * r_j;
    }
  });
}

// Cho et al. 2014, as published

template <class T> void gru_ahead(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::ahead(s.w[0], 2, width, width, room), by_reset = Product<T>::ahead(s.w[1], 1, width, width, room);
  by_h.pack(me);
  by_reset.pack(me);
  s.ahead([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 2 * width), candidate = s.rows_of(s.part[1], step, width);
    const auto reset = s.rows_of(s.kept[0], step, width), old = s.old_h(step), next = s.new_h(step);
    by_h(me, old, step.rows, gates, gates);
    gates_and_reset(me, step.rows, width, gates.columns(width), gates, old, reset);
    me.meet();
    by_reset(me, reset, step.rows, candidate, candidate);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = gates[row] + width, *h = old[row];
      T *c = candidate[row], *h_next = next[row];
      UNITS(j) {
        c[j] = hyperbolic_tangent(c[j]);
        h_next[j] = lerp(c[j], h[j], z[j]);
      }
    });
    me.meet();
  });
}

template <class T> void gru_back(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::back(s.w[0], 2, width, width, room), by_reset = Product<T>::back(s.w[1], 1, width, width, room);
  const Rows<T> d_reset = s.scratch(room), d_state{s.d_h, width};
  by_h.pack(me);
  by_reset.pack(me);
  s.back([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 2 * width), candidate = s.rows_of(s.part[1], step, width), old = s.old_h(step);
    const auto d_gates = s.rows_of(s.d_part[0], step, 2 * width), d_candidate = s.rows_of(s.d_part[1], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = gates[row] + width, *c = candidate[row], *h = old[row], *y = d_y[row];
      T *d_z = d_gates[row] + width, *d_c = d_candidate[row], *d_h = d_state[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], z_j = z[j], c_j = c[j], through_h = d * z_j;
        d_z[j] = sigmoid_slope(d * (h[j] - c_j), z_j);
        d_c[j] = tanh_slope(d - through_h, c_j);
        d_h[j] = through_h;
      }
    });
    me.meet();
    by_reset(me, d_candidate, step.rows, {nullptr, 0}, d_reset);
    reset_back(me, step.rows, width, gates, old, d_reset, d_gates, d_state);
    me.meet();
    by_h(me, d_gates, step.rows, d_state, d_state);
  });
}

// The same as in torch.nn.GRU and cuDNN

template <class T> void gru_torch_ahead(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::ahead(s.w[0], 2, width, width, room), to_candidate = Product<T>::ahead(s.w[1], 1, width, width, room);
  by_h.pack(me);
  to_candidate.pack(me);
  s.ahead([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 2 * width), candidate = s.rows_of(s.part[1], step, width);
    const auto of_h = s.rows_of(s.kept[0], step, width), old = s.old_h(step), next = s.new_h(step);
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
    me.meet();
  });
}

template <class T> void gru_torch_back(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width;
  auto by_h = Product<T>::back(s.w[0], 2, width, width, room), to_candidate = Product<T>::back(s.w[1], 1, width, width, room);
  const Rows<T> d_state{s.d_h, width};
  by_h.pack(me);
  to_candidate.pack(me);
  s.back([&](auto step) {
    const auto gates = s.rows_of(s.part[0], step, 2 * width), candidate = s.rows_of(s.part[1], step, width), old = s.old_h(step);
    const auto d_gates = s.rows_of(s.d_part[0], step, 2 * width), d_candidate = s.rows_of(s.d_part[1], step, width);
    const auto of_h = s.rows_of(s.kept[0], step, width), d_of_h = s.rows_of(s.d_part[2], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *r = gates[row], *z = r + width, *c = candidate[row], *h = old[row], *y = d_y[row], *of_row = of_h[row];
      T *d_r = d_gates[row], *d_z = d_r + width, *d_c = d_candidate[row], *d_h = d_state[row], *d_of = d_of_h[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], r_j = r[j], z_j = z[j], c_j = c[j], through_h = d * z_j, to_c = tanh_slope(d - through_h, c_j);
        d_z[j] = sigmoid_slope(d * (h[j] - c_j), z_j);
        d_r[j] = sigmoid_slope(to_c * of_row[j], r_j);
        d_of[j] = to_c * r_j;
        d_c[j] = to_c;
        d_h[j] = through_h;
      }
    });
    me.meet();
    by_h(me, d_gates, step.rows, d_state, d_state);
    to_candidate(me, d_of_h, step.rows, d_state, d_state);
  });
}

// Jozefowicz et al. 2015: three that differ in what feeds z and r

template <class T, int MUT> void mut_ahead(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width, fed = MUT == 1 ? 0 : 1; // z of the first is not fed by the state
  auto to_z = Product<T>::ahead(s.w[0], 1, width, width, room), to_r = Product<T>::ahead(s.w[fed], 1, width, width, room);
  auto by_reset = Product<T>::ahead(s.w[fed + 1], 1, width, width, room);
  if (fed) to_z.pack(me);
  to_r.pack(me);
  by_reset.pack(me);
  const auto squash = [&](Rows<T> h, Rows<T> squashed, long rows) {
    each<T>(me, rows, width, [&](long row, long first, long last) {
      const T* value = h[row];
      T* y = squashed[row];
      UNITS(j) y[j] = hyperbolic_tangent(value[j]);
    });
  };
  if (MUT == 3) {
    squash({s.h, width}, {s.kept[1], width}, s.sizes[0]);
    me.meet();
  }
  long number = 0;
  s.ahead([&](auto step) {
    const auto update = s.rows_of(s.part[0], step, width), gate = s.rows_of(s.part[1], step, width);
    const auto candidate = s.rows_of(s.part[2], step, width), reset = s.rows_of(s.kept[0], step, width);
    const auto old = s.old_h(step), next = s.new_h(step);
    if (MUT == 2) to_z(me, old, step.rows, update, update);
    if (MUT == 3) to_z(me, s.rows_of(s.kept[1], step, width), step.rows, update, update);
    to_r(me, old, step.rows, gate, gate);
    gates_and_reset(me, step.rows, width, update, gate, old, reset);
    me.meet();
    by_reset(me, reset, step.rows, candidate, candidate);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = update[row], *h = old[row];
      T *c = candidate[row], *h_next = next[row];
      UNITS(j) {
        c[j] = hyperbolic_tangent(c[j]);
        h_next[j] = lerp(h[j], c[j], z[j]);
      }
    });
    if (MUT == 3 && ++number < s.steps) squash(next, {s.kept[1] + (step.at + step.rows) * width, width}, s.sizes[number]);
    me.meet();
  });
}

template <class T, int MUT> void mut_back(const Sequence<T>& s, const Member& me) {
  T* room = s.room;
  const long width = s.width, fed = MUT == 1 ? 0 : 1;
  auto to_z = Product<T>::back(s.w[0], 1, width, width, room), to_r = Product<T>::back(s.w[fed], 1, width, width, room);
  auto by_reset = Product<T>::back(s.w[fed + 1], 1, width, width, room);
  const Rows<T> d_fed = s.scratch(room), d_state{s.d_h, width};
  if (fed) to_z.pack(me);
  to_r.pack(me);
  by_reset.pack(me);
  s.back([&](auto step) {
    const auto update = s.rows_of(s.part[0], step, width), gate = s.rows_of(s.part[1], step, width);
    const auto candidate = s.rows_of(s.part[2], step, width), old = s.old_h(step);
    const auto d_update = s.rows_of(s.d_part[0], step, width), d_gate = s.rows_of(s.d_part[1], step, width);
    const auto d_candidate = s.rows_of(s.d_part[2], step, width);
    const auto d_y = s.d_y_of(step);
    each<T>(me, step.rows, width, [&](long row, long first, long last) {
      const T *z = update[row], *c = candidate[row], *h = old[row], *y = d_y[row];
      T *d_z = d_update[row], *d_c = d_candidate[row], *d_h = d_state[row];
      UNITS(j) {
        const T d = d_h[j] + y[j], z_j = z[j], c_j = c[j], to_candidate = d * z_j;
        d_z[j] = sigmoid_slope(d * (c_j - h[j]), z_j);
        d_c[j] = tanh_slope(to_candidate, c_j);
        d_h[j] = d - to_candidate;
      }
    });
    me.meet();
    by_reset(me, d_candidate, step.rows, {nullptr, 0}, d_fed);
    reset_back(me, step.rows, width, gate, old, d_fed, d_gate, d_state);
    me.meet();
    to_r(me, d_gate, step.rows, d_state, d_state);
    if (MUT == 2) to_z(me, d_update, step.rows, d_state, d_state);
    if (MUT == 3) {
      to_z(me, d_update, step.rows, {nullptr, 0}, d_fed);
      const auto tanh_h = s.rows_of(s.kept[1], step, width);
      each<T>(me, step.rows, width, [&](long row, long first, long last) {
        const T *value = tanh_h[row], *d = d_fed[row];
        T* d_h = d_state[row];
        UNITS(j) d_h[j] += tanh_slope(d[j], value[j]);
      });
    }
  });
}

} // namespace seqloom
