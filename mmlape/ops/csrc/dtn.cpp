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
// Images and heads, or rows of cells, are done side by side. Each sum is one thread's, or of parts that do not depend
// on the number of threads, so that neither does the result.

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "axis_products.h"
#include "dtn_backward.h"
#include "dtn_forward.h"

namespace {

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
