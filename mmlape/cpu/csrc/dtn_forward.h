// The forward pass of DTN in parts, each for one row of cells of an image, or for one head: see dtn.cpp for the arrays.

#ifndef MMLAPE_DTN_FORWARD_H
#define MMLAPE_DTN_FORWARD_H

#include <cstdint>

#include "processors.h"

namespace {

struct Grid {
  int64_t batch, height, width, pool, heads, depth, row_maps, column_maps, stabilize;
};

INLINE float root(float x) { return __builtin_sqrtf(x); }
INLINE double root(double x) { return __builtin_sqrt(x); }

template <typename T>
struct Arrays {
  const T *x, *row_maps, *column_maps, *mean_ratio, *var_ratio, *weight;
  T *own, *cells, *centre, *inter;
};

template <typename T>
struct Call {
  Grid n;
  T eps;
  Arrays<T> in;
  int64_t rows = (n.height + n.pool - 1) / n.pool, columns = (n.width + n.pool - 1) / n.pool;
  int64_t tokens = n.height * n.width, channels = n.heads * n.depth;
  int64_t pairs = rows * columns * 2 * n.depth;  // of a head

  Call(const int64_t* sizes, double eps, T* const* arrays)
      : n(*reinterpret_cast<const Grid*>(sizes)), eps(T(eps)), in(*reinterpret_cast<const Arrays<T>*>(arrays)) {}

  T* own(int64_t b, int64_t token) const { return in.own + (b * tokens + token) * (n.heads + 2); }
  const T* pair(int64_t b, int64_t h, int64_t a, int64_t e) const {
    return in.inter + (b * n.heads + h) * pairs + (a * columns + e) * 2 * n.depth;
  }

  // What own statistics are divided by, for gradients.
  T freedom() const { return T(n.stabilize && channels > 1 ? channels - 1 : channels); }

  // Calls each(token, e) for the tokens of row `a` of cells.
  template <typename Each>
  INLINE void each_token(int64_t a, const Each& each) const {
    const int64_t below = (a + 1) * n.pool < n.height ? (a + 1) * n.pool : n.height;
    for (int64_t y = a * n.pool; y < below; ++y)
      for (int64_t e = 0; e < columns; ++e) {
        const int64_t right = (e + 1) * n.pool < n.width ? (e + 1) * n.pool : n.width;
        for (int64_t x = e * n.pool; x < right; ++x) each(y * n.width + x, e);
      }
  }

  T count(int64_t a, int64_t e) const {
    const int64_t height = n.height - a * n.pool, width = n.width - e * n.pool;
    return T((height < n.pool ? height : n.pool) * (width < n.pool ? width : n.pool));
  }
};

// Own statistics of the tokens of a row of cells, and the cells.
template <typename T>
struct Describe {
  const Call<T>& call;

  INLINE void operator()(int64_t i) const {
    const Grid& n = call.n;
    const int64_t b = i / call.rows, a = i % call.rows, row = call.columns * call.channels;
    T* const cells = n.pool > 1 ? call.in.cells + i * row : nullptr;
    if (cells)
      for (int64_t c = 0; c < row; ++c) cells[c] = 0;
    call.each_token(a, [&](int64_t token, int64_t e) INLINE_LAMBDA {
      const T* const x = call.in.x + (b * call.tokens + token) * call.channels;
      T* const own = call.own(b, token);
      const T square = factors(x, own);
      add(x, own, cells ? cells + e * call.channels : nullptr, square);
    });
    if (cells)
      for (int64_t e = 0; e < call.columns; ++e) {
        const T share = 1 / call.count(a, e);
        for (int64_t c = 0; c < call.channels; ++c) cells[e * call.channels + c] *= share;
      }
  }

  // One over the root mean square of each head, or one. Returns the mean square of what they make of the token.
  INLINE T factors(const T* x, T* own) const {
    const Grid& n = call.n;
    T all = 0;
    for (int64_t h = 0; h < n.heads; ++h) {
      own[h] = 1;
      if (!n.stabilize) continue;
      T square = 0;
#pragma omp simd reduction(+ : square)
      for (int64_t d = 0; d < n.depth; ++d) square += x[h * n.depth + d] * x[h * n.depth + d];
      square /= T(n.depth);
      own[h] = 1 / root(square + call.eps);
      if (own[h] != 0) all += square * own[h] * own[h];  // else the square of a large finite value overflows
    }
    return all / T(n.heads);
  }

  // The token's mean and variance, which for heads of known mean square (at most 1) follows from it; otherwise two
  // passes are made, which large means do not harm.
  INLINE void add(const T* x, T* own, T* cell, T square) const {
    const Grid& n = call.n;
    T sum = 0;
    for (int64_t h = 0; h < n.heads; ++h) {
      const T factor = own[h];
      const T* const from = x + h * n.depth;
      if (cell) {
        T* const into = cell + h * n.depth;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < n.depth; ++d) {
          sum += from[d] * factor;
          into[d] += from[d] * factor;
        }
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < n.depth; ++d) sum += from[d] * factor;
      }
    }
    const T mean = sum / T(call.channels);
    T var = square - mean * mean;
    if (n.stabilize) {
      var = (var < 0 ? 0 : var) * (T(call.channels) / call.freedom());
    } else {
      var = 0;
#pragma omp simd reduction(+ : var)
      for (int64_t c = 0; c < call.channels; ++c) var += (x[c] - mean) * (x[c] - mean);
      var /= T(call.channels);
    }
    own[n.heads] = mean;
    own[n.heads + 1] = var + call.eps;
  }
};

// The values of cells of a head.
template <typename T>
struct Cells {
  const Call<T>& call;
  int64_t b, h;

  // Calls each(value, place) for the cells of row `a`: depth values that count `factor` times.
  template <typename Each>
  INLINE void of_row(int64_t a, const Each& each) const {
    const Grid& n = call.n;
    for (int64_t e = 0; e < call.columns; ++e) {
      const int64_t cell = a * call.columns + e;
      const T* const from = n.pool > 1 ? call.in.cells : call.in.x;
      const T* const values = from + (b * call.rows * call.columns + cell) * call.channels + h * n.depth;
      each(values, n.pool > 1 ? T(1) : call.own(b, cell)[h], e);
    }
  }
};

// Mean of the cells of head `i`, row by row, so that long sums stay exact.
template <typename T>
struct Centre {
  const Call<T>& call;
  T* sum;  // (depth) of this thread

  INLINE void operator()(int64_t i) const {
    const int64_t depth = call.n.depth;
    const Cells<T> cells{call, i / call.n.heads, i % call.n.heads};
    T* const centre = call.in.centre + i * depth;
    for (int64_t d = 0; d < depth; ++d) centre[d] = 0;
    for (int64_t a = 0; a < call.rows; ++a) {
      for (int64_t d = 0; d < depth; ++d) sum[d] = 0;
      cells.of_row(a, [&](const T* values, T factor, int64_t) INLINE_LAMBDA {
#pragma omp simd
        for (int64_t d = 0; d < depth; ++d) sum[d] += values[d] * factor;
      });
      for (int64_t d = 0; d < depth; ++d) centre[d] += sum[d] / T(call.columns * call.rows);
    }
  }
};

// Values from the centre, and their squares, (A, E, 2, depth), of row `a` of head `head`.
template <typename T>
struct Pairs {
  const Call<T>& call;
  int64_t head;
  T* pairs;

  INLINE void operator()(int64_t a) const {
    const int64_t depth = call.n.depth;
    const T* const centre = call.in.centre + head * depth;
    T* const into = pairs + a * call.columns * 2 * depth;
    const Cells<T> cells{call, head / call.n.heads, head % call.n.heads};
    cells.of_row(a, [&](const T* values, T factor, int64_t e) INLINE_LAMBDA {
      T* const pair = into + e * 2 * depth;
#pragma omp simd
      for (int64_t d = 0; d < depth; ++d) {
        const T z = values[d] * factor - centre[d];
        pair[d] = z;
        pair[depth + d] = z * z;
      }
    });
  }
};

// What the maps make of values and squares becomes mean and variance + eps.
template <typename T>
struct Moments {
  const Call<T>& call;
  int64_t head;

  INLINE void operator()(int64_t a) const {
    const int64_t depth = call.n.depth;
    const T *const centre = call.in.centre + head * depth, eps = call.eps;
    for (int64_t e = 0; e < call.columns; ++e) {
      T* const pair = call.in.inter + head * call.pairs + (a * call.columns + e) * 2 * depth;
#pragma omp simd
      for (int64_t d = 0; d < depth; ++d) {
        const T first = pair[d], var = pair[depth + d] - first * first;
        pair[d] = first + centre[d];
        pair[depth + d] = (var < 0 ? 0 : var) + eps;
      }
    }
  }
};

// The result for the tokens of a row of cells.
template <typename T>
struct Normalise {
  const Call<T>& call;
  const T* all_bias;
  T* all_out;

  INLINE void operator()(int64_t i) const {
    const Grid& n = call.n;
    const int64_t b = i / call.rows, a = i % call.rows, depth = n.depth;
    call.each_token(a, [&](int64_t token, int64_t e) INLINE_LAMBDA {
      const T* const own = call.own(b, token);
      for (int64_t h = 0; h < n.heads; ++h) {
        const int64_t at = (b * call.tokens + token) * call.channels + h * depth;
        const T mean_ratio = call.in.mean_ratio[h], var_ratio = call.in.var_ratio[h], factor = own[h];
        const T own_mean = mean_ratio * own[n.heads], own_var = var_ratio * own[n.heads + 1];
        const T *const pair = call.pair(b, h, a, e), *const x = call.in.x + at;
        const T *const weight = call.in.weight + h * depth, *const bias = all_bias + h * depth;
        T* const out = all_out + at;
#pragma omp simd
        for (int64_t d = 0; d < depth; ++d) {
          const T mean = own_mean + (1 - mean_ratio) * pair[d];
          const T var = own_var + (1 - var_ratio) * pair[depth + d];
          out[d] = (x[d] * factor - mean) / root(var) * weight[d] + bias[d];
        }
      }
    });
  }
};

}  // namespace

#endif
