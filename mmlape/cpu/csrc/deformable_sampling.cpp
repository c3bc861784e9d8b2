// The sampling of multi-scale deformable attention (Deformable DETR, ICLR 2021, eq. 3) on a CPU, forward and backward.
//
// Plain C++17 with a C interface: no header and no library of PyTorch, so a binary serves every version of it. All
// arrays are dense:
//   value       (batch, heads, values, width)    maps of all levels, row by row, one after the other; heads come
//                                                first, so that neighbours share lines of the cache
//   offsets     (batch, queries, heads, levels, points, 2)    (x, y) in cells of the level; without references,
//                                                finished locations in [0, 1]
//   weights     (batch, queries, heads, levels, points)
//   references  (queries, 2) or null             (x, y) in [0, 1]
//   shapes      (levels, 2)                      (height, width)
//   out         (batch, queries, heads, width)
// The caller has checked that the shapes' cells are the values. What lies outside of a map is zero.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "processors.h"

namespace {

struct Sizes {
  int64_t batch, values, heads, width, queries, levels, points;
};

template <typename T>
struct Inputs {
  Sizes n;
  const int64_t* shapes;
  const T *value, *offsets, *weights, *references;
  std::vector<T> zeros;  // (width), and at least one reference

  Inputs(const int64_t* sizes, T* const* arrays)
      : n(*reinterpret_cast<const Sizes*>(sizes)),
        shapes(sizes + sizeof(Sizes) / sizeof(int64_t)),
        value(arrays[0]),
        offsets(arrays[1]),
        weights(arrays[2]),
        references(arrays[3]),
        zeros(std::max<int64_t>(n.width, 2), T(0)) {}
};

// One bilinear sample: indices of its four cells (-1: outside of the map), their shares, and how far it is from the
// first.
template <typename T>
struct Place {
  int64_t cells[4];
  T shares[4], right, below;
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

// Where a sample is, in cells; its offset from the reference is in parts of the map's side, 1 / unit each. Rounded as PyTorch's grid_sample rounds it, so that both choose the same cells: offsets
// start as whole numbers, where the derivative jumps.
template <typename T>
INLINE T coordinate(T reference, T offset, T unit, T size) {
  const T location = reference + offset / unit;
  return fused((2 * location - 1) + 1, size / 2, T(-0.5));
}

// False where a sample touches no cell of the level whose first cell is `start`.
template <typename T>
INLINE bool find(T x, T y, int64_t height, int64_t width, int64_t start, Place<T>& place) {
  if (!(x >= -1 && y >= -1 && x < T(width) && y < T(height))) return false;
  const int64_t column = whole(x), row = whole(y), first = start + row * width + column;
  const bool in_left = column >= 0, in_right = column + 1 < width;
  const bool in_top = row >= 0, in_bottom = row + 1 < height;
  place.cells[0] = in_top && in_left ? first : -1;
  place.cells[1] = in_top && in_right ? first + 1 : -1;
  place.cells[2] = in_bottom && in_left ? first + width : -1;
  place.cells[3] = in_bottom && in_right ? first + width + 1 : -1;
  const T right = place.right = x - T(column), below = place.below = y - T(row);
  place.shares[0] = (1 - right) * (1 - below);
  place.shares[1] = right * (1 - below);
  place.shares[2] = (1 - right) * below;
  place.shares[3] = right * below;
  return true;
}

// Calls inside(at, place) or outside(at, zero), inlined, for the samples of query `q` and head `h`. `at` is the index of
// their weights. `zero` is NaN if the location is not finite: a broken training must show.
template <typename T, typename Inside, typename Outside>
INLINE void each_sample(const Inputs<T>& in, int64_t b, int64_t h, int64_t q, const Inside& inside,
                        const Outside& outside) {
  const int64_t first = ((b * in.n.queries + q) * in.n.heads + h) * in.n.levels * in.n.points;
  // Without references, offsets from zero in units of the map are the locations.
  const T* const reference = in.references ? in.references + 2 * q : in.zeros.data();
  int64_t start = 0;
  for (int64_t level = 0; level < in.n.levels; ++level) {
    const int64_t height = in.shapes[2 * level], width = in.shapes[2 * level + 1];
    const T across = in.references ? T(width) : T(1), down = in.references ? T(height) : T(1);
    if (height * width > 0)  // else there is nothing to sample
      for (int64_t point = 0; point < in.n.points; ++point) {
        const int64_t at = first + level * in.n.points + point;  // a running count made GCC's code 20 % slower
        const T x = coordinate(reference[0], in.offsets[2 * at], across, T(width));
        const T y = coordinate(reference[1], in.offsets[2 * at + 1], down, T(height));
        Place<T> place;
        if (find(x, y, height, width, start, place))
          inside(at, place);
        else
          outside(at, (x - x) + (y - y));
      }
    start += height * width;
  }
}

// Calls task.run<W>(i) with W = n.width where that is a usual number of channels per head, for which the compiler unrolls
// loops, or 0.
template <typename Task>
INLINE void of_width(const Task& task, int64_t i) {
  switch (task.in.n.width) {
    case 32: return task.template run<32>(i);
    case 64: return task.template run<64>(i);
    default: return task.template run<0>(i);
  }
}

// Part `i` of the queries of all batches and heads, counted with queries last.
template <typename T>
struct Forward {
  static constexpr int64_t part = 256;
  const Inputs<T>& in;
  T* out;

  INLINE void operator()(int64_t i) const { of_width(*this, i); }
  int64_t all() const { return in.n.batch * in.n.heads * in.n.queries; }

  template <int kWidth>
  INLINE void run(int64_t i) const {
    for (int64_t each = i * part; each < (i + 1) * part && each < all(); ++each) query<kWidth>(each);
  }

  template <int kWidth>
  INLINE void query(int64_t i) const {
    const int64_t d = kWidth ? kWidth : in.n.width, step = in.n.heads * d;
    const int64_t q = i % in.n.queries, h = i / in.n.queries % in.n.heads, b = i / in.n.queries / in.n.heads;
    T* const sum = out + (b * in.n.queries + q) * step + h * d;
    const T* const maps = in.value + (b * in.n.heads + h) * in.n.values * d;
    for (int64_t c = 0; c < d; ++c) sum[c] = 0;
    const auto inside = [&](int64_t at, const Place<T>& place) INLINE_LAMBDA {
      const T* rows[4];
      T shares[4];
      for (int k = 0; k < 4; ++k) {
        rows[k] = place.cells[k] < 0 ? in.zeros.data() : maps + place.cells[k] * d;
        shares[k] = place.shares[k] * in.weights[at];
      }
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        sum[c] += shares[0] * rows[0][c] + shares[1] * rows[1][c] + shares[2] * rows[2][c] + shares[3] * rows[3][c];
    };
    each_sample(in, b, h, q, inside, [&](int64_t at, T zero) INLINE_LAMBDA {
      const T nothing = zero * in.weights[at];
      if (nothing != 0)  // NaN
        for (int64_t c = 0; c < d; ++c) sum[c] = nothing;
    });
  }
};

// All queries of batch and head `i`: nobody else adds to this head's gradient of the values.
template <typename T>
struct Backward {
  const Inputs<T>& in;
  const T* grad;
  T *to_value, *to_offsets, *to_weights;  // zeros at first
  T* lost;  // (batch * heads, width): what belongs to no cell

  INLINE void operator()(int64_t i) const { of_width(*this, i); }

  template <int kWidth>
  INLINE void run(int64_t i) const {
    const int64_t d = kWidth ? kWidth : in.n.width, step = in.n.heads * d;
    const int64_t h = i % in.n.heads, b = i / in.n.heads, maps = i * in.n.values * d;
    for (int64_t q = 0; q < in.n.queries; ++q) {
      const T* const g = grad + (b * in.n.queries + q) * step + h * d;
      T nothing = 0;  // NaN if a gradient is not finite
#pragma omp simd reduction(+ : nothing)
      for (int64_t c = 0; c < d; ++c) nothing += 0 * g[c];
      const auto inside = [&](int64_t at, const Place<T>& place) INLINE_LAMBDA {
        const T weight = in.weights[at];
        const T* rows[4];
        T* into[4];
        for (int k = 0; k < 4; ++k) {
          const int64_t cell = maps + place.cells[k] * d;
          rows[k] = place.cells[k] < 0 ? in.zeros.data() : in.value + cell;
          into[k] = place.cells[k] < 0 ? lost + i * d : to_value + cell;
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
          const T share = weight * place.shares[k];
#pragma omp simd
          for (int64_t c = 0; c < d; ++c) target[c] += share * g[c];
        }
        const T *const shares = place.shares, right = place.right, below = place.below;
        to_weights[at] = shares[0] * dot0 + shares[1] * dot1 + shares[2] * dot2 + shares[3] * dot3;
        to_offsets[2 * at] = weight * ((1 - below) * (dot1 - dot0) + below * (dot3 - dot2));
        to_offsets[2 * at + 1] = weight * ((1 - right) * (dot2 - dot0) + right * (dot3 - dot1));
      };
      each_sample(in, b, h, q, inside, [&](int64_t at, T zero) INLINE_LAMBDA {
        to_weights[at] = zero + nothing;
        to_offsets[2 * at] = to_offsets[2 * at + 1] = (zero + nothing) * in.weights[at];
      });
    }
  }
};

RUN(Forward)
RUN(Backward)

template <typename T>
void forward(const int64_t* sizes, double, T* const* arrays, int threads) {
  const Inputs<T> in(sizes, arrays);
  const Forward<T> task{in, arrays[4]};
  each(task, (task.all() + task.part - 1) / task.part, threads);
}

template <typename T>
void backward(const int64_t* sizes, double, T* const* arrays, int threads) {
  const Inputs<T> in(sizes, arrays);
  const int64_t heads = in.n.batch * in.n.heads;
  std::vector<T> lost(heads * in.n.width, T(0));
  each(Backward<T>{in, arrays[4], arrays[5], arrays[6], arrays[7], lost.data()}, heads, threads);
}

}  // namespace

// sizes: those of Sizes, then the shapes. Arrays: value, offsets, weights, references; then out, or the gradients of out,
// value, offsets (in cells, with references or without) and weights.
EXPORT(deformable_forward, forward)
EXPORT(deformable_backward, backward)
