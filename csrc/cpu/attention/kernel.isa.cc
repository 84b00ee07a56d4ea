// One work item of paged attention: tiles of keys, online softmax, float32 accumulation.
//
// Few query rows (decode) read keys and values where they lie. Many (prefill) first copy a tile: keys transposed,
// values widened, which then serves up to kMaxItemRows rows.

#include "cpu/attention/gemm.h"
#include "cpu/attention/kernel.h"
#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {
namespace {

constexpr std::int64_t kDirectRows = 8;
constexpr float kMinusInfinity = -__builtin_inff();

struct Scratch {
  float* query;   // [rows, D], scaled
  float* sum;     // [rows, V]
  float* scores;  // [rows, kKeyTile]
  float* maximum; // [rows]
  float* weight;  // [rows]
  float* keys;    // [D, kKeyTile], packed path only
  float* values;  // [kKeyTile, V], packed path only
};

Scratch lay_out(float* base, std::int64_t head_size, std::int64_t value_size) {
  Scratch s;
  s.query = base;
  s.sum = s.query + kMaxItemRows * head_size;
  s.keys = s.sum + kMaxItemRows * value_size;
  s.values = s.keys + kKeyTile * head_size;
  s.scores = s.values + kKeyTile * value_size;
  s.maximum = s.scores + kMaxItemRows * kKeyTile;
  s.weight = s.maximum + kMaxItemRows;
  return s;
}

template <class T>
void load_queries(const PagedAttentionArgs& args, const AttentionItem& item, const Scratch& s) {
  const std::int64_t group = args.num_heads / args.num_kv_heads, d = args.head_size;
  const T* base = static_cast<const T*>(args.query);
  const VecF scale = splat(args.scale);
  for (std::int64_t t = 0; t < item.num_tokens; ++t) {
    for (std::int64_t g = 0; g < group; ++g) {
      const T* from = base + (item.token + t) * args.query_stride_token +
                      (item.kv_head * group + g) * args.query_stride_head;
      float* to = s.query + (t * group + g) * d;
      for (std::int64_t i = 0; i < d; i += kLanes) store(to + i, load(from + i) * scale);
    }
  }
}

// Pointers to the keys (or values) of the tile.
template <class T>
void tile_rows(const PagedAttentionArgs& args, const AttentionItem& item, const CacheView& cache, std::int64_t begin,
               std::int64_t count, const T** rows) {
  const std::int32_t* table = args.block_tables + item.row * args.block_tables_stride;
  const T* base = static_cast<const T*>(cache.data) + item.kv_head * cache.stride_head;
  std::int64_t block = begin / args.block_size, offset = begin % args.block_size;
  for (std::int64_t n = 0; n < count;) {
    const T* at = base + table[block] * cache.stride_block + offset * cache.stride_token;
    for (; offset < args.block_size && n < count; ++offset, ++n, at += cache.stride_token) rows[n] = at;
    offset = 0;
    ++block;
  }
}

// scores[m][n .. n + N) = query[m] . key[n]
template <int M, int N, class T>
LLM_INLINE void dot_block(const float* query, const T* const* keys, std::int64_t d, float* scores) {
  VecF acc[M][N] = {};
  for (std::int64_t i = 0; i < d; i += kLanes) {
    VecF key[N];
    for (int n = 0; n < N; ++n) key[n] = load(keys[n] + i);
    for (int m = 0; m < M; ++m) {
      const VecF q = load(query + m * d + i);
      for (int n = 0; n < N; ++n) acc[m][n] += q * key[n];
    }
  }
  for (int m = 0; m < M; ++m) {
    if constexpr (N == 4) {
      const Vec4 sums = horizontal_sums(acc[m][0], acc[m][1], acc[m][2], acc[m][3]);
      std::memcpy(scores + m * kKeyTile, &sums, sizeof(sums));
    } else {
      for (int n = 0; n < N; ++n) scores[m * kKeyTile + n] = horizontal_sum(acc[m][n]);
    }
  }
}

template <int M, class T>
LLM_INLINE void dot_rows(const float* query, const T* const* keys, std::int64_t count, std::int64_t d, float* scores) {
  std::int64_t n = 0;
  for (; n + 4 <= count; n += 4) dot_block<M, 4>(query, keys + n, d, scores + n);
  for (; n < count; ++n) dot_block<M, 1>(query, keys + n, d, scores + n);
}

template <class T>
void direct_scores(const Scratch& s, std::int64_t rows, const T* const* keys, std::int64_t count, std::int64_t d) {
  std::int64_t m = 0;
  for (; m + 3 <= rows; m += 3) dot_rows<3>(s.query + m * d, keys, count, d, s.scores + m * kKeyTile);
  if (rows - m == 2) dot_rows<2>(s.query + m * d, keys, count, d, s.scores + m * kKeyTile);
  if (rows - m == 1) dot_rows<1>(s.query + m * d, keys, count, d, s.scores + m * kKeyTile);
}

// keys[d][n] = key n, zero past `count`.
template <class T>
void pack_keys(const T* const* rows, std::int64_t count, std::int64_t d, float* keys) {
  for (std::int64_t n = 0; n < kKeyTile; n += 4) {
    const T* row[4];
    for (int j = 0; j < 4; ++j) row[j] = n + j < count ? rows[n + j] : nullptr;
    for (std::int64_t i = 0; i < d; ++i) {
      float* to = keys + i * kKeyTile + n;
      for (int j = 0; j < 4; ++j) to[j] = row[j] != nullptr ? to_float(row[j][i]) : 0.0f;
    }
  }
}

template <class T>
void pack_values(const T* const* rows, std::int64_t count, std::int64_t d, float* values) {
  for (std::int64_t n = 0; n < count; ++n) {
    for (std::int64_t i = 0; i < d; i += kLanes) store(values + n * d + i, load(rows[n] + i));
  }
}

// Soft cap, ALiBi and mask of one row of scores; everything outside [low, high) and past `count` becomes -inf.
// `distance`: of the tile's first key from the query.
void shape_scores(float* scores, std::int64_t low, std::int64_t high, float soft_cap, float slope,
                  std::int64_t distance) {
  if (soft_cap > 0.0f) {
    const VecF inverse = splat(1.0f / soft_cap), cap = splat(soft_cap);
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes) store(scores + n, cap * tanh(load(scores + n) * inverse));
  }
  if (slope != 0.0f) {
    for (std::int64_t n = 0; n < kKeyTile; ++n) scores[n] -= slope * static_cast<float>(distance - n);
  }
  for (std::int64_t n = 0; n < low; ++n) scores[n] = kMinusInfinity;
  for (std::int64_t n = high; n < kKeyTile; ++n) scores[n] = kMinusInfinity;
}

// Turns one row of scores into weights and rescales what was summed before.
void soften(float* scores, float* maximum, float* weight, float* sum, std::int64_t d) {
  VecF best = load(scores);
  for (std::int64_t n = kLanes; n < kKeyTile; n += kLanes) best = max(best, load(scores + n));
  const float tile_max = horizontal_max(best);
  const float new_max = tile_max > *maximum ? tile_max : *maximum;
  if (new_max == kMinusInfinity) {  // nothing seen yet: all weights are 0
    for (std::int64_t n = 0; n < kKeyTile; n += kLanes) store(scores + n, VecF{});
    return;
  }
  const VecF shift = splat(new_max);
  VecF total = {};
  for (std::int64_t n = 0; n < kKeyTile; n += kLanes) {
    const VecF value = exp(load(scores + n) - shift);
    store(scores + n, value);
    total += value;
  }
  if (new_max != *maximum) {
    const VecF fade_all = exp(splat(*maximum - new_max));
    const float fade = fade_all[0];
    for (std::int64_t i = 0; i < d; i += kLanes) store(sum + i, load(sum + i) * fade);
    *weight *= fade;
    *maximum = new_max;
  }
  *weight += horizontal_sum(total);
}

void soften_rows(const PagedAttentionArgs& args, const AttentionItem& item, const Scratch& s, std::int64_t begin,
                 std::int64_t count) {
  const std::int64_t group = args.num_heads / args.num_kv_heads;
  for (std::int64_t t = 0; t < item.num_tokens; ++t) {
    const std::int64_t position = item.position + t;
    std::int64_t high = args.causal ? position + 1 - begin : count;
    if (high > count) high = count;
    if (high < 0) high = 0;
    std::int64_t low = args.causal ? first_key(args, position) - begin : 0;
    if (low < 0) low = 0;
    if (low > high) low = high;
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t m = t * group + g;
      const float slope = args.alibi_slopes == nullptr ? 0.0f : args.alibi_slopes[item.kv_head * group + g];
      shape_scores(s.scores + m * kKeyTile, low, high, args.soft_cap, slope, position - begin);
      soften(s.scores + m * kKeyTile, s.maximum + m, s.weight + m, s.sum + m * args.value_size, args.value_size);
    }
  }
}

template <class T>
void attend(const PagedAttentionArgs& args, const AttentionItem& item, const Scratch& s) {
  const std::int64_t d = args.head_size, v = args.value_size;
  const std::int64_t rows = item.num_tokens * (args.num_heads / args.num_kv_heads);
  const bool direct = rows <= kDirectRows && !args.batch_invariant;
  const T* keys[kKeyTile];
  const T* values[kKeyTile];
  // Where tiles must lie alike for all queries, the first may begin before the keys that are this item's.
  const std::int64_t first = args.batch_invariant ? item.key_begin / kKeyTile * kKeyTile : item.key_begin;
  for (std::int64_t begin = first; begin < item.key_end; begin += kKeyTile) {
    const std::int64_t count = item.key_end - begin < kKeyTile ? item.key_end - begin : kKeyTile;
    const std::int64_t skipped = item.key_begin > begin ? item.key_begin - begin : 0;
    tile_rows(args, item, args.key, begin + skipped, count - skipped, keys + skipped);
    tile_rows(args, item, args.value, begin + skipped, count - skipped, values + skipped);
    // Masked in any case; what lies there may be NaN, which a weight of 0 would not hide.
    for (std::int64_t n = 0; n < skipped; ++n) {
      keys[n] = keys[skipped];
      values[n] = values[skipped];
    }
    if (direct) {
      direct_scores(s, rows, keys, count, d);
    } else {
      pack_keys(keys, count, d, s.keys);
      std::memset(s.scores, 0, sizeof(float) * rows * kKeyTile);
      gemm(s.scores, kKeyTile, s.query, d, DenseRows{s.keys, kKeyTile}, rows, kKeyTile, d);
    }
    soften_rows(args, item, s, begin, count);
    if (direct) {
      gemm(s.sum, v, s.scores, kKeyTile, PagedRows<T>{values}, rows, v, count);
    } else {
      pack_values(values, count, v, s.values);
      gemm(s.sum, v, s.scores, kKeyTile, DenseRows{s.values, v}, rows, v, count);
    }
  }
}

template <class T>
void write_out(const PagedAttentionArgs& args, const AttentionItem& item, const Scratch& s) {
  const std::int64_t group = args.num_heads / args.num_kv_heads, d = args.value_size;
  T* base = static_cast<T*>(args.out);
  for (std::int64_t t = 0; t < item.num_tokens; ++t) {
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t m = t * group + g;
      T* to = base + (item.token + t) * args.out_stride_token + (item.kv_head * group + g) * args.out_stride_head;
      const float inverse = s.weight[m] > 0.0f ? 1.0f / s.weight[m] : 0.0f;
      for (std::int64_t i = 0; i < d; i += kLanes) store(to + i, load(s.sum + m * d + i) * inverse);
    }
  }
}

void write_partial(const AttentionItem& item, const Scratch& s, std::int64_t rows, std::int64_t d) {
  for (std::int64_t m = 0; m < rows; ++m) {
    float* to = item.partial + m * (d + 2);
    std::memcpy(to, s.sum + m * d, sizeof(float) * d);
    to[d] = s.maximum[m];
    to[d + 1] = s.weight[m];
  }
}

}  // namespace

void attention_item(const PagedAttentionArgs& args, const AttentionItem& item, float* scratch) {
  const std::int64_t v = args.value_size, group = args.num_heads / args.num_kv_heads;
  const std::int64_t rows = item.num_tokens * group;
  const Scratch s = lay_out(scratch, args.head_size, v);
  if (args.query_dtype == DType::kFloat32) {
    load_queries<float>(args, item, s);
  } else {
    load_queries<bf16>(args, item, s);
  }
  std::memset(s.sum, 0, sizeof(float) * rows * v);
  const bool has_sinks = args.sinks != nullptr && item.counts_sinks;
  for (std::int64_t m = 0; m < rows; ++m) {
    // A sink is a key of that score whose value is 0.
    s.maximum[m] = has_sinks ? args.sinks[item.kv_head * group + m % group] : kMinusInfinity;
    s.weight[m] = has_sinks ? 1.0f : 0.0f;
  }
  if (args.cache_dtype == DType::kFloat32) {
    attend<float>(args, item, s);
  } else {
    attend<bf16>(args, item, s);
  }
  if (item.partial != nullptr) {
    write_partial(item, s, rows, v);
  } else if (args.query_dtype == DType::kFloat32) {
    write_out<float>(args, item, s);
  } else {
    write_out<bf16>(args, item, s);
  }
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
