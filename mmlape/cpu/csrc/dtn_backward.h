// The backward pass of DTN in parts, each for one row or column of cells: see dtn.cpp for the arrays.

#ifndef MMLAPE_DTN_BACKWARD_H
#define MMLAPE_DTN_BACKWARD_H

#include <cstdint>
#include <memory>

#include "dtn_forward.h"

namespace {

template <typename T>
struct Gradients {
  const T* out;
  T *x, *row_maps, *column_maps;  // of maps: (batch, heads, A, A) and (batch, heads, E, E), zeros at first
  T *mean_ratio, *var_ratio, *weight, *bias;
};

// What the backward pass sums over tokens, for each row of cells: (3 C + 2 heads).
template <typename T>
struct Sums {
  T *weight, *bias, *along, *means, *vars;
  Sums(T* memory, int64_t channels, int64_t heads)
      : weight(memory), bias(weight + channels), along(bias + channels), means(along + channels), vars(means + heads) {}
  static int64_t size(int64_t channels, int64_t heads) { return 3 * channels + 2 * heads; }
};

template <typename T>
struct Scratch {
  std::unique_ptr<T[]> inter, tokens, sums;  // (batch, heads, E, A, 2, depth), (batch, T, 2), (batch, A, Sums::size)
};

// Gradients with respect to -mu and -2 var of eq. 4, of the tokens of a row of cells, and all sums over them.
template <typename T>
struct ToStatistics {
  const Call<T>& call;
  const Gradients<T>& grad;
  const Scratch<T>& scratch;

  INLINE T* inter(int64_t b, int64_t h, int64_t a, int64_t e) const {
    return scratch.inter.get() + (b * call.n.heads + h) * call.pairs + (e * call.rows + a) * 2 * call.n.depth;
  }

  INLINE void operator()(int64_t i) const {
    const Grid& n = call.n;
    const int64_t b = i / call.rows, a = i % call.rows, size = Sums<T>::size(call.channels, n.heads);
    T* const memory = scratch.sums.get() + i * size;
    for (int64_t k = 0; k < size; ++k) memory[k] = 0;
    for (int64_t h = 0; h < n.heads; ++h)
      for (int64_t e = 0; e < call.columns; ++e)
        for (int64_t k = 0; k < 2 * n.depth; ++k) inter(b, h, a, e)[k] = 0;
    const Sums<T> sums(memory, call.channels, n.heads);
    call.each_token(a, [&](int64_t token, int64_t e) INLINE_LAMBDA {
      const T* const own = call.own(b, token);
      T slope = 0, shift = 0;
      for (int64_t h = 0; h < n.heads; ++h) {
        T rows[2];
        head(b, h, a, e, token, sums, rows);
        sums.means[h] += own[n.heads] * rows[0];
        sums.vars[h] += own[n.heads + 1] * rows[1];
        shift -= rows[0] * call.in.mean_ratio[h];
        slope -= rows[1] * call.in.var_ratio[h];
      }
      T* const line = scratch.tokens.get() + (b * call.tokens + token) * 2;
      line[0] = slope / call.freedom();
      line[1] = shift / T(call.channels) - line[0] * own[n.heads];
    });
  }

  // A head of a token; `rows` are its sums.
  INLINE void head(int64_t b, int64_t h, int64_t a, int64_t e, int64_t token, const Sums<T>& sums, T* rows) const {
    const Grid& n = call.n;
    const int64_t depth = n.depth, first = h * depth, at = (b * call.tokens + token) * call.channels + first;
    const T* const own = call.own(b, token);
    const T mean_ratio = call.in.mean_ratio[h], var_ratio = call.in.var_ratio[h], factor = own[h];
    const T own_mean = mean_ratio * own[n.heads], own_var = var_ratio * own[n.heads + 1];
    const T *const pair = call.pair(b, h, a, e), *const x = call.in.x + at, *const out = grad.out + at;
    const T* const weight = call.in.weight + first;
    T *const to_x = grad.x + at, *const to_pair = inter(b, h, a, e);
    T *const to_weight = sums.weight + first, *const to_bias = sums.bias + first, *const along = sums.along + first;
    T means = 0, vars = 0;
#pragma omp simd reduction(+ : means, vars)
    for (int64_t d = 0; d < depth; ++d) {
      const T mean = own_mean + (1 - mean_ratio) * pair[d];
      const T inv_std = 1 / root(own_var + (1 - var_ratio) * pair[depth + d]);
      const T value = x[d] * factor, normed = (value - mean) * inv_std;
      const T to_mean = out[d] * weight[d] * inv_std, to_var = normed * inv_std * to_mean;
      to_weight[d] += out[d] * normed;
      to_bias[d] += out[d];
      along[d] += to_mean * value;
      to_x[d] = to_mean;
      to_pair[d] += to_mean;
      to_pair[depth + d] += to_var;
      means += to_mean;
      vars += to_var;
    }
    rows[0] = means;
    rows[1] = vars;
  }
};

// Gradients of column `e` of head `head` with respect to what the maps made of values and squares.
template <typename T>
struct ToProducts {
  const Call<T>& call;
  int64_t head;
  T* inter;  // (E, A, 2, depth)

  INLINE void operator()(int64_t e) const {
    const int64_t depth = call.n.depth, h = head % call.n.heads;
    const T to_mean = call.in.mean_ratio[h] - 1, to_var = (call.in.var_ratio[h] - 1) / 2;
    const T* const centre = call.in.centre + head * depth;
    for (int64_t a = 0; a < call.rows; ++a) {
      const T* const mean = call.in.inter + head * call.pairs + (a * call.columns + e) * 2 * depth;
      T* const to = inter + (e * call.rows + a) * 2 * depth;
#pragma omp simd
      for (int64_t d = 0; d < depth; ++d) {
        to[depth + d] *= to_var;
        to[d] = to[d] * to_mean - 2 * (mean[d] - centre[d]) * to[depth + d];
      }
    }
  }
};

// From gradients with respect to values and squares (E, A, 2, depth) to those of a row of cells, in place of the
// former; divided by how many tokens a cell has.
template <typename T>
struct ToCells {
  const Call<T>& call;
  const T* pairs;
  T* inter;

  INLINE void operator()(int64_t a) const {
    const int64_t depth = call.n.depth;
    for (int64_t e = 0; e < call.columns; ++e) {
      const T share = 1 / call.count(a, e);
      const T* const z = pairs + (a * call.columns + e) * 2 * depth;
      T* const to = inter + (e * call.rows + a) * 2 * depth;
#pragma omp simd
      for (int64_t d = 0; d < depth; ++d) to[d] = (to[d] + 2 * z[d] * to[depth + d]) * share;
    }
  }
};

// The gradient of the tokens of a row of cells.
template <typename T>
struct ToTokens {
  const ToStatistics<T>& made;

  INLINE void operator()(int64_t i) const {
    const Call<T>& call = made.call;
    const Grid& n = call.n;
    const int64_t b = i / call.rows, a = i % call.rows, depth = n.depth;
    call.each_token(a, [&](int64_t token, int64_t e) INLINE_LAMBDA {
      const T* const line = made.scratch.tokens.get() + (b * call.tokens + token) * 2;
      const T slope = line[0], shift = line[1];
      for (int64_t h = 0; h < n.heads; ++h) {
        const int64_t at = (b * call.tokens + token) * call.channels + h * depth;
        const T *const x = call.in.x + at, *const cell = made.inter(b, h, a, e), factor = call.own(b, token)[h];
        T* const to = made.grad.x + at;
        T along = 0;
#pragma omp simd reduction(+ : along)
        for (int64_t d = 0; d < depth; ++d) {
          const T value = x[d] * factor;
          to[d] += slope * value + shift + cell[d];
          along += to[d] * value;
        }
        if (!n.stabilize) continue;
        along *= factor / T(depth);
#pragma omp simd
        for (int64_t d = 0; d < depth; ++d) to[d] = factor * (to[d] - x[d] * along);
      }
    });
  }
};

}  // namespace

#endif
