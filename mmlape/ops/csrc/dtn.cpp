// Dynamic token normalization (DTN, ICLR 2022, eq. 4 and 5) on a CPU, forward and backward: the steps of
// mmlape/norm/dtn_function.py in few passes over memory.
//
// Plain C++17 with a C interface, like the other operator. All arrays are dense; T = height * width tokens, A x E cells
// of pool x pool tokens (fewer at the bottom and right), C = heads * depth channels:
//   x, out          (batch, T, C)
//   row_maps        (heads or 1, A, A); column_maps (heads or 1, E, E)
//   mean_ratio, var_ratio    (heads)
//   weight, bias    (C)
//   own             (batch, T, heads + 2)    of a token: what each head is multiplied by, mean, variance + eps
//   cells           (batch, A, E, C)         means of tokens so multiplied; not there where pool is 1
//   centre          (batch, heads, depth)    means of cells, from where their values are counted
//   inter           (batch, heads, A, E, 2, depth)    inter-token mean, and variance + eps
// Images and heads, or rows of cells, are done side by side. Each sum is one thread's, or of parts that do not depend on
// the number of threads, so that neither does the result.

#include <memory>

#include "axis_products.h"

struct Grid {
  int64_t batch, height, width, pool, heads, depth, row_maps, column_maps, stabilize;
  double eps;
};

namespace {

INLINE float root(float x) { return __builtin_sqrtf(x); }
INLINE double root(double x) { return __builtin_sqrt(x); }

template <typename T>
struct Arrays {
  const T *x, *row_maps, *column_maps, *mean_ratio, *var_ratio, *weight;
  T *own, *cells, *centre, *inter;
};

template <typename T>
struct Results {
  const T* bias;
  T* out;
};

template <typename T>
struct Gradients {
  const T* out;
  T *x, *row_maps, *column_maps;  // of maps: (batch, heads, A, A) and (batch, heads, E, E), zeros at first
  T *mean_ratio, *var_ratio, *weight, *bias;
};

template <typename T>
struct Call {
  Grid n;
  Arrays<T> in;
  int64_t rows = (n.height + n.pool - 1) / n.pool, columns = (n.width + n.pool - 1) / n.pool;
  int64_t tokens = n.height * n.width, channels = n.heads * n.depth;
  int64_t pairs = rows * columns * 2 * n.depth;  // of a head

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
  using Type = T;
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
      own[h] = 1 / root(square + T(n.eps));
      all += square * own[h] * own[h];
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
    own[n.heads + 1] = var + T(n.eps);
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
  using Type = T;
  const Call<T>& call;

  INLINE void operator()(int64_t i) const {
    const int64_t depth = call.n.depth;
    const Cells<T> cells{call, i / call.n.heads, i % call.n.heads};
    T* const centre = call.in.centre + i * depth;
    std::vector<T> memory(depth);
    T* const sum = memory.data();
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
  using Type = T;
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
  using Type = T;
  const Call<T>& call;
  int64_t head;

  INLINE void operator()(int64_t a) const {
    const int64_t depth = call.n.depth;
    const T *const centre = call.in.centre + head * depth, eps = T(call.n.eps);
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
  using Type = T;
  const Call<T>& call;
  Results<T> to;

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
        const T *const weight = call.in.weight + h * depth, *const bias = to.bias + h * depth;
        T* const out = to.out + at;
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
  using Type = T;
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
  using Type = T;
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

// From gradients with respect to values and squares (E, A, 2, depth) to those of a row of cells, in place of the former;
// divided by how many tokens a cell has.
template <typename T>
struct ToCells {
  using Type = T;
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
  using Type = T;
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

#define RUN(TASK)                                                                              \
  FOR_EVERY_PROCESSOR static void run(const TASK<float>& task, int64_t i) { task(i); }         \
  FOR_EVERY_PROCESSOR static void run(const TASK<double>& task, int64_t i) { task(i); }
RUN(Product)
RUN(MapGradient)
RUN(Describe)
RUN(Centre)
RUN(Pairs)
RUN(Moments)
RUN(Normalise)
RUN(ToStatistics)
RUN(ToProducts)
RUN(ToCells)
RUN(ToTokens)

template <typename Task>
void each(const Task& task, int64_t count, int threads) {
  IN_PARALLEL
  for (int64_t i = 0; i < count; ++i) run(task, i);
}

template <typename T>
std::unique_ptr<T[]> memory(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

// Calls each(head, threads), by as many threads as there are, for the heads of all images: side by side, or one after
// the other with all threads each where they are few.
template <typename Each>
void each_head(const Grid& n, int all, const Each& each) {
  const int64_t heads = n.batch * n.heads;
  const int threads = heads >= all ? all : 1, inside = heads >= all ? 1 : all;
  IN_PARALLEL
  for (int64_t head = 0; head < heads; ++head) each(head, inside);
}

template <typename T>
void forward(const Call<T>& call, const Results<T>& to, int threads) {
  const Grid& n = call.n;
  const Maps<T> rows(call.in.row_maps, n.row_maps, call.rows, false);
  const Maps<T> columns(call.in.column_maps, n.column_maps, call.columns, false);
  each(Describe<T>{call}, n.batch * call.rows, threads);
  each_head(n, threads, [&](int64_t head, int inside) {
    const auto pairs = memory<T>(call.pairs), half = memory<T>(call.pairs);
    const int64_t h = head % n.heads, width = 2 * n.depth;
    run(Centre<T>{call}, head);
    each(Pairs<T>{call, head, pairs.get()}, call.rows, inside);
    each(Product<T>{rows, h % n.row_maps, pairs.get(), half.get(), call.columns, width}, call.columns, inside);
    T* const inter = call.in.inter + head * call.pairs;
    each(Product<T>{columns, h % n.column_maps, half.get(), inter, call.rows, width}, call.rows, inside);
    each(Moments<T>{call, head}, call.rows, inside);
  });
  each(Normalise<T>{call, to}, n.batch * call.rows, threads);
}

// Of all rows of cells, and what follows from them alone: gradients of ratios, which weigh mu_token - P x = (mu_token -
// mu) / (1 - ratio), and likewise for var.
template <typename T>
void add_up(const Call<T>& call, const Gradients<T>& grad, const T* parts) {
  const int64_t heads = call.n.heads, depth = call.n.depth, size = Sums<T>::size(call.channels, heads);
  std::vector<T> total(size, T(0));
  for (int64_t i = 0; i < call.n.batch * call.rows; ++i)
    for (int64_t k = 0; k < size; ++k) total[k] += parts[i * size + k];
  const Sums<T> sums(total.data(), call.channels, heads);
  for (int64_t h = 0; h < heads; ++h) {
    T known = 0, along = 0;
    for (int64_t c = h * depth; c < (h + 1) * depth; ++c) {
      grad.weight[c] = sums.weight[c];
      grad.bias[c] = sums.bias[c];
      known += sums.weight[c] * call.in.weight[c];
      along += sums.along[c];
    }
    // Where a sigmoid has come to 1 exactly, anything finite will do.
    const auto rest = [](T ratio) { return std::fmax(1 - ratio, std::numeric_limits<T>::epsilon()); };
    grad.mean_ratio[h] = (along - known - sums.means[h]) / rest(call.in.mean_ratio[h]);
    grad.var_ratio[h] = (known - sums.vars[h]) / 2 / rest(call.in.var_ratio[h]);
  }
}

template <typename T>
void backward(const Call<T>& call, const Gradients<T>& grad, int threads) {
  const Grid& n = call.n;
  const Maps<T> rows(call.in.row_maps, n.row_maps, call.rows, false);
  const Maps<T> rows_back(call.in.row_maps, n.row_maps, call.rows, true);
  const Maps<T> columns(call.in.column_maps, n.column_maps, call.columns, false);
  const Maps<T> columns_back(call.in.column_maps, n.column_maps, call.columns, true);
  const int64_t size = Sums<T>::size(call.channels, n.heads);
  const Scratch<T> scratch{memory<T>(n.batch * n.heads * call.pairs), memory<T>(n.batch * call.tokens * 2),
                           memory<T>(n.batch * call.rows * size)};
  const ToStatistics<T> statistics{call, grad, scratch};
  each(statistics, n.batch * call.rows, threads);
  add_up(call, grad, scratch.sums.get());
  each_head(n, threads, [&](int64_t head, int inside) {
    const auto pairs = memory<T>(call.pairs), half = memory<T>(call.pairs), back = memory<T>(call.pairs);
    T* const inter = scratch.inter.get() + head * call.pairs;
    const int64_t h = head % n.heads, row = h % n.row_maps, column = h % n.column_maps, width = 2 * n.depth;
    each(ToProducts<T>{call, head, inter}, call.columns, inside);
    each(Pairs<T>{call, head, pairs.get()}, call.rows, inside);
    each(Product<T>{columns_back, column, inter, back.get(), call.rows, width}, call.rows, inside);
    if (grad.row_maps) {
      each(Product<T>{rows, row, pairs.get(), half.get(), call.columns, width}, call.columns, inside);
      T* const to_columns = grad.column_maps + head * call.columns * call.columns;
      each(MapGradient<T>{columns, column, inter, half.get(), to_columns, call.rows * width}, columns.blocks, inside);
      T* const to_rows = grad.row_maps + head * call.rows * call.rows;
      each(MapGradient<T>{rows, row, back.get(), pairs.get(), to_rows, call.columns * width}, rows.blocks, inside);
    }
    each(Product<T>{rows_back, row, back.get(), inter, call.columns, width}, call.columns, inside);
    each(ToCells<T>{call, pairs.get(), inter}, call.rows, inside);
  });
  each(ToTokens<T>{statistics}, n.batch * call.rows, threads);
}

}  // namespace

// `maps` and so on: pointers in the order of Arrays, and of Results or Gradients.
#define DEFINE(T, NAME)                                                                                          \
  extern "C" void dtn_forward_##NAME(const Grid* grid, const Arrays<T>* in, const Results<T>* to, int threads) { \
    forward(Call<T>{*grid, *in}, *to, threads);                                                                  \
  }                                                                                                              \
  extern "C" void dtn_backward_##NAME(const Grid* grid, const Arrays<T>* in, const Gradients<T>* grad,           \
                                      int threads) {                                                             \
    backward(Call<T>{*grid, *in}, *grad, threads);                                                               \
  }

DEFINE(float, float32)
DEFINE(double, float64)
