// The prefill kernel: one warp copies queries, keys and values by the copy engine, W warpgroups of 64 rows multiply and
// take the softmax. A row of a tile is a query token under one of the heads of a KV head. Knows nothing of launching.
//
// Shared memory holds tiles as panels of 64 columns whose rows of 128 bytes are swizzled by the copy engine, which is
// what wgmma reads: queries and keys K-major, values MN-major, so that nothing is transposed by copying. Queries lie as
// [panel][row]; keys and values as [eight rows][panel][row], so that one copy brings all columns of a block's keys, or
// (Panelled) as [panel][row] with a copy a panel. The scores of the next keys are multiplied while the softmax of the
// last ones runs, and the warpgroups take turns to multiply. Of a cache in e4m3 the copies are half as wide, and three
// further warps widen them to tiles of fp16 as above.
#pragma once

#include <type_traits>

#include "cuda/attention/prefill_config.cuh"
#include "cuda/attention/prefill_copies.cuh"
#include "cuda/attention/prefill_output.cuh"
#include "cuda/attention/prefill_products.cuh"
#include "cuda/attention/prefill_softmax.cuh"
#include "cuda/attention/prefill_widening.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::attention {

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
  if (member == Config::kGroups - 1) named_arrive(kTurn, 256);

  for (;;) {
    barrier_wait_branching(barriers.piece_full(slot.place), slot.parity);
    const Piece piece = pieces[slot.place];
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers.piece_empty(slot.place));
    slot.advance();
    if (piece.row < 0) break;
    const int num_tiles = num_key_tiles<Config>(piece);
    float scale_log2 = params.scale_log2, cap_scale = params.cap_scale;
    if constexpr (Config::kIsWidened) {
      if (params.key_scale != nullptr) (cap_scale > 0.0f ? cap_scale : scale_log2) *= params.key_scale[piece.kv_head];
    }

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
        if (cap_scale > 0.0f) cap(scores, cap_scale);
        if (first_key < shared_begin || first_key + Config::kKeys > shared_end) hide(scores, bounds, first_key);
        take_softmax(scores, maximum, weight, fade, scale_log2);
      };
      int first_key = piece.key_begin + (num_tiles - 1) * Config::kKeys;

      const std::uint32_t queries = tiles + query.place * Config::kQueryBytes + member * 64 * 128;
      barrier_wait_branching(barriers.query_full(query.place), query.parity);
      [[maybe_unused]] std::uint32_t fragments[Config::kHead / 4];
      if constexpr (Config::kHeldQueries) {
        load_queries<Config>(fragments, queries, thread);
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.query_empty(query.place));
        if constexpr (!std::is_same_v<T, typename Config::Query>) {
#pragma unroll
          for (int i = 0; i < Config::kHead / 4; ++i) fragments[i] = halves_of(fragments[i]);
        }
      } else if constexpr (!std::is_same_v<T, typename Config::Query>) {
        halve_queries<Config>(queries, thread);
        named_sync(kOwn + member, 128);
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
      barrier_wait_branching(barriers.key_full(keys.place), keys.parity);
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
        barrier_wait_branching(barriers.value_full(values.place), values.parity);
        const int begin = piece.context - first_key;
        const int end = begin + rows.box_tokens - piece.context % rows.box_tokens;
        clear_values<Config>(tiles + Config::kValueOffset + values.place * Config::kKeyBytes, begin, end, thread);
        named_sync(kOwn + member, 128);
      }

      for (int tile = num_tiles - 2; tile >= 0; --tile) {
        first_key -= Config::kKeys;
        barrier_wait_branching(barriers.key_full(keys.place), keys.parity);
        barrier_wait_branching(barriers.value_full(values.place), values.parity);
        named_sync(kTurn + member, 256);
        hold(scores);
        hold(total);
        wgmma_fence();
        score();
        multiply_values<Config>(total, weights, tiles + Config::kValueOffset + values.place * Config::kKeyBytes);
        wgmma_commit();
        named_arrive(kTurn + next, 256);
        wgmma_wait<1>();
        hold(scores);
        if (lane == 0) barrier_arrive(barriers.key_empty(keys.place));
        keys.advance();
        shape(first_key);
        hold(scores);
        // Passes at once. A branch is what keeps ptxas 13.0 from moving the wait for the product to before the softmax.
        barrier_wait_branching(barriers.value_full(values.place), values.parity);
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
      barrier_wait_branching(barriers.value_full(values.place), values.parity);
      hold(total);
      wgmma_fence();
      multiply_values<Config>(total, weights, tiles + Config::kValueOffset + values.place * Config::kKeyBytes);
      wgmma_commit();
      wgmma_wait<0>();
      hold(total);
      if (lane == 0) barrier_arrive(barriers.value_empty(values.place));
      values.advance();
    }
    write_rows<Config>(params, piece, total, maximum, weight, first_row, scale_log2);
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
    constexpr int warps = 4 * Config::kGroups, wideners = Config::kIsWidened ? kWideningWarps : 0;
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(barriers.key_full(stage), Config::kIsWidened ? wideners : 1);
      barrier_init(barriers.key_empty(stage), warps);
      barrier_init(barriers.value_full(stage), Config::kIsWidened ? wideners : 1);
      barrier_init(barriers.value_empty(stage), warps);
    }
    if constexpr (Config::kIsWidened) {
      for (int stage = 0; stage < Config::kCopyStages; ++stage) {
        barrier_init(barriers.copied_keys(stage), 1);
        barrier_init(barriers.free_keys(stage), wideners);
        barrier_init(barriers.copied_values(stage), 1);
        barrier_init(barriers.free_values(stage), wideners);
      }
    }
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(barriers.query_full(slot), 1);
      barrier_init(barriers.query_empty(slot), warps);
      barrier_init(barriers.piece_full(slot), 1);
      barrier_init(barriers.piece_empty(slot), warps + wideners);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier_kernels();
  if (threadIdx.x < 128) {
    give_registers<Config::kProducerRegisters>();
    if (threadIdx.x < 32) {
      produce<Config>(params, &query_map, &key_map, &value_map, tiles, pieces, barriers);
    } else if constexpr (Config::kIsWidened) {
      widen<Config>(tiles, pieces, barriers, threadIdx.x / 32 - 1);
    }
  } else {
    take_registers<Config::kConsumerRegisters>();
    consume<Config>(params, tiles, pieces, barriers);
  }
}

}  // namespace llm_kernels::cuda::attention
