// Vectors of VECTOR_BYTES, and products of tiles of them: attention.cpp includes this once for each kind of processor,
// since compilers keep in registers only vectors of the processor's own size.
//
// Columns lie side by side in the vectors. kRows rows by VECTORS_TOGETHER vectors are as many sums as there are
// registers for.

constexpr int64_t kLanes = VECTOR_BYTES / sizeof(float), kColumns = VECTORS_TOGETHER * kLanes;

typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES), may_alias));

inline Vector& at(float* place) { return *reinterpret_cast<Vector*>(place); }
inline const Vector& at(const float* place) { return *reinterpret_cast<const Vector*>(place); }

// 2^x within 2 units of the last place for x up to 100, zero below -100, where products would become subnormal numbers
// (processors take a hundred times as long for them), NaN for NaN.
inline Vector power_of_two(Vector x) {
  const Vector shifted = x + 12582912.0f;  // 1.5 * 2^23: the whole part is in the last bits
  const Vector part = x - (shifted - 12582912.0f);
  Vector sum = part * 1.535334279e-4f + 1.339887476e-3f;
  sum = sum * part + 9.618437437e-3f;
  sum = sum * part + 5.550332470e-2f;
  sum = sum * part + 2.402264791e-1f;
  sum = sum * part + 6.931472029e-1f;
  sum = sum * part + 1.0f;
  const Bits scale = ((Bits)shifted << 23) + 0x3f800000u;
  return x < -100.0f ? Vector{} : sum * (Vector)scale;
}

// kRows rows by kColumns columns of a product: weights (places, kRows) transposed times values (places, kColumns), in
// place of `out` or added to it.
template <bool kAdded>
void tile(const float* weights, const float* values, int64_t places, float* out) {
  Vector sums[kRows * VECTORS_TOGETHER];
  for (int64_t i = 0; i < kRows * VECTORS_TOGETHER; ++i) sums[i] = kAdded ? at(out + i * kLanes) : Vector{};
  for (int64_t k = 0; k < places; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      const Vector value = at(values + k * kColumns + v * kLanes);
      for (int64_t r = 0; r < kRows; ++r) sums[r * VECTORS_TOGETHER + v] += weights[k * kRows + r] * value;
    }
  for (int64_t i = 0; i < kRows * VECTORS_TOGETHER; ++i) at(out + i * kLanes) = sums[i];
}

// Products of `count` tokens [first, first + count) of a head with the columns: (count, kColumns) of (width, kColumns).
inline void scores_of(const Packed& tokens, int64_t head, int64_t first, int64_t count, const float* columns,
                      float* out) {
  for (int64_t i = 0; i < count; i += kRows)
    tile<false>(tokens.by_token(head, first + i), columns, tokens.width, out + i * kColumns);
}

// Sums of those tokens, weighed by (count, kColumns), added to (width, kColumns).
inline void add_weighed(const Packed& tokens, int64_t head, int64_t first, int64_t count, const float* weights,
                        float* out) {
  for (int64_t c = 0; c < tokens.width; c += kRows)
    tile<true>(tokens.by_channel(head, c, first), weights, count, out + c * kColumns);
}

// kColumns tokens of a head from `first` on, or `count` of them and zeros: times a factor into (width, kColumns).
inline void to_columns(const Tokens& tokens, int64_t b, int64_t h, int64_t first, int64_t count, int64_t width,
                       float factor, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float* const from = tokens.token(b, h, first + i);
    for (int64_t c = 0; c < width; ++c) out[c * kColumns + i] = from[c] * factor;
  }
}
