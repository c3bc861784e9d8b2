// Softmax attention without an N x N map on a CPU, forward, in float32: blocks of keys one after the other, with what
// was read so far made smaller when a higher score comes (FlashAttention, NeurIPS 2022, algorithm 1).
//
// Plain C++17 with a C interface, like the other operators. Arrays, of which the channels of a token are dense:
//   query              (batch, heads, queries, width)    any other strides
//   key, value         (batch, heads, keys, width)
//   out                (batch, queries, heads, width)    dense
//   sums               (batch, queries, heads)           logarithm of the sum of exponentials of scores

#include <cmath>
#include <cstdint>
#include <limits>
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

// Keys, or channels of values, done at a time.
constexpr int64_t kRows = 8;
// Keys between two looks at the highest score: their scores stay in the first cache.
constexpr int64_t kKeys = 32 * kRows;
constexpr float kLogTwo = 0.69314718f;

constexpr int64_t whole_tiles(int64_t count) { return (count + kRows - 1) / kRows * kRows; }

struct Attention {
  Shape n;
  Tokens query, key, value;
  float scale;  // of scores whose powers of two are wanted
  const float* keys;    // (batch * heads, keys / kRows, width, kRows), zeros beyond the last key
  const float* values;  // (batch * heads, width / kRows, keys, kRows), zeros beyond the last channel
  float *out, *sums;
};

// Keys and values of a head in the order in which tiles read them.
void pack(const Attention& call, int64_t head, float* keys, float* values) {
  const Shape& n = call.n;
  const int64_t width = whole_tiles(n.width), b = head / n.heads, h = head % n.heads;
  keys += head * whole_tiles(n.keys) * n.width;
  values += head * n.keys * width;
  for (int64_t k = 0; k < n.keys; ++k) {
    const float *const key = call.key.token(b, h, k), *const value = call.value.token(b, h, k);
    float* const to = keys + k / kRows * kRows * n.width + k % kRows;
    for (int64_t c = 0; c < n.width; ++c) to[c * kRows] = key[c];
    for (int64_t c = 0; c < n.width; ++c) values[c / kRows * kRows * n.keys + k * kRows + c % kRows] = value[c];
  }
}

namespace any {
#define VECTOR_BYTES 16
#define VECTORS_TOGETHER 1
#include "attention_block.h"
#undef VECTOR_BYTES
#undef VECTORS_TOGETHER
}  // namespace any

#if defined(HAS_VARIANTS)
#pragma GCC push_options
#pragma GCC target("arch=skylake-avx512")
namespace avx512 {
#define VECTOR_BYTES 64
#define VECTORS_TOGETHER 2
#include "attention_block.h"
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

void attend(Attention call, int threads) {
  const Shape& n = call.n;
  const int64_t heads = n.batch * n.heads;
  std::vector<float> keys(heads * whole_tiles(n.keys) * n.width), values(heads * n.keys * whole_tiles(n.width));
  {
    IN_PARALLEL
    for (int64_t head = 0; head < heads; ++head) pack(call, head, keys.data(), values.data());
  }
  call.keys = keys.data();
  call.values = values.data();
  const auto each_block = [&](auto block, int64_t step) {
    const int64_t blocks = (n.queries + step - 1) / step;
    IN_PARALLEL
    for (int64_t i = 0; i < heads * blocks; ++i) block(call, i / blocks, i % blocks * step);
  };
#if defined(HAS_VARIANTS)
  if (has_avx512()) return each_block(avx512::attend, avx512::kQueries);
#endif
  each_block(any::attend, any::kQueries);
}

}  // namespace

// Queries side by side in a vector.
extern "C" int64_t attention_lanes() {
#if defined(HAS_VARIANTS)
  if (has_avx512()) return avx512::kLanes;
#endif
  return any::kLanes;
}

extern "C" void attention_float32(const Shape* shape, const Tokens* query, const Tokens* key, const Tokens* value,
                                  float scale, float* out, float* sums, int threads) {
  attend(Attention{*shape, *query, *key, *value, scale / kLogTwo, nullptr, nullptr, out, sums}, threads);
}
