// What a block of queries reads. Included like attention_tiles.h; queries are the columns, so a softmax over keys needs
// no sum across a vector.

// Scores (count, kColumns) become exponentials of their distance from the highest so far, which is `top`; what was
// summed and read with a lower one is made smaller accordingly.
inline void exponentials(float* scores, int64_t count, float* top, float* sum, float* read, int64_t width) {
  Vector above[VECTORS_TOGETHER], total[VECTORS_TOGETHER], smaller[VECTORS_TOGETHER];
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) above[v] = at(top + v * kLanes);
  for (int64_t k = 0; k < count; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      const Vector score = at(scores + k * kColumns + v * kLanes);
      above[v] = score > above[v] ? score : above[v];
    }
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
    smaller[v] = power_of_two(at(top + v * kLanes) - above[v]);
    total[v] = at(sum + v * kLanes) * smaller[v];
    at(top + v * kLanes) = above[v];
  }
  for (int64_t k = 0; k < count; ++k)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) {
      Vector& score = at(scores + k * kColumns + v * kLanes);
      score = power_of_two(score - above[v]);
      total[v] += score;
    }
  for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) at(sum + v * kLanes) = total[v];
  for (int64_t c = 0; c < width; ++c)
    for (int64_t v = 0; v < VECTORS_TOGETHER; ++v) at(read + c * kColumns + v * kLanes) *= smaller[v];
}

// Of queries [first, first + kColumns) of one head, or as many as there are.
inline void attend(const Attention& call, int64_t head, int64_t first) {
  const Shape& n = call.n;
  const int64_t count = std::min(n.queries - first, kColumns), b = head / n.heads, h = head % n.heads;
  std::vector<float> memory((n.width + whole_tiles(n.width) + kTogether) * kColumns);
  float *const queries = memory.data(), *const read = queries + n.width * kColumns;
  float* const scores = read + whole_tiles(n.width) * kColumns;
  to_columns(call.query, b, h, first, count, n.width, call.scale / kLogTwo, queries);
  float top[kColumns], sum[kColumns] = {};
  for (float& each : top) each = -std::numeric_limits<float>::infinity();
  for (int64_t key = 0; key < n.keys; key += kTogether) {
    const int64_t together = std::min(n.keys - key, kTogether);
    scores_of(call.keys, head, key, together, queries, scores);
    exponentials(scores, together, top, sum, read, n.width);
    add_weighed(call.values, head, key, together, scores, read);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = (b * n.queries + first + i) * n.heads + h;
    for (int64_t c = 0; c < n.width; ++c) call.out[place * n.width + c] = read[c * kColumns + i] / sum[i];
    call.sums[place] = (top[i] + std::log2(sum[i])) * kLogTwo;
  }
}
