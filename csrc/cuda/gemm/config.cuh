// The sizes of a tile and what follows for threads, registers and shared memory; the parameters of a launch.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/hopper.cuh"
#include "cuda/linear/epilogue.cuh"

namespace llm_kernels::cuda::gemm {

// A tile: 64 * Groups * Blocks rows of W by `Tokens` tokens; each of `Groups` warpgroups multiplies `Blocks` blocks of
// 64 rows. With a gate the rows of the tile are gate and up rows in turns of eight, so that a thread holds both.
template <class Element_, int Groups, int Blocks, int Tokens, bool Gated>
struct Config {
  using Element = Element_;
  static constexpr int kGroups = Groups, kBlocks = Blocks, kTokens = Tokens;
  static constexpr bool kGated = Gated;
  static constexpr bool kScaled = !std::is_same_v<Element, __nv_bfloat16>;  // a scale a row of W and a token
  static constexpr int kColumns = 128 / static_cast<int>(sizeof(Element));  // of I in a stage
  static constexpr int kRows = 64 * Groups * Blocks;
  static constexpr int kOutRows = Gated ? kRows / 2 : kRows;

  // The warpgroups that multiply come first, then one that copies; where the sums leave no registers for that one, a
  // thread of the first copies.
  static constexpr bool kFeeds = Groups == 3 && Tokens > 192;
  static constexpr int kConsumers = 128 * Groups;
  static constexpr int kThreads = kConsumers + (kFeeds ? 0 : 128);
  static constexpr bool kMovesRegisters = Groups > 1 && !kFeeds;
  static constexpr int kProducerRegisters = Groups == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = Groups == 3 ? 160 : 240;

  static constexpr int kWeightBytes = kRows * 128, kTokenBytes = Tokens * 128;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  // The way out: each warpgroup has two buffers of `kOutWidth` outputs of `kChunk` tokens.
  static constexpr int kOutWidth = Gated ? 32 : 64;
  static constexpr int kChunk = Tokens % 64 == 0 ? 64 : 32;
  static constexpr int kChunkBytes = kChunk * kOutWidth * 2;
  static constexpr int kStagingBytes = Groups * 2 * kChunkBytes;
  static constexpr int kSpare = 1024 + 256;  // alignment, barriers
  static constexpr int kMostStages = 12;
  static constexpr int kFitting = (227 * 1024 - kSpare - kStagingBytes) / kStageBytes;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kRingBytes + kStagingBytes;
  static constexpr int kSharedBytes = kBarrierOffset + kSpare;
  // The sums of a part of I, token after token, in place of the ring; where they fit.
  static constexpr int kSumStride = kRows + 4;
  static_assert(kStages >= 3 && Tokens % kChunk == 0);
  static constexpr bool kSplits = Tokens * kSumStride * 4 <= kBarrierOffset;
};

struct Params {
  Epilogue epilogue;
  int num_steps;  // of kColumns of I
  // A cluster holds `split` parts of I for `pair` (1 or 2) tiles of neighbouring rows of W: block part * pair + tile.
  // Both tiles of a pair are fed by half of each tile of tokens that either block copies.
  int split, pair;
  int out_tiles, token_tiles, num_tiles;  // of W counted in pairs
  int band;  // tiles of tokens that are passed over together, row of tiles after row
  std::uint64_t weight_policy, token_policy;  // of the L2 cache
};

struct Tile {
  int out, token;  // counted in tiles
};

// Tile `place` of pair `index`.
__device__ __forceinline__ Tile tile_of(const Params& params, int index, int place) {
  const int per_band = params.band * params.out_tiles;
  const int first = index / per_band * params.band, width = min(params.band, params.token_tiles - first);
  const int inside = index % per_band;
  return {inside / width * params.pair + place, first + inside % width};
}

template <class Config>
struct Barriers {
  std::uint32_t base;
  __device__ std::uint32_t full(int stage) const { return base + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const { return base + 8 * (Config::kStages + stage); }
};

// A place in the ring of stages and the parity of the phase to wait for.
template <int Stages>
struct Ring {
  int place = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == Stages) {
      place = 0;
      parity ^= 1;
    }
  }
};

}  // namespace llm_kernels::cuda::gemm
