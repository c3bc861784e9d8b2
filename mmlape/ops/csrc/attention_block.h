// What a block of queries reads, with vectors of VECTOR_BYTES: attention.cpp includes this once for each kind of
// processor, since compilers keep in registers only vectors of the processor's own size.
//
// Queries lie side by side in the vectors, so a softmax over keys needs no sum across a vector. KEYS_TOGETHER keys by
// VECTORS_TOGETHER vectors of queries are as many sums as there are registers for.

constexpr int64_t kLanes = VECTOR_BYTES / sizeof(float), kQueries = VECTORS_TOGETHER * kLanes;

typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES), may_alias));

inline Vector& at(float* place) { return *reinterpret_cast<Vector*>(place); }
inline const Vector& at(const float* place) { return *reinterpret_cast<const Vector*>(place); }

// 2^x for x <= 0, within 2 units of the last place; NaN for NaN.
inline Vector power_of_two(Vector x) {
  x = x < -126.0f ? Vector{} - 126.0f : x;
  const Vector shifted = x + 12582912.0f;  // 1.5 * 2^23: the whole part is in the last bits
  const Vector part = x - (shifted - 12582912.0f);
  Vector sum = part * 1.535334279e-4f + 1.339887476e-3f;
  sum = sum * part + 9.618437437e-3f;
  sum = sum * part + 5.550332470e-2f;
  sum = sum * part + 2.402264791e-1f;
  sum = sum * part + 6.931472029e-1f;
  sum = sum * part + 1.0f;
  const Bits scale = ((Bits)shifted << 23) + 0x3f800000u;
  return sum * (Vector)scale;
}

// kRows rows by kQueries columns of a product: weights (places, kRows) transposed times values (places, kQueries), in
// place of `out` or added to it.
template <bool kAdded>
void tile(const float* weights, const float* values, int64_t places, float* out) {
  Vector sums[kRows * VECTORS_TOGETHER];
  for (int64_t i = 0; i < kRows * VECTORS_TOGETHER; ++i) sums[i] = kAdded ? at(out + i * kLanes) : Vector{};
  for (int64_t k = 0; k < places; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      const Vector value = at(values + k * kQueries + v * kLanes);
      for (int64_t r = 0; r < kRows; ++r) sums[r * VECTORS_TOGETHER + v] += weights[k * kRows + r] * value;
    }
  for (int64_t i = 0; i < kRows * VECTORS_TOGETHER; ++i) at(out + i * kLanes) = sums[i];
}

// Scores (count, kQueries) become exponentials of their distance from the highest so far, which is `top`; what was
// summed and read with a lower one is made smaller accordingly.
inline void exponentials(float* scores, int64_t count, float* top, float* sum, float* read, int64_t width) {
  Vector above[VECTORS_TOGETHER], total[VECTORS_TOGETHER], smaller[VECTORS_TOGETHER];
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) above[v] = at(top + v * kLanes);
  for (int64_t k = 0; k < count; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      const Vector score = at(scores + k * kQueries + v * kLanes);
      above[v] = score > above[v] ? score : above[v];
    }
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
    smaller[v] = power_of_two(at(top + v * kLanes) - above[v]);
    total[v] = at(sum + v * kLanes) * smaller[v];
    at(top + v * kLanes) = above[v];
  }
  for (int64_t k = 0; k < count; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      Vector& score = at(scores + k * kQueries + v * kLanes);
      score = power_of_two(score - above[v]);
      total[v] += score;
    }
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) at(sum + v * kLanes) = total[v];
  for (int64_t c = 0; c < width; ++c)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) at(read + c * kQueries + v * kLanes) *= smaller[v];
}

// Of queries [first, first + kQueries) of one head, or as many as there are.
inline void attend(const Attention& call, int64_t head, int64_t first) {
  const Shape& n = call.n;
  const int64_t count = n.queries - first < kQueries ? n.queries - first : kQueries;
  const int64_t width = whole_tiles(n.width), b = head / n.heads, h = head % n.heads;
  std::vector<float> memory((n.width + width + kKeys) * kQueries);
  float *const queries = memory.data(), *const read = queries + n.width * kQueries;
  float* const scores = read + width * kQueries;
  for (int64_t i = 0; i < count; ++i) {
    const float* const from = call.query.token(b, h, first + i);
    for (int64_t c = 0; c < n.width; ++c) queries[c * kQueries + i] = from[c] * call.scale;
  }
  float top[kQueries], sum[kQueries] = {};
  for (float& each : top) each = -std::numeric_limits<float>::infinity();
  const float* const keys = call.keys + head * whole_tiles(n.keys) * n.width;
  const float* const values = call.values + head * n.keys * width;
  for (int64_t key = 0; key < n.keys; key += kKeys) {
    const int64_t together = n.keys - key < kKeys ? n.keys - key : kKeys;
    for (int64_t k = 0; k < together; k += kRows)
      tile<false>(keys + (key + k) * n.width, queries, n.width, scores + k * kQueries);
    exponentials(scores, together, top, sum, read, n.width);
    for (int64_t c = 0; c < width; c += kRows)
      tile<true>(values + c * n.keys + key * kRows, scores, together, read + c * kQueries);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = b * n.queries + first + i;
    float* const to = call.out + (place * n.heads + h) * n.width;
    for (int64_t c = 0; c < n.width; ++c) to[c] = read[c * kQueries + i] / sum[i];
    call.sums[place * n.heads + h] = (top[i] + std::log2(sum[i])) * kLogTwo;
  }
}
