// Gradients of a block of queries, or of a block of keys and values. Included like attention_tiles.h.
//
// With P the softmax, g the gradient of what was read and d = sum of g * read over channels (per query), scores have
// the gradient S = P * (g V^T - d): that of queries is S K, that of keys S^T Q, both times the scale, that of values
// P^T g.
// P is made again from scores, whose every bit is that of the forward pass, and the logarithms of their sums. Blocks
// share no sums, so threads need not either.

inline void write_columns(const float* columns, int64_t count, int64_t width, float factor, float* out, int64_t step) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < width; ++c) out[i * step + c] = columns[c * kColumns + i] * factor;
}

// Queries are the columns.
inline void to_queries(const Slopes& call, int64_t head, int64_t first) {
  const Shape& n = call.n;
  const int64_t count = std::min(n.queries - first, kColumns), b = head / n.heads, h = head % n.heads;
  std::vector<float> memory((2 * n.width + whole_tiles(n.width) + 2 * kTogether) * kColumns);
  float *const queries = memory.data(), *const grads = queries + n.width * kColumns;
  float *const sums = grads + n.width * kColumns, *const scores = sums + whole_tiles(n.width) * kColumns;
  float* const slopes = scores + kTogether * kColumns;
  to_columns(call.query, b, h, first, count, n.width, call.scale / kLogTwo, queries);
  to_columns(call.grad, b, h, first, count, n.width, 1, grads);
  float level[kColumns] = {}, mean[kColumns] = {};
  std::copy_n(call.level + head * n.queries + first, count, level);
  std::copy_n(call.mean + head * n.queries + first, count, mean);
  for (int64_t key = 0; key < n.keys; key += kTogether) {
    const int64_t together = std::min(n.keys - key, kTogether);
    scores_of(call.keys, head, key, together, queries, scores);
    scores_of(call.values, head, key, together, grads, slopes);
    for (int64_t k = 0; k < together; ++k)
      for (int64_t v = 0; v < kColumns; v += kLanes) {
        const Vector weight = power_of_two(at(scores + k * kColumns + v) - at(level + v));
        at(slopes + k * kColumns + v) = weight * (at(slopes + k * kColumns + v) - at(mean + v));
      }
    add_weighed(call.keys, head, key, together, slopes, sums);
  }
  const int64_t place = (b * n.queries + first) * n.heads + h;
  write_columns(sums, count, n.width, call.scale, call.to_query + place * n.width, n.heads * n.width);
}

// What a block of keys has while queries pass by.
struct KeyBlock {
  float *keys, *values, *key_sums, *value_sums;  // (width, kColumns)

  KeyBlock(float* memory, int64_t width)
      : keys(memory), values(keys + width * kColumns), key_sums(values + width * kColumns),
        value_sums(key_sums + width * kColumns) {}
};

// What queries [query, query + together) give to one.
inline void pass_by(const Slopes& call, int64_t head, int64_t query, int64_t together, const KeyBlock& to,
                    float* scores, float* slopes) {
  const float *const level = call.level + head * call.n.queries + query;
  const float *const mean = call.mean + head * call.n.queries + query;
  scores_of(call.queries, head, query, together, to.keys, scores);
  scores_of(call.grads, head, query, together, to.values, slopes);
  for (int64_t i = 0; i < together; ++i)
    for (int64_t v = 0; v < kColumns; v += kLanes) {
      Vector &weight = at(scores + i * kColumns + v), &slope = at(slopes + i * kColumns + v);
      weight = power_of_two(weight - level[i]);
      slope = weight * (slope - mean[i]);
    }
  add_weighed(call.grads, head, query, together, scores, to.value_sums);
  add_weighed(call.queries, head, query, together, slopes, to.key_sums);
}

// Keys and values are the columns, several blocks of them: queries come from the second cache for all but the first.
constexpr int64_t kKeys = 4 * kColumns;

inline void to_keys(const Slopes& call, int64_t head, int64_t first) {
  const Shape& n = call.n;
  const int64_t b = head / n.heads, h = head % n.heads, end = std::min(n.keys, first + kKeys);
  const int64_t width = whole_tiles(n.width), size = 4 * width * kColumns;
  std::vector<float> memory(kKeys / kColumns * size + 2 * kTogether * kColumns);
  float *const scores = memory.data() + kKeys / kColumns * size, *const slopes = scores + kTogether * kColumns;
  const auto each = [&](auto task) {
    for (int64_t key = first, i = 0; key < end; key += kColumns, ++i)
      task(key, std::min(end - key, kColumns), KeyBlock(memory.data() + i * size, width));
  };
  each([&](int64_t key, int64_t count, const KeyBlock& of) {
    to_columns(call.key, b, h, key, count, n.width, 1, of.keys);
    to_columns(call.value, b, h, key, count, n.width, 1, of.values);
  });
  for (int64_t query = 0; query < n.queries; query += kTogether)
    each([&](int64_t, int64_t, const KeyBlock& to) {
      pass_by(call, head, query, std::min(n.queries - query, kTogether), to, scores, slopes);
    });
  each([&](int64_t key, int64_t count, const KeyBlock& of) {
    const int64_t place = ((b * n.keys + key) * n.heads + h) * n.width, step = n.heads * n.width;
    write_columns(of.key_sums, count, n.width, kLogTwo, call.to_key + place, step);
    write_columns(of.value_sums, count, n.width, 1, call.to_value + place, step);
  });
}
