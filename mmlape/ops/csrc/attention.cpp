// Softmax attention without an N x N map on a CPU, forward and backward, in float32: blocks of keys one after the
// other, with what was read so far made smaller when a higher score comes (FlashAttention, NeurIPS 2022, algorithms 1
// and 4).
//
// Plain C++17 with a C interface, like the other operators. Arrays, of which the channels of a token are dense:
//   query, grad        (batch, heads, queries, width)    any other strides
//   key, value         (batch, heads, keys, width)
//   out, to_query      (batch, queries, heads, width)    dense, like all below
//   to_key, to_value   (batch, keys, heads, width)
//   sums               (batch, queries, heads)           logarithm of the sum of exponentials of scores

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "processors.h"

struct Shape {
  int64_t batch, heads, queries, keys, width;
};

// Strides in numbers.
struct Tokens {
  const float* data;
  int64_t of_batch, of_head, of_token;

  const float* token(int64_t b, int64_t h, int64_t i) const { return data + b * of_batch + h * of_head + i * of_token; }
};

namespace {

// Rows of a tile: tokens, or channels of tokens.
constexpr int64_t kRows = 8;
// Tokens between two looks at the highest score: their scores stay in the first cache.
constexpr int64_t kTogether = 32 * kRows;
constexpr float kLogTwo = 0.69314718f;

constexpr int64_t whole_tiles(int64_t count) { return (count + kRows - 1) / kRows * kRows; }

// Tokens of all heads in the orders in which tiles read them, zeros beyond the last token or channel.
struct Packed {
  int64_t count, width;
  std::unique_ptr<float[]> tokens;    // (heads, count / kRows, width, kRows)
  std::unique_ptr<float[]> channels;  // (heads, width / kRows, count, kRows)

  Packed(const Tokens& from, const Shape& n, int64_t count, float factor, bool by_token, bool by_channel, int threads)
      : count(count), width(n.width) {
    const int64_t heads = n.batch * n.heads, tiles = whole_tiles(count) / kRows;
    if (by_token) tokens.reset(new float[heads * tiles * kRows * width]);
    if (by_channel) channels.reset(new float[heads * whole_tiles(width) * count]);
    IN_PARALLEL
    for (int64_t i = 0; i < heads * tiles; ++i) {
      const float* rows[kRows];
      const int64_t head = i / tiles, first = i % tiles * kRows, there = std::min(count - first, kRows);
      for (int64_t r = 0; r < there; ++r) rows[r] = from.token(head / n.heads, head % n.heads, first + r);
      if (by_token) put_token_tile(rows, there, factor, tokens.get() + i * kRows * width);
      if (!by_channel) continue;
      put_channels(rows, there, factor, channels.get() + head * whole_tiles(width) * count + first * kRows);
    }
  }

  void put_token_tile(const float* const* rows, int64_t there, float factor, float* to) const {
    for (int64_t c = 0; c < width; ++c)
      for (int64_t r = 0; r < kRows; ++r) to[c * kRows + r] = r < there ? rows[r][c] * factor : 0;
  }
  void put_channels(const float* const* rows, int64_t there, float factor, float* to) const {
    for (int64_t c = 0; c < width; c += kRows)
      for (int64_t r = 0; r < there; ++r)
        for (int64_t j = 0; j < kRows; ++j) to[c * count + r * kRows + j] = c + j < width ? rows[r][c + j] * factor : 0;
  }

  const float* by_token(int64_t head, int64_t i) const {
    return tokens.get() + (head * whole_tiles(count) + i) * width;
  }
  const float* by_channel(int64_t head, int64_t c, int64_t i) const {
    return channels.get() + (head * whole_tiles(width) + c) * count + i * kRows;
  }
};

struct Attention {
  Shape n;
  Tokens query;
  Packed keys, values;
  float scale;
  float *out, *sums;
};

struct Slopes {
  Shape n;
  Tokens query, key, value, grad;
  Packed queries, keys, values, grads;  // queries are scaled, for powers of two
  float scale;
  const float *level, *mean;  // of a query, (batch * heads, queries): logarithm (base 2) of its sum, and d
  float *to_query, *to_key, *to_value;
};

namespace any {
#define VECTOR_BYTES 16
#define VECTORS_TOGETHER 1
#include "attention_tiles.h"
#include "attention_forward.h"
#include "attention_backward.h"
#undef VECTOR_BYTES
#undef VECTORS_TOGETHER
}  // namespace any

#if defined(HAS_VARIANTS)
#pragma GCC push_options
#pragma GCC target("arch=skylake-avx512")
namespace avx512 {
#define VECTOR_BYTES 64
#define VECTORS_TOGETHER 2
#include "attention_tiles.h"
#include "attention_forward.h"
#include "attention_backward.h"
#undef VECTOR_BYTES
#undef VECTORS_TOGETHER
}  // namespace avx512
#pragma GCC pop_options
#endif

bool has_avx512() {
#if defined(HAS_VARIANTS)
  return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// Calls run(call, head, first) for all heads and the first of each block of tokens.
template <typename Call>
void each_block(const Call& call, void (*run)(const Call&, int64_t, int64_t), int64_t tokens, int64_t block,
                int threads) {
  const int64_t blocks = (tokens + block - 1) / block, heads = call.n.batch * call.n.heads;
  IN_PARALLEL
  for (int64_t i = 0; i < heads * blocks; ++i) run(call, i / blocks, i % blocks * block);
}

#if defined(HAS_VARIANTS)
#define BY_BLOCKS(RUN, CALL, TOKENS, BLOCK)                                 \
  has_avx512() ? each_block(CALL, avx512::RUN, TOKENS, avx512::BLOCK, threads) \
               : each_block(CALL, any::RUN, TOKENS, any::BLOCK, threads)
#else
#define BY_BLOCKS(RUN, CALL, TOKENS, BLOCK) each_block(CALL, any::RUN, TOKENS, any::BLOCK, threads)
#endif

}  // namespace

// Columns side by side in a vector.
extern "C" int64_t attention_lanes() {
#if defined(HAS_VARIANTS)
  if (has_avx512()) return avx512::kLanes;
#endif
  return any::kLanes;
}

extern "C" void attention_float32(const Shape* shape, const Tokens* query, const Tokens* key, const Tokens* value,
                                  float scale, int threads, float* out, float* sums) {
  const Shape& n = *shape;
  const Attention call{n, *query, Packed(*key, n, n.keys, 1, true, false, threads),
                       Packed(*value, n, n.keys, 1, false, true, threads), scale, out, sums};
  BY_BLOCKS(attend, call, n.queries, kColumns);
}

// `level` and `mean`: (batch, heads, queries), see Slopes.
extern "C" void attention_backward_float32(const Shape* shape, const Tokens* query, const Tokens* key,
                                           const Tokens* value, float scale, int threads, const Tokens* grad,
                                           const float* level, const float* mean, float* to_query, float* to_key,
                                           float* to_value) {
  const Shape& n = *shape;
  const Slopes call{n, *query, *key, *value, *grad,
                    Packed(*query, n, n.queries, scale / kLogTwo, true, true, threads),
                    Packed(*key, n, n.keys, 1, true, true, threads),
                    Packed(*value, n, n.keys, 1, true, false, threads),
                    Packed(*grad, n, n.queries, 1, true, true, threads),
                    scale, level, mean, to_query, to_key, to_value};
  BY_BLOCKS(to_queries, call, n.queries, kColumns);
  BY_BLOCKS(to_keys, call, n.keys, kKeys);
}
