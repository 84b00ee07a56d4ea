// The copying warp of the prefill kernel: pieces of work, queries, keys and values. Knows nothing of products.
#pragma once

#include "cuda/attention/prefill_config.cuh"
#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::attention {

// A box of keys or values of one head: from key `offset` of a block on.
template <class Config>
__device__ __forceinline__ void copy_keys(std::uint32_t to, const CUtensorMap* map, int offset, int head, int block,
                                          std::uint32_t barrier) {
  if constexpr (Config::kPanelled) {
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      copy_box(to + panel * Config::kCopyPanel, map, panel * 64, offset, head, block, barrier);
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
  const std::uint32_t lane_bytes = lane * (rows.box_tokens / 8 * Config::kCopyEightKeys);
  const int lane_keys = lane * rows.box_tokens;
  Ring<Config::kCopyStages> ring;
  Ring<2> slot;
  Ring<Config::kQueryStages> query;
  Dealer dealer(params.tile_counter);
  for (;;) {
    const Piece piece = find_piece(rows, dealer.next());
    if (piece.row >= 0 && piece.num_tokens == 0) continue;
    barrier_wait_branching(barriers.piece_empty(slot.place), slot.parity ^ 1);
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
    barrier_wait_branching(barriers.query_empty(query.place), query.parity ^ 1);
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
      const std::uint32_t to = tiles + ring.place * Config::kCopyBytes + lane_bytes;
      barrier_wait_branching(barriers.free_keys(ring.place), ring.parity ^ 1);
      if (lane == 0) barrier_expect(barriers.copied_keys(ring.place), Config::kCopyBytes);
      __syncwarp();
      if (is_copying) {
        copy_keys<Config>(to + Config::kCopyKeyOffset, key_map, here.offset, piece.kv_head, here.block,
                          barriers.copied_keys(ring.place));
      }
      barrier_wait_branching(barriers.free_values(ring.place), ring.parity ^ 1);
      if (lane == 0) barrier_expect(barriers.copied_values(ring.place), Config::kCopyBytes);
      __syncwarp();
      if (is_copying) {
        copy_keys<Config>(to + Config::kCopyValueOffset, value_map, here.offset, piece.kv_head, here.block,
                          barriers.copied_values(ring.place));
      }
      ring.advance();
    }
  }
}

}  // namespace llm_kernels::cuda::attention
