// The copying thread of the product: tiles of W and of the tokens into the ring. Knows nothing of products.
#pragma once

#include "cuda/gemm/config.cuh"

namespace llm_kernels::cuda::gemm {

__device__ __forceinline__ void copy_rows(std::uint32_t to, const CUtensorMap* map, int column, int row,
                                          std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// Runs of eight gate rows and eight up rows in turns, from run `run` on.
__device__ __forceinline__ void copy_gated_rows(std::uint32_t to, const CUtensorMap* map, int column, int run,
                                                std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(0), "r"(run), "r"(barrier), "l"(policy)
      : "memory");
}

// The same box to the same place in every block of the cluster that `mask` names, whose barriers there it completes on.
__device__ __forceinline__ void copy_rows_to_pair(std::uint32_t to, const CUtensorMap* map, int column, int row,
                                                  std::uint32_t barrier, std::uint64_t policy, unsigned mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<unsigned short>(mask)), "l"(policy)
      : "memory");
}

// Feeds the ring with steps `begin` to `end` of tiles `index`, `index + stride`, ...
template <class Config>
struct Copier {
  const CUtensorMap *weight, *tokens;
  const Params& params;
  std::uint32_t ring;
  Barriers<Config> barriers;
  int rank;  // in the cluster
  int index, stride, begin, end;

  int step = 0;
  Tile tile{};
  Ring<Config::kStages> place{};

  __device__ __forceinline__ void copy_weight(int stage, int at) const {
    const std::uint32_t to = ring + stage * Config::kStageBytes, full = barriers.full(stage);
    barrier_expect(full, Config::kStageBytes);
    if constexpr (Config::kGated) {
      copy_gated_rows(to, weight, at * Config::kColumns, tile.out * (Config::kRows / 16), full, params.weight_policy);
    } else {
      copy_rows(to, weight, at * Config::kColumns, tile.out * Config::kRows, full, params.weight_policy);
    }
  }

  __device__ __forceinline__ void copy_tokens(int stage, int at) const {
    const std::uint32_t to = ring + stage * Config::kStageBytes + Config::kWeightBytes, full = barriers.full(stage);
    const int column = at * Config::kColumns, row = tile.token * Config::kTokens;
    if (params.pair == 1) return copy_rows(to, tokens, column, row, full, params.token_policy);
    const int half = rank % 2 * (Config::kTokens / 2);
    copy_rows_to_pair(to + half * 128, tokens, column, row + half, full, params.token_policy, 3u << (rank & ~1));
  }

  // The first weights, which may be under way before the kernels ahead have ended.
  __device__ __forceinline__ void start() {
    tile = tile_of(params, index, rank % params.pair);
    const int early = min(end - begin, Config::kStages);
    for (int i = 0; i < early; ++i) copy_weight(i, begin + i);
    step = begin + early;
  }

  // Their tokens. Barriers of the pair's other block must have been made.
  __device__ __forceinline__ void follow() {
    const int early = step - begin;
    for (int i = 0; i < early; ++i) copy_tokens(i, begin + i);
    place.place = early % Config::kStages;
    place.parity = early == Config::kStages ? 0 : 1;  // a wait for the phase before the first one passes
  }

  // One more stage, as soon as it is free; false when there is nothing left.
  __device__ __forceinline__ bool feed() {
    if (step == end) {
      if (index + stride >= params.num_tiles) return false;
      index += stride;
      tile = tile_of(params, index, rank % params.pair);
      step = begin;
    }
    barrier_wait_branching(barriers.empty(place.place), place.parity);
    copy_weight(place.place, step);
    copy_tokens(place.place, step);
    place.advance();
    ++step;
    return true;
  }
};

}  // namespace llm_kernels::cuda::gemm
