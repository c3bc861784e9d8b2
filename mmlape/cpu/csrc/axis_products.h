// Products of small matrices ("maps") with tensors along one of their axes, and the gradients of maps.
//
// Both skip what lies outside of the range of places that a few rows of a map weigh at all: heads that look at their
// neighbourhood, or to one end of the axis, have zeros elsewhere.

#ifndef MMLAPE_AXIS_PRODUCTS_H
#define MMLAPE_AXIS_PRODUCTS_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "processors.h"

namespace {

// Rows done at a time: 7, 14, 28 and 56 are the usual sides of grids, and seven sums hide the time an addition takes.
constexpr int64_t kRows = 7;
// Columns done at a time.
template <typename T>
constexpr int64_t kColumns = 128 / sizeof(T);

// kRows rows by kColumns columns of a product. Its sums must stay in registers, which compilers see to only for types
// that are vectors of the processor's own size: hence one function for each.
template <typename T>
using Tile = void (*)(const T* weights, const T* values, int64_t step, int64_t places, T* out, int64_t row);

#define DEFINE_TILE(NAME, TARGET, BYTES, TOGETHER)                                                         \
  template <typename T>                                                                                    \
  TARGET void NAME(const T* weights, const T* values, int64_t step, int64_t places, T* out, int64_t row) { \
    typedef T Vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));                   \
    constexpr int64_t lanes = BYTES / sizeof(T);                                                           \
    for (int64_t c = 0; c < kColumns<T>; c += TOGETHER * lanes) {                                          \
      Vector sums[TOGETHER * kRows] = {};                                                                  \
      for (int64_t k = 0; k < places; ++k)                                                                 \
        for (int64_t v = 0; v < TOGETHER; ++v) {                                                           \
          const Vector value = *reinterpret_cast<const Vector*>(values + k * step + c + v * lanes);        \
          for (int64_t r = 0; r < kRows; ++r)                                                              \
            sums[v * kRows + r] += weights[k * kRows + r] * value;                                         \
        }                                                                                                  \
      for (int64_t r = 0; r < kRows; ++r)                                                                  \
        for (int64_t v = 0; v < TOGETHER; ++v)                                                             \
          *reinterpret_cast<Vector*>(out + r * row + c + v * lanes) = sums[v * kRows + r];                 \
    }                                                                                                      \
  }

DEFINE_TILE(tile, , 16, 1)
#if defined(HAS_VARIANTS)
DEFINE_TILE(tile_of_32_bytes, __attribute__((target("arch=haswell"))), 32, 1)
DEFINE_TILE(tile_of_64_bytes, __attribute__((target("arch=skylake-avx512"))), 64, 2)
#endif

// The one for this processor.
template <typename T>
Tile<T> best_tile() {
#if defined(HAS_VARIANTS)
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) return tile_of_64_bytes<T>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return tile_of_32_bytes<T>;
#endif
  return tile<T>;
}

// Square maps (count, length, length) in blocks of kRows rows, row index last, each with its range of places.
template <typename T>
struct Maps {
  int64_t count, length, blocks;
  std::vector<T> weights;  // (count, blocks, length, kRows), zeros beyond the last row
  std::vector<int64_t> first, behind;  // (count, blocks)
  const Tile<T> tile = best_tile<T>();

  // Weights next to nothing count as zeros: products with them would be subnormal numbers, for which processors take a
  // hundred times as long.
  Maps(const T* maps, int64_t count, int64_t length, bool transposed)
      : count(count), length(length), blocks((length + kRows - 1) / kRows) {
    const T trace = std::sqrt(std::numeric_limits<T>::min());
    weights.assign(count * blocks * length * kRows, T(0));
    first.assign(count * blocks, length);
    behind.assign(count * blocks, 0);
    const int64_t row_step = transposed ? 1 : length, place_step = transposed ? length : 1;
    for (int64_t m = 0; m < count; ++m)
      for (int64_t row = 0; row < length; ++row) {
        const int64_t block = m * blocks + row / kRows;
        T* const into = weights.data() + block * length * kRows + row % kRows;
        const T* const from = maps + m * length * length + row * row_step;
        for (int64_t k = 0; k < length; ++k) {
          const T weight = from[k * place_step];
          if (weight < trace) continue;
          into[k * kRows] = weight;
          if (k < first[block]) first[block] = k;
          if (k >= behind[block]) behind[block] = k + 1;
        }
      }
  }
};

// Map `m` times x (L, M, N) along L, with the axes changed over: (M, L, N).
template <typename T>
struct Product {
  const Maps<T>& maps;
  int64_t m;
  const T* x;
  T* out;
  int64_t others, columns;
  T* memory;  // of this thread, size() values

  static int64_t size(int64_t length) { return length * kColumns<T>; }

  // Place `i` of M.
  INLINE void operator()(int64_t i) const {
    const int64_t length = maps.length, step = others * columns;
    for (int64_t c = 0; c < columns; c += kColumns<T>) {
      const int64_t width = columns - c < kColumns<T> ? columns - c : kColumns<T>;
      const T* const from = x + i * columns + c;
      // Gathered where there are too few columns, or where lines so far apart would push one another out of the cache.
      const bool gathered = width < kColumns<T> || length > 64;
      if (gathered) {
        for (int64_t k = 0; k < length; ++k)
          for (int64_t j = 0; j < width; ++j) memory[k * kColumns<T> + j] = from[k * step + j];
      }
      blocks(gathered ? memory : from, gathered ? kColumns<T> : step, width, out + i * length * columns + c);
    }
  }

  // All rows of kColumns columns, of which `width` are written.
  INLINE void blocks(const T* values, int64_t step, int64_t width, T* into) const {
    for (int64_t block = 0; block < maps.blocks; ++block) {
      const int64_t at = m * maps.blocks + block, first = maps.first[at], row = block * kRows;
      const int64_t places = maps.behind[at] > first ? maps.behind[at] - first : 0;
      const int64_t rows = maps.length - row < kRows ? maps.length - row : kRows;
      const T* const weights = maps.weights.data() + (at * maps.length + first) * kRows;
      T* const target = into + row * columns;
      if (rows == kRows && width == kColumns<T>) {
        maps.tile(weights, values + first * step, step, places, target, columns);
        continue;
      }
      T all[kRows * kColumns<T>];
      maps.tile(weights, values + first * step, step, places, all, kColumns<T>);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < width; ++j) target[r * columns + j] = all[r * kColumns<T> + j];
    }
  }
};

// Gradient of map `m`: that of the product (L, N) times x (L, N) transposed, added to `out` (L, L). Zero where the map
// is: maps are a softmax, whose own gradient vanishes there.
template <typename T>
struct MapGradient {
  const Maps<T>& maps;
  int64_t m;
  const T *grad, *x;
  T* out;
  int64_t columns;

  // Block `block` of rows.
  INLINE void operator()(int64_t block) const {
    const int64_t at = m * maps.blocks + block, row = block * kRows, part = 1024;
    const int64_t rows = maps.length - row < kRows ? maps.length - row : kRows;
    for (int64_t c = 0; c < columns; c += part) {
      const int64_t width = columns - c < part ? columns - c : part;
      for (int64_t k = maps.first[at]; k < maps.behind[at]; k += 2) {
        const bool two = k + 1 < maps.behind[at];
        T sums[2 * kRows];
        dots(row, rows, k * columns + c, (k + two) * columns + c, c, width, sums);
        for (int64_t r = 0; r < rows; ++r) {
          out[(row + r) * maps.length + k] += sums[r];
          if (two) out[(row + r) * maps.length + k + 1] += sums[kRows + r];
        }
      }
    }
  }

  // Of kRows rows of grad (the last of them again where there are fewer) with two of x.
  INLINE void dots(int64_t row, int64_t rows, int64_t left, int64_t right, int64_t c, int64_t width, T* sums) const {
    const T* g[kRows];
    for (int64_t r = 0; r < kRows; ++r) g[r] = grad + (row + (r < rows ? r : rows - 1)) * columns + c;
    const T *const g0 = g[0], *const g1 = g[1], *const g2 = g[2], *const g3 = g[3], *const g4 = g[4],
                  *const g5 = g[5], *const g6 = g[6], *const a = x + left, *const b = x + right;
    T a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0, b4 = 0, b5 = 0, b6 = 0;
#pragma omp simd reduction(+ : a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6)
    for (int64_t j = 0; j < width; ++j) {
      a0 += g0[j] * a[j];
      b0 += g0[j] * b[j];
      a1 += g1[j] * a[j];
      b1 += g1[j] * b[j];
      a2 += g2[j] * a[j];
      b2 += g2[j] * b[j];
      a3 += g3[j] * a[j];
      b3 += g3[j] * b[j];
      a4 += g4[j] * a[j];
      b4 += g4[j] * b[j];
      a5 += g5[j] * a[j];
      b5 += g5[j] * b[j];
      a6 += g6[j] * a[j];
      b6 += g6[j] * b[j];
    }
    const T all[2 * kRows] = {a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6};
    for (int64_t i = 0; i < 2 * kRows; ++i) sums[i] = all[i];
  }
};

}  // namespace

#endif
