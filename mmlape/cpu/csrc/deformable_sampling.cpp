// The sampling of multi-scale deformable attention (Deformable DETR, ICLR 2021, eq. 3) on a CPU, forward and backward.
//
// Plain C++17 with a C interface: no header and no library of PyTorch, so a binary serves every version of it. All
// arrays are dense:
//   value       (batch, heads, values, width)    maps of all levels, row by row, one after the other; heads come
//                                                first, so that neighbours share lines of the cache
//   offsets     (batch, queries, heads, levels, points, 2)    (x, y) in cells of the level
//   weights     (batch, queries, heads, levels, points)
//   references  (queries, 2)                     (x, y) in [0, 1]
//   shapes      (levels, 2)                      (height, width)
//   out         (batch, queries, heads, width)
// The caller has checked that the shapes' cells are the values. What lies outside of a map is zero.

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "processors.h"

struct Sizes {
  int64_t batch, values, heads, width, queries, levels, points;
};

namespace {

template <typename T>
struct Inputs {
  Sizes n;
  const T *value, *offsets, *weights, *references;
  const int64_t* shapes;
  const T* zeros;  // (width)
};

// One bilinear sample: indices of its four cells in their map (-1: outside) and how far it is from the first.
template <typename T>
struct Place {
  int64_t cells[4];
  T right, below;
};

// Functions of the standard library are not inlined into the variants; these are.
INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

// The largest whole number that is not above x.
template <typename T>
INLINE int64_t whole(T x) {
  const int64_t towards_zero = int64_t(x);
  return towards_zero - (T(towards_zero) > x);
}

// Where a sample is, in cells. Rounded as PyTorch's grid_sample rounds it, so that both choose the same cells: offsets
// start as whole numbers, where the derivative jumps.
template <typename T>
INLINE T coordinate(T reference, T offset, T size) {
  const T location = reference + offset / size;
  return fused((2 * location - 1) + 1, size / 2, T(-0.5));
}

// False where a sample touches no cell.
template <typename T>
INLINE bool find(T x, T y, int64_t height, int64_t width, Place<T>& place) {
  if (!(x >= -1 && y >= -1 && x < T(width) && y < T(height))) return false;
  const int64_t column = whole(x), row = whole(y), first = row * width + column;
  const bool in_left = column >= 0, in_right = column + 1 < width;
  const bool in_top = row >= 0, in_bottom = row + 1 < height;
  place.cells[0] = in_top && in_left ? first : -1;
  place.cells[1] = in_top && in_right ? first + 1 : -1;
  place.cells[2] = in_bottom && in_left ? first + width : -1;
  place.cells[3] = in_bottom && in_right ? first + width + 1 : -1;
  place.right = x - T(column);
  place.below = y - T(row);
  return true;
}

template <typename T>
INLINE void bilinear(const Place<T>& place, T (&shares)[4]) {
  shares[0] = (1 - place.right) * (1 - place.below);
  shares[1] = place.right * (1 - place.below);
  shares[2] = (1 - place.right) * place.below;
  shares[3] = place.right * place.below;
}

// A location that is no number makes what depends on it no number: a broken training must show.
template <typename T>
INLINE bool is_nowhere(T x, T y) {
  return !(x - x == 0 && y - y == 0);
}

// Calls each(at, x, y, height, width, start), inlined, for the samples of query `q` and head `h`; `at` is the index of
// their weights, `start` the level's first cell.
template <typename T, typename Each>
INLINE void each_sample(const Inputs<T>& in, int64_t b, int64_t h, int64_t q, const Each& each) {
  const int64_t per_query = in.n.levels * in.n.points;
  int64_t sample = ((b * in.n.queries + q) * in.n.heads + h) * per_query, start = 0;
  for (int64_t level = 0; level < in.n.levels; ++level) {
    const int64_t height = in.shapes[2 * level], width = in.shapes[2 * level + 1];
    if (height * width > 0)  // else there is nothing to sample
      for (int64_t point = 0; point < in.n.points; ++point) {
        const int64_t at = sample + level * in.n.points + point;
        const T x = coordinate(in.references[2 * q], in.offsets[2 * at], T(width));
        const T y = coordinate(in.references[2 * q + 1], in.offsets[2 * at + 1], T(height));
        each(at, x, y, height, width, start);
      }
    start += height * width;
  }
}

// Queries `begin` to `end` of all batches and heads, counted with queries last. `kWidth` is n.width where it is known.
template <typename T, int kWidth>
INLINE void forward(const Inputs<T>& in, int64_t begin, int64_t end, T* out) {
  const int64_t d = kWidth ? kWidth : in.n.width, step = in.n.heads * d;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t q = i % in.n.queries, h = i / in.n.queries % in.n.heads, b = i / in.n.queries / in.n.heads;
    T* const sum = out + (b * in.n.queries + q) * step + h * d;
    const T* const maps = in.value + (b * in.n.heads + h) * in.n.values * d;
    for (int64_t c = 0; c < d; ++c) sum[c] = 0;
    each_sample(in, b, h, q, [&](int64_t at, T x, T y, int64_t height, int64_t width, int64_t start) INLINE_LAMBDA {
      Place<T> place;
      const T weight = in.weights[at];
      if (!find(x, y, height, width, place)) {
        if (is_nowhere(x, y) || !(weight - weight == 0))
          for (int64_t c = 0; c < d; ++c) sum[c] = std::numeric_limits<T>::quiet_NaN();
        return;
      }
      T shares[4];
      bilinear(place, shares);
      const T* rows[4];
      for (int k = 0; k < 4; ++k) {
        rows[k] = place.cells[k] < 0 ? in.zeros : maps + (start + place.cells[k]) * d;
        shares[k] *= weight;
      }
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        sum[c] += shares[0] * rows[0][c] + shares[1] * rows[1][c] + shares[2] * rows[2][c] + shares[3] * rows[3][c];
    });
  }
}

template <typename T>
struct Gradients {
  const T* out;
  T *value, *offsets, *weights;  // zeros at first
  T* lost;  // (batch * heads, width): what belongs to no cell
};

// All queries of batch and head `i`: nobody else adds to this head's gradient of the values.
template <typename T, int kWidth>
INLINE void backward(const Inputs<T>& in, int64_t i, const Gradients<T>& grad) {
  const int64_t d = kWidth ? kWidth : in.n.width, step = in.n.heads * d;
  const int64_t h = i % in.n.heads, b = i / in.n.heads, maps = i * in.n.values * d;
  T* const outside = grad.lost + i * d;
  for (int64_t q = 0; q < in.n.queries; ++q) {
    const T* const g = grad.out + (b * in.n.queries + q) * step + h * d;
    each_sample(in, b, h, q, [&](int64_t at, T x, T y, int64_t height, int64_t width, int64_t start) INLINE_LAMBDA {
      Place<T> place;
      const T weight = in.weights[at];
      if (!find(x, y, height, width, place)) {
        if (is_nowhere(x, y))
          grad.weights[at] = grad.offsets[2 * at] = grad.offsets[2 * at + 1] = std::numeric_limits<T>::quiet_NaN();
        return;
      }
      T shares[4];
      bilinear(place, shares);
      const T* rows[4];
      T* into[4];
      for (int k = 0; k < 4; ++k) {
        const int64_t cell = maps + (start + place.cells[k]) * d;
        rows[k] = place.cells[k] < 0 ? in.zeros : in.value + cell;
        into[k] = place.cells[k] < 0 ? outside : grad.value + cell;
      }
      T dot0 = 0, dot1 = 0, dot2 = 0, dot3 = 0;
#pragma omp simd reduction(+ : dot0, dot1, dot2, dot3)
      for (int64_t c = 0; c < d; ++c) {
        dot0 += g[c] * rows[0][c];
        dot1 += g[c] * rows[1][c];
        dot2 += g[c] * rows[2][c];
        dot3 += g[c] * rows[3][c];
      }
      for (int k = 0; k < 4; ++k) {
        T* const target = into[k];
        const T share = weight * shares[k];
#pragma omp simd
        for (int64_t c = 0; c < d; ++c) target[c] += share * g[c];
      }
      grad.weights[at] = shares[0] * dot0 + shares[1] * dot1 + shares[2] * dot2 + shares[3] * dot3;
      grad.offsets[2 * at] = weight * ((1 - place.below) * (dot1 - dot0) + place.below * (dot3 - dot2));
      grad.offsets[2 * at + 1] = weight * ((1 - place.right) * (dot2 - dot0) + place.right * (dot3 - dot1));
    });
  }
}

// The compiler unrolls the usual numbers of channels per head.
template <typename T>
INLINE void forward_any(const Inputs<T>& in, int64_t begin, int64_t end, T* out) {
  switch (in.n.width) {
    case 32: return forward<T, 32>(in, begin, end, out);
    case 64: return forward<T, 64>(in, begin, end, out);
    default: return forward<T, 0>(in, begin, end, out);
  }
}

template <typename T>
INLINE void backward_any(const Inputs<T>& in, int64_t i, const Gradients<T>& grad) {
  switch (in.n.width) {
    case 32: return backward<T, 32>(in, i, grad);
    case 64: return backward<T, 64>(in, i, grad);
    default: return backward<T, 0>(in, i, grad);
  }
}

}  // namespace

// Both return 0, or 1 if there is not enough memory; none is allocated by threads, whose exceptions nobody catches.
#define DEFINE(T, NAME)                                                                                              \
  FOR_EVERY_PROCESSOR static void forward_part_##NAME(const Inputs<T>& in, int64_t begin, int64_t end, T* out) {     \
    forward_any(in, begin, end, out);                                                                                \
  }                                                                                                                  \
  FOR_EVERY_PROCESSOR static void backward_part_##NAME(const Inputs<T>& in, int64_t i, const Gradients<T>& grad) {   \
    backward_any(in, i, grad);                                                                                       \
  }                                                                                                                  \
  extern "C" int forward_##NAME(const Sizes* sizes, const T* value, const T* offsets, const T* weights,              \
                                const T* references, const int64_t* shapes, int threads, T* out) try {               \
    const std::vector<T> zeros(sizes->width, T(0));                                                                  \
    const Inputs<T> in{*sizes, value, offsets, weights, references, shapes, zeros.data()};                           \
    const int64_t all = sizes->batch * sizes->heads * sizes->queries, part = 256;                                    \
    IN_PARALLEL                                                                                                      \
    for (int64_t begin = 0; begin < all; begin += part)                                                              \
      forward_part_##NAME(in, begin, begin + part < all ? begin + part : all, out);                                  \
    return 0;                                                                                                        \
  } catch (...) {                                                                                                    \
    return 1;                                                                                                        \
  }                                                                                                                  \
  extern "C" int backward_##NAME(const Sizes* sizes, const T* value, const T* offsets, const T* weights,             \
                                 const T* references, const int64_t* shapes, int threads, const T* grad,             \
                                 T* value_grad, T* offsets_grad, T* weights_grad) try {                              \
    const int64_t heads = sizes->batch * sizes->heads;                                                               \
    const std::vector<T> zeros(sizes->width, T(0));                                                                  \
    std::vector<T> lost(heads * sizes->width, T(0));                                                                 \
    const Inputs<T> in{*sizes, value, offsets, weights, references, shapes, zeros.data()};                           \
    const Gradients<T> grads{grad, value_grad, offsets_grad, weights_grad, lost.data()};                             \
    IN_PARALLEL                                                                                                      \
    for (int64_t i = 0; i < heads; ++i) backward_part_##NAME(in, i, grads);                                          \
    return 0;                                                                                                        \
  } catch (...) {                                                                                                    \
    return 1;                                                                                                        \
  }

DEFINE(float, float32)
DEFINE(double, float64)
