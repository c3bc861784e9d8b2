// Dynamic token normalization (DTN, ICLR 2022, eq. 4 and 5) on a CPU, forward and backward: the steps of
// mmlape/norm/dtn_plain.py in few passes over memory.
//
// All arrays are dense; T = height * width tokens, A x E cells of pool x pool tokens (fewer at the bottom and right),
// C = heads * depth channels:
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

// Products of places 0 to count - 1, each thread with memory of its own.
template <typename T>
void multiply(const Product<T>& product, int64_t count, int threads) {
  IN_PARALLEL
  for (int64_t thread = 0; thread < threads; ++thread) {
    Product<T> own = product;
    own.memory += thread * Product<T>::size(product.maps.length);
    for (int64_t i = thread; i < count; i += threads) run(own, i);
  }
}

template <typename T>
std::unique_ptr<T[]> memory(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

// What threads need for heads, allocated before they start: an exception in a thread would end the process.
template <typename T>
struct Memory {
  const Call<T>& call;
  int64_t heads = call.n.batch * call.n.heads;
  int side_by_side, inside;  // threads for heads, and for what is done of one head
  int64_t of_product = Product<T>::size(call.rows > call.columns ? call.rows : call.columns);
  std::unique_ptr<T[]> pairs, sums, products;

  // Heads are done side by side, or one after the other with all threads each where they are few.
  Memory(const Call<T>& call, int threads, int64_t tensors)
      : call(call),
        side_by_side(heads >= threads ? threads : 1),
        inside(heads >= threads ? 1 : threads),
        pairs(memory<T>(side_by_side * tensors * call.pairs)),
        sums(memory<T>(side_by_side * call.n.depth)),
        products(memory<T>(threads * of_product)) {}

  // Calls each(head, thread) for the heads of all images.
  template <typename Each>
  void each_head(const Each& each) const {
    const int threads = side_by_side;
    IN_PARALLEL
    for (int64_t thread = 0; thread < threads; ++thread)
      for (int64_t head = thread; head < heads; head += threads) each(head, thread);
  }
};

template <typename T>
void forward(const int64_t* sizes, double eps, T* const* arrays, int threads) {
  const Call<T> call(sizes, eps, arrays);
  const Grid& n = call.n;
  const Maps<T> rows(call.in.row_maps, n.row_maps, call.rows, false);
  const Maps<T> columns(call.in.column_maps, n.column_maps, call.columns, false);
  const Memory<T> own(call, threads, 2);
  const int inside = own.inside;
  each(Describe<T>{call}, n.batch * call.rows, threads);
  own.each_head([&](int64_t head, int64_t thread) {
    T *const pairs = own.pairs.get() + 2 * thread * call.pairs, *const half = pairs + call.pairs;
    T* const product = own.products.get() + thread * own.of_product;
    const int64_t h = head % n.heads, width = 2 * n.depth;
    run(Centre<T>{call, own.sums.get() + thread * n.depth}, head);
    each(Pairs<T>{call, head, pairs}, call.rows, inside);
    multiply(Product<T>{rows, h % n.row_maps, pairs, half, call.columns, width, product}, call.columns, inside);
    T* const inter = call.in.inter + head * call.pairs;
    multiply(Product<T>{columns, h % n.column_maps, half, inter, call.rows, width, product}, call.rows, inside);
    each(Moments<T>{call, head}, call.rows, inside);
  });
  each(Normalise<T>{call, arrays[10], arrays[11]}, n.batch * call.rows, threads);
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
void backward(const int64_t* sizes, double eps, T* const* arrays, int threads) {
  const Call<T> call(sizes, eps, arrays);
  const Gradients<T>& grad = *reinterpret_cast<const Gradients<T>*>(arrays + 10);
  const Grid& n = call.n;
  const Maps<T> rows(call.in.row_maps, n.row_maps, call.rows, false);
  const Maps<T> rows_back(call.in.row_maps, n.row_maps, call.rows, true);
  const Maps<T> columns(call.in.column_maps, n.column_maps, call.columns, false);
  const Maps<T> columns_back(call.in.column_maps, n.column_maps, call.columns, true);
  const int64_t size = Sums<T>::size(call.channels, n.heads);
  const Memory<T> own(call, threads, 3);
  const int inside = own.inside;
  const Scratch<T> scratch{memory<T>(n.batch * n.heads * call.pairs), memory<T>(n.batch * call.tokens * 2),
                           memory<T>(n.batch * call.rows * size)};
  const ToStatistics<T> statistics{call, grad, scratch};
  each(statistics, n.batch * call.rows, threads);
  add_up(call, grad, scratch.sums.get());
  own.each_head([&](int64_t head, int64_t thread) {
    T *const pairs = own.pairs.get() + 3 * thread * call.pairs, *const half = pairs + call.pairs;
    T *const back = half + call.pairs, *const product = own.products.get() + thread * own.of_product;
    T* const inter = scratch.inter.get() + head * call.pairs;
    const int64_t h = head % n.heads, row = h % n.row_maps, column = h % n.column_maps, width = 2 * n.depth;
    each(ToProducts<T>{call, head, inter}, call.columns, inside);
    each(Pairs<T>{call, head, pairs}, call.rows, inside);
    multiply(Product<T>{columns_back, column, inter, back, call.rows, width, product}, call.rows, inside);
    if (grad.row_maps) {
      multiply(Product<T>{rows, row, pairs, half, call.columns, width, product}, call.columns, inside);
      T* const to_columns = grad.column_maps + head * call.columns * call.columns;
      each(MapGradient<T>{columns, column, inter, half, to_columns, call.rows * width}, columns.blocks, inside);
      T* const to_rows = grad.row_maps + head * call.rows * call.rows;
      each(MapGradient<T>{rows, row, back, pairs, to_rows, call.columns * width}, rows.blocks, inside);
    }
    multiply(Product<T>{rows_back, row, back, inter, call.columns, width, product}, call.columns, inside);
    each(ToCells<T>{call, pairs, inter}, call.rows, inside);
  });
  each(ToTokens<T>{statistics}, n.batch * call.rows, threads);
}

}  // namespace

// sizes: those of Grid. Arrays: those of Arrays; then bias and out, or those of Gradients.
EXPORT(dtn_forward, forward)
EXPORT(dtn_backward, backward)
