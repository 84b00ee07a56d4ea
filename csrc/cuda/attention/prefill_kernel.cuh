// The prefill kernel: one warp copies queries, keys and values by the copy engine, W warpgroups of 64 rows multiply and
// take the softmax. A row of a tile is a query token under one of the heads of a KV head. Knows nothing of launching.
//
// Shared memory holds tiles as panels of 64 columns whose rows of 128 bytes are swizzled by the copy engine, which is
// what wgmma reads: queries and keys K-major, values MN-major, so that nothing is transposed by copying. Queries lie as
// [panel][row]; keys and values as [eight rows][panel][row], so that one copy brings all columns of a block's keys, or
// (Panelled) as [panel][row] with a copy a panel. The scores of the next keys are multiplied while the softmax of the
// last ones runs; with PingPong the warpgroups take turns as well.
#pragma once

#include "cuda/attention/hopper.cuh"
#include "cuda/attention/prefill_work.cuh"
#include "cuda/attention/wgmma.cuh"

namespace llm_kernels::cuda::attention {

struct PrefillParams {
  PrefillRows rows;
  void* out;
  std::int64_t out_stride_token, out_stride_head;
  const float* sinks;
  float* log_sum_exp;
  std::int32_t* tile_counter;
  std::int32_t group, num_tokens, num_blocks;
  float scale_log2;  // of a (capped) score, times log2(e)
  float cap_scale;   // 0: no cap; else scale / cap, by which a score is multiplied before tanh
};

template <class T, int D, int N, int Groups, int Stages, bool PingPong, bool Panelled = false,
          bool HeldQueries = false>
struct PrefillConfig {
  using Element = T;
  static constexpr int kHead = D, kKeys = N, kGroups = Groups, kStages = Stages, kRows = 64 * Groups;
  static constexpr bool kPingPong = PingPong, kPanelled = Panelled, kHeldQueries = HeldQueries;
  static constexpr int kPanels = (D + 63) / 64;
  static constexpr int kThreads = 128 * (Groups + 1);
  // Bytes. From one panel to the next, and from eight keys to the next eight.
  static constexpr int kQueryPanel = kRows * 128;
  static constexpr int kKeyPanel = Panelled ? N * 128 : 1024, kEightKeys = Panelled ? 1024 : kPanels * 1024;
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kKeyBytes = kPanels * N * 128;
  // The queries of the next piece are copied during a piece where there is room for both.
  static constexpr int kQueryStages = !HeldQueries && 2 * kQueryBytes + 2 * Stages * kKeyBytes + 2048 <= 232448 ? 2 : 1;
  static constexpr int kKeyOffset = kQueryStages * kQueryBytes, kValueOffset = kKeyOffset + Stages * kKeyBytes;
  static constexpr int kBarrierOffset = kValueOffset + Stages * kKeyBytes;
  static constexpr int kSharedBytes = kBarrierOffset + 256 + 1024;  // the base is moved to a multiple of 1,024
  static constexpr int kProducerRegisters = Groups == 3 ? 32 : HeldQueries ? 24 : 40;
  static constexpr int kConsumerRegisters = Groups == 3 ? 160 : HeldQueries ? 240 : 232;
};

// Barriers and the two places for pieces, after the tiles. Addresses in shared memory.
template <class Config>
struct PrefillBarriers {
  std::uint32_t base;
  __device__ std::uint32_t key_full(int stage) const { return base + 8 * stage; }
  __device__ std::uint32_t key_empty(int stage) const { return base + 8 * (Config::kStages + stage); }
  __device__ std::uint32_t value_full(int stage) const { return base + 8 * (2 * Config::kStages + stage); }
  __device__ std::uint32_t value_empty(int stage) const { return base + 8 * (3 * Config::kStages + stage); }
  __device__ std::uint32_t query_full(int stage) const { return base + 8 * (4 * Config::kStages + stage); }
  __device__ std::uint32_t query_empty(int stage) const { return base + 8 * (4 * Config::kStages + 2 + stage); }
  __device__ std::uint32_t piece_full(int slot) const { return base + 8 * (4 * Config::kStages + 4 + slot); }
  __device__ std::uint32_t piece_empty(int slot) const { return base + 8 * (4 * Config::kStages + 6 + slot); }
};

// Place in a ring of `Size` and the parity of the round; advances in order.
template <int Size>
struct Ring {
  int place = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == Size) {
      place = 0;
      parity ^= 1;
    }
  }
};

template <class Config>
__device__ __forceinline__ int num_key_tiles(const Piece& piece) {
  return piece.key_end > piece.key_begin ? (piece.key_end - piece.key_begin + Config::kKeys - 1) / Config::kKeys : 0;
}

// A box of keys or values of one head: from key `offset` of a block on.
template <class Config>
__device__ __forceinline__ void copy_keys(std::uint32_t to, const CUtensorMap* map, int offset, int head, int block,
                                          std::uint32_t barrier) {
  if constexpr (Config::kPanelled) {
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      copy_box(to + panel * Config::kKeyPanel, map, panel * 64, offset, head, block, barrier);
    }
  } else {
    copy_box(to, map, 0, 0, head * Config::kPanels, offset / 8, block, barrier);
  }
}

// Where the keys that a lane copies lie: those of box `lane` of a tile. A block past the last one stands for zeros.
struct Box {
  int block, offset;
};
__device__ __forceinline__ Box box_of(const PrefillParams& params, const Piece& piece, const std::int32_t* table,
                                      int key, bool is_copied) {
  if (!is_copied || key >= piece.key_end) return {params.num_blocks, 0};
  return {table[key / params.rows.block_size], key % params.rows.block_size};
}

// Deals out pieces: by a counter in device memory, asked one piece ahead, or in turns to and fro over the blocks.
struct Dealer {
  std::int32_t* counter;
  int ahead, round = 0;
  __device__ __forceinline__ explicit Dealer(std::int32_t* counter) : counter(counter) { ask(); }
  __device__ __forceinline__ void ask() {
    if (counter != nullptr && threadIdx.x % 32 == 0) ahead = atomicAdd(counter, 1);
  }
  __device__ __forceinline__ int next() {
    if (counter == nullptr) {
      const int place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
      return round++ * gridDim.x + place;
    }
    const int index = __shfl_sync(0xFFFFFFFFu, ahead, 0);
    ask();
    return index;
  }
};

// The copying warp: fetches pieces, publishes each, then copies its queries and its keys and values, last keys first.
template <class Config>
__device__ __forceinline__ void produce(const PrefillParams& params, const CUtensorMap* query_map,
                                        const CUtensorMap* key_map, const CUtensorMap* value_map, std::uint32_t tiles,
                                        Piece* pieces, PrefillBarriers<Config> barriers) {
  const int lane = threadIdx.x % 32;
  const PrefillRows& rows = params.rows;
  const bool is_copying = lane < Config::kKeys / rows.box_tokens;
  const std::uint32_t lane_bytes = lane * (rows.box_tokens / 8 * Config::kEightKeys);
  const int lane_keys = lane * rows.box_tokens;
  Ring<Config::kStages> ring;
  Ring<2> slot;
  Ring<Config::kQueryStages> query;
  Dealer dealer(params.tile_counter);
  for (;;) {
    const Piece piece = find_piece(rows, dealer.next());
    if (piece.row >= 0 && piece.num_tokens == 0) continue;
    barrier_wait(barriers.piece_empty(slot.place), slot.parity ^ 1);
    if (lane == 0) {
      pieces[slot.place] = piece;
      barrier_arrive(barriers.piece_full(slot.place));
    }
    slot.advance();
    if (piece.row < 0) break;
    int tile = num_key_tiles<Config>(piece) - 1;
    if (tile < 0) continue;

    const std::int32_t* table = rows.block_tables + piece.row * rows.block_tables_stride;
    int key = piece.key_begin + tile * Config::kKeys + lane_keys;
    Box box = box_of(params, piece, table, key, is_copying);
    barrier_wait(barriers.query_empty(query.place), query.parity ^ 1);
    if (lane == 0) {
      barrier_expect(barriers.query_full(query.place), Config::kPanels * rows.tokens_per_tile * params.group * 128);
      for (int panel = 0; panel < Config::kPanels; ++panel) {
        copy_box(tiles + query.place * Config::kQueryBytes + panel * Config::kQueryPanel, query_map, panel * 64,
                 piece.kv_head * params.group, piece.first_token, barriers.query_full(query.place));
      }
    }
    query.advance();
    for (; tile >= 0; --tile) {
      const Box here = box;
      key -= Config::kKeys;
      box = box_of(params, piece, table, key, is_copying && tile > 0);
      const std::uint32_t to = tiles + ring.place * Config::kKeyBytes + lane_bytes;
      barrier_wait(barriers.key_empty(ring.place), ring.parity ^ 1);
      if (lane == 0) barrier_expect(barriers.key_full(ring.place), Config::kKeyBytes);
      __syncwarp();
      if (is_copying) {
        copy_keys<Config>(to + Config::kKeyOffset, key_map, here.offset, piece.kv_head, here.block,
                          barriers.key_full(ring.place));
      }
      barrier_wait(barriers.value_empty(ring.place), ring.parity ^ 1);
      if (lane == 0) barrier_expect(barriers.value_full(ring.place), Config::kKeyBytes);
      __syncwarp();
      if (is_copying) {
        copy_keys<Config>(to + Config::kValueOffset, value_map, here.offset, piece.kv_head, here.block,
                          barriers.value_full(ring.place));
      }
      ring.advance();
    }
  }
}

template <class T>
__device__ __forceinline__ std::uint32_t packed(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t packed<__nv_bfloat16>(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
template <>
__device__ __forceinline__ std::uint32_t packed<__half>(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// What a multiplying thread holds of its 64 x D tile: rows `lane / 4` and 8 further of its warp's 16, of each eight
// columns two. `maximum` is of raw (capped) scores.
template <class Config>
struct Accumulators {
  float total[Config::kHead / 2];
  float scores[Config::kKeys / 2];
  std::uint32_t weights[Config::kKeys / 4];
  float maximum[2], weight[2];
};

// scores = Q K^T
template <class Config>
__device__ __forceinline__ void multiply_scores(float (&scores)[Config::kKeys / 2], std::uint32_t queries,
                                                std::uint32_t keys) {
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int panel = step / 4, bytes = step % 4 * 32;
    ScoreProduct<typename Config::Element, Config::kKeys>::run(
        scores, k_major_tile(queries + panel * Config::kQueryPanel + bytes, 1024),
        k_major_tile(keys + panel * Config::kKeyPanel + bytes, Config::kEightKeys), step > 0);
  }
}

// The 16 rows of a warp as fragments: registers 4 * step to 4 * step + 3 hold columns 16 * step on.
template <class Config>
__device__ __forceinline__ void load_queries(std::uint32_t (&fragments)[Config::kHead / 4], std::uint32_t queries,
                                             int thread) {
  const int row = thread / 32 * 16 + thread % 16, high = thread % 32 / 16;
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int chunk = step % 4 * 2 + high;
    const std::uint32_t from = queries + step / 4 * Config::kQueryPanel + row * 128 + (chunk ^ row % 8) * 16;
    std::uint32_t* x = fragments + 4 * step;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
}

// scores = Q K^T, queries in registers
template <class Config>
__device__ __forceinline__ void multiply_scores(float (&scores)[Config::kKeys / 2],
                                                const std::uint32_t (&queries)[Config::kHead / 4], std::uint32_t keys) {
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int panel = step / 4, bytes = step % 4 * 32;
    RegisterScoreProduct<typename Config::Element, Config::kKeys>::run(
        scores, queries + 4 * step, k_major_tile(keys + panel * Config::kKeyPanel + bytes, Config::kEightKeys),
        step > 0);
  }
}

// The value product of the columns from `Column` on: in widths that exist, none of which starts within a panel.
template <class Config, int Column>
__device__ __forceinline__ void multiply_columns(float (&total)[Config::kHead / 2], const std::uint32_t* weights,
                                                 std::uint32_t values) {
  constexpr int left = Config::kHead - Column;
  if constexpr (left > 0) {
    constexpr int width = left >= 128 ? 128 : left >= 64 ? 64 : left >= 32 ? 32 : 16;
    constexpr int inside = Column % 64 * 2;  // bytes; columns of one panel lie in its 128-byte rows
    ValueProduct<typename Config::Element, width>::run(
        total + Column / 2, weights,
        mn_major_tile(values + Column / 64 * Config::kKeyPanel + inside, Config::kEightKeys, Config::kKeyPanel));
    multiply_columns<Config, Column + width>(total, weights, values);
  }
}

// total += P V
template <class Config>
__device__ __forceinline__ void multiply_values(float (&total)[Config::kHead / 2],
                                                const std::uint32_t (&weights)[Config::kKeys / 4],
                                                std::uint32_t values) {
#pragma unroll
  for (int step = 0; step < Config::kKeys / 16; ++step) {
    multiply_columns<Config, 0>(total, weights + 4 * step, values + step * 2 * Config::kEightKeys);
  }
}

// The bounds of the keys that the two rows of a thread see.
struct Bounds {
  int lowest[2], highest[2];
};

template <int Scores>
__device__ __forceinline__ void hide(float (&scores)[Scores], const Bounds& bounds, int first_key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int low = bounds.lowest[half] - first_key, high = bounds.highest[half] - first_key;
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * i + e;
        float& score = scores[4 * i + 2 * half + e];
        score = column >= low && column <= high ? score : -INFINITY;
      }
    }
  }
}

// Replaces scores by weights 2^(scale * (score - maximum)) and returns how far the earlier sums of the rows fade.
template <int Scores>
__device__ __forceinline__ void take_softmax(float (&scores)[Scores], float (&maximum)[2], float (&weight)[2],
                                             float (&fade)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = maximum[half];
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
      best = fmaxf(best, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
    }
    best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 2));
    // A row that has seen no key yet keeps -inf; 0 stands in so that no difference is NaN.
    const float shift = best == -INFINITY ? 0.0f : best * scale;
    fade[half] = exp2_fast(maximum[half] * scale - shift);
    maximum[half] = best;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * i + 2 * half + e];
        score = exp2_fast(score * scale - shift);
        sum += score;
      }
    }
    weight[half] = weight[half] * fade[half] + sum;
  }
}

template <int Scores>
__device__ __forceinline__ void cap(float (&scores)[Scores], float scale) {
#pragma unroll
  for (int i = 0; i < Scores; ++i) {
    // tanh(x) = 1 - 2 / (e^2x + 1)
    scores[i] = 1.0f - __fdividef(2.0f, exp2_fast(scores[i] * scale * 2.885390082f) + 1.0f);
  }
}

template <class T, int Scores>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[Scores / 2], const float (&scores)[Scores]) {
#pragma unroll
  for (int i = 0; i < Scores / 2; ++i) weights[i] = packed<T>(scores[2 * i], scores[2 * i + 1]);
}

// The four threads of a row each hold two columns of each of four runs of eight; afterwards each holds one whole run.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int member) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = member & bit;
      const std::uint32_t sent = upper ? x[i] : x[i | bit];
      const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, sent, bit);
      if (upper) {
        x[i] = got;
      } else {
        x[i | bit] = got;
      }
    }
  }
}

// Divides by the weights and writes the rows of this thread that are query tokens of the piece.
template <class Config>
__device__ __forceinline__ void write_rows(const PrefillParams& params, const Piece& piece,
                                           const float (&total)[Config::kHead / 2], const float (&maximum)[2],
                                           const float (&weight)[2], int first_row) {
  using T = typename Config::Element;
  const int member = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    const int query = row / params.group, head = piece.kv_head * params.group + row % params.group;
    const bool is_inside = query < piece.num_tokens;
    float sum = weight[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const float peak = maximum[half] * params.scale_log2;
    if (params.sinks != nullptr && is_inside && sum > 0.0f) {
      sum += exp2_fast(params.sinks[head] * 1.4426950408889634f - peak);
    }
    const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
    const std::int64_t token = piece.first_token + query;
    if (params.log_sum_exp != nullptr && is_inside && member == 0) {
      params.log_sum_exp[static_cast<std::int64_t>(head) * params.num_tokens + token] =
          sum > 0.0f ? (peak + log2f(sum)) * 0.6931471805599453f : -INFINITY;
    }
    T* to = static_cast<T*>(params.out) + token * params.out_stride_token + head * params.out_stride_head;
#pragma unroll
    for (int run = 0; run < Config::kHead / 32; ++run) {
      std::uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * run + 4 * i + 2 * half;
        x[i] = packed<T>(total[at] * share, total[at + 1] * share);
      }
      transpose_quad(x, member);
      if (is_inside) *reinterpret_cast<uint4*>(to + 32 * run + 8 * member) = make_uint4(x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int i = Config::kHead / 32 * 4; i < Config::kHead / 8; ++i) {  // head sizes that are no multiple of 32
      const int at = 4 * i + 2 * half;
      const std::uint32_t x = packed<T>(total[at] * share, total[at + 1] * share);
      if (is_inside) *reinterpret_cast<std::uint32_t*>(to + 8 * i + 2 * member) = x;
    }
  }
}

// What a copy brings beyond the row's context may be NaN, which a weight of 0 would not hide: zeros for those values.
template <class Config>
__device__ __forceinline__ void clear_values(std::uint32_t values, int begin, int end, int thread) {
  const int words = (end - begin) * 8;  // of 16 bytes, a panel
  for (int i = thread; i < words * Config::kPanels; i += 128) {
    const int row = begin + i % words / 8;
    const std::uint32_t to =
        values + i / words * Config::kKeyPanel + row / 8 * Config::kEightKeys + row % 8 * 128 + i % 8 * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  }
  fence_async_proxy();
}

// One multiplying warpgroup.
template <class Config>
__device__ __forceinline__ void consume(const PrefillParams& params, std::uint32_t tiles, const Piece* pieces,
                                        PrefillBarriers<Config> barriers) {
  using T = typename Config::Element;
  constexpr int kTurn = 1, kOwn = 1 + Config::kGroups;  // named barriers
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int member = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int first_row = member * 64 + thread / 32 * 16 + lane / 4;
  const PrefillRows& rows = params.rows;
  const int next = member + 1 == Config::kGroups ? 0 : member + 1;
  Ring<Config::kStages> keys, values;
  Ring<2> slot;
  Ring<Config::kQueryStages> query;
  if (Config::kPingPong && member == Config::kGroups - 1) named_arrive(kTurn, 256);

  for (;;) {
    barrier_wait(barriers.piece_full(slot.place), slot.parity);
    const Piece piece = pieces[slot.place];
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers.piece_empty(slot.place));
    slot.advance();
    if (piece.row < 0) break;
    const int num_tiles = num_key_tiles<Config>(piece);

    float total[Config::kHead / 2];
#pragma unroll
    for (int i = 0; i < Config::kHead / 2; ++i) total[i] = 0.0f;
    float maximum[2] = {-INFINITY, -INFINITY}, weight[2] = {0.0f, 0.0f}, fade[2];
    if (num_tiles > 0) {
      float scores[Config::kKeys / 2];
      std::uint32_t weights[Config::kKeys / 4];
      Bounds bounds;
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // less the thread's first column
        const int position = piece.position + (first_row + 8 * half) / params.group;
        bounds.highest[half] = (rows.causal ? position : piece.context - 1) - lane % 4 * 2;
        bounds.lowest[half] = lowest_key(rows, position) - lane % 4 * 2;
      }
      const int last_position = piece.position + piece.num_tokens - 1;
      const int shared_begin = rows.causal ? lowest_key(rows, last_position) : 0;
      const int shared_end = rows.causal ? piece.position + 1 : piece.context;  // all rows see the keys between
      const auto shape = [&](int first_key) {
        if (params.cap_scale > 0.0f) cap(scores, params.cap_scale);
        if (first_key < shared_begin || first_key + Config::kKeys > shared_end) hide(scores, bounds, first_key);
        take_softmax(scores, maximum, weight, fade, params.scale_log2);
      };
      int first_key = piece.key_begin + (num_tiles - 1) * Config::kKeys;

      const std::uint32_t queries = tiles + query.place * Config::kQueryBytes + member * 64 * 128;
      barrier_wait(barriers.query_full(query.place), query.parity);
      [[maybe_unused]] std::uint32_t fragments[Config::kHead / 4];
      if constexpr (Config::kHeldQueries) {
        load_queries<Config>(fragments, queries, thread);
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.query_empty(query.place));
      }
      const auto score = [&] {
        const std::uint32_t tile = tiles + Config::kKeyOffset + keys.place * Config::kKeyBytes;
        if constexpr (Config::kHeldQueries) {
          multiply_scores<Config>(scores, fragments, tile);
        } else {
          multiply_scores<Config>(scores, queries, tile);
        }
        wgmma_commit();
      };
      barrier_wait(barriers.key_full(keys.place), keys.parity);
      hold(scores);
      wgmma_fence();
      score();
      wgmma_wait<0>();
      hold(scores);
      if (lane == 0) barrier_arrive(barriers.key_empty(keys.place));
      keys.advance();
      shape(first_key);
      pack_weights<T>(weights, scores);
      if (first_key + Config::kKeys > piece.context && piece.context % rows.box_tokens != 0) {
        barrier_wait(barriers.value_full(values.place), values.parity);
        const int begin = piece.context - first_key;
        const int end = begin + rows.box_tokens - piece.context % rows.box_tokens;
        clear_values<Config>(tiles + Config::kValueOffset + values.place * Config::kKeyBytes, begin, end, thread);
        named_sync(kOwn + member, 128);
      }

      for (int tile = num_tiles - 2; tile >= 0; --tile) {
        first_key -= Config::kKeys;
        barrier_wait(barriers.key_full(keys.place), keys.parity);
        barrier_wait(barriers.value_full(values.place), values.parity);
        if constexpr (Config::kPingPong) named_sync(kTurn + member, 256);
        hold(scores);
        hold(total);
        wgmma_fence();
        score();
        multiply_values<Config>(total, weights, tiles + Config::kValueOffset + values.place * Config::kKeyBytes);
        wgmma_commit();
        if constexpr (Config::kPingPong) named_arrive(kTurn + next, 256);
        wgmma_wait<1>();
        hold(scores);
        if (lane == 0) barrier_arrive(barriers.key_empty(keys.place));
        keys.advance();
        shape(first_key);
        hold(scores);
        // Passes at once. A branch is what keeps ptxas 13.0 from moving the wait for the product to before the softmax.
        barrier_wait(barriers.value_full(values.place), values.parity);
        wgmma_wait<0>();
        hold(total);
        if (lane == 0) barrier_arrive(barriers.value_empty(values.place));
        values.advance();
#pragma unroll
        for (int i = 0; i < Config::kHead / 2; ++i) total[i] *= fade[i / 2 % 2];
        pack_weights<T>(weights, scores);
      }

      if (!Config::kHeldQueries && lane == 0) barrier_arrive(barriers.query_empty(query.place));
      query.advance();
      barrier_wait(barriers.value_full(values.place), values.parity);
      hold(total);
      wgmma_fence();
      multiply_values<Config>(total, weights, tiles + Config::kValueOffset + values.place * Config::kKeyBytes);
      wgmma_commit();
      wgmma_wait<0>();
      hold(total);
      if (lane == 0) barrier_arrive(barriers.value_empty(values.place));
      values.advance();
    }
    write_rows<Config>(params, piece, total, maximum, weight, first_row);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    prefill_kernel(const PrefillParams params, const __grid_constant__ CUtensorMap query_map,
                   const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap value_map) {
  extern __shared__ char raw[];
  __shared__ Piece pieces[2];
  const std::uint32_t tiles = (shared_address(raw) + 1023) / 1024 * 1024;
  const PrefillBarriers<Config> barriers{tiles + Config::kBarrierOffset};
  if (threadIdx.x == 0) {
    prefetch_map(&query_map);
    prefetch_map(&key_map);
    prefetch_map(&value_map);
    constexpr int warps = 4 * Config::kGroups;
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(barriers.key_full(stage), 1);
      barrier_init(barriers.key_empty(stage), warps);
      barrier_init(barriers.value_full(stage), 1);
      barrier_init(barriers.value_empty(stage), warps);
    }
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(barriers.query_full(slot), 1);
      barrier_init(barriers.query_empty(slot), warps);
      barrier_init(barriers.piece_full(slot), 1);
      barrier_init(barriers.piece_empty(slot), warps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier_kernels();
  if (threadIdx.x < 128) {
    give_registers<Config::kProducerRegisters>();
    if (threadIdx.x < 32) produce<Config>(params, &query_map, &key_map, &value_map, tiles, pieces, barriers);
  } else {
    take_registers<Config::kConsumerRegisters>();
    consume<Config>(params, tiles, pieces, barriers);
  }
}

}  // namespace llm_kernels::cuda::attention
