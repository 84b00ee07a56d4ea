// Parameters of the prefill kernel, what a configuration of it has in shared memory, and its barriers. Knows no work.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/attention/prefill_work.cuh"

namespace llm_kernels::cuda::attention {

struct PrefillParams {
  PrefillRows rows;
  void* out;
  std::int64_t out_stride_token, out_stride_head;
  const float* sinks;
  const float *key_scale, *value_scale;  // a KV head; null: 1
  float* log_sum_exp;
  std::int32_t* tile_counter;
  std::int32_t group, num_tokens, num_blocks;
  float scale_log2;  // of a (capped) score, times log2(e)
  float cap_scale;   // 0: no cap; else scale / cap, by which a score is multiplied before tanh
};

// N keys and 64 * Groups rows a tile, Stages tiles of keys in flight. Panelled: a copy a panel. HeldQueries: queries in
// registers, which leaves shared memory for a third stage and bandwidth of it for keys. Staged: for caches in e4m3, the
// tiles of keys that are copied before they are widened to T; Q is the type of queries and output.
template <class T, int D, int N, int Groups, int Stages, bool Panelled, bool HeldQueries, class Q = T, int Staged = 0>
struct PrefillConfig {
  using Element = T;
  using Query = Q;
  static constexpr int kHead = D, kKeys = N, kGroups = Groups, kStages = Stages, kRows = 64 * Groups;
  static constexpr bool kPanelled = Panelled, kHeldQueries = HeldQueries, kIsWidened = Staged > 0;
  static constexpr int kPanels = (D + 63) / 64;
  static constexpr int kThreads = 128 * (Groups + 1);
  // Bytes. From one panel to the next, and from eight keys to the next eight.
  static constexpr int kQueryPanel = kRows * 128;
  static constexpr int kKeyPanel = Panelled ? N * 128 : 1024, kEightKeys = Panelled ? 1024 : kPanels * 1024;
  static constexpr int kQueryBytes = kPanels * kQueryPanel, kKeyBytes = kPanels * N * 128;
  // What the copy engine brings: the tiles themselves, or tiles of half their size.
  static constexpr int kCopyStages = kIsWidened ? Staged : Stages, kCopyBytes = kIsWidened ? kKeyBytes / 2 : kKeyBytes;
  static constexpr int kCopyEightKeys = kIsWidened ? kEightKeys / 2 : kEightKeys;
  static constexpr int kCopyPanel = kIsWidened ? kKeyPanel / 2 : kKeyPanel;
  // The queries of the next piece are copied during a piece where there is room for both.
  static constexpr int kTileBytes = 2 * Stages * kKeyBytes + 2 * Staged * kCopyBytes;
  static constexpr int kQueryStages = !HeldQueries && 2 * kQueryBytes + kTileBytes + 2048 <= 232448 ? 2 : 1;
  static constexpr int kKeyOffset = kQueryStages * kQueryBytes, kValueOffset = kKeyOffset + Stages * kKeyBytes;
  static constexpr int kStagedKeyOffset = kValueOffset + Stages * kKeyBytes;
  static constexpr int kStagedValueOffset = kStagedKeyOffset + Staged * kCopyBytes;
  static constexpr int kBarrierOffset = kStagedValueOffset + Staged * kCopyBytes;
  static constexpr int kCopyKeyOffset = kIsWidened ? kStagedKeyOffset : kKeyOffset;
  static constexpr int kCopyValueOffset = kIsWidened ? kStagedValueOffset : kValueOffset;
  static constexpr int kSharedBytes = kBarrierOffset + 256 + 1024;  // the base is moved to a multiple of 1,024
  static constexpr int kProducerRegisters = Groups == 3 ? 32 : HeldQueries && !kIsWidened ? 24 : 40;
  static constexpr int kConsumerRegisters = Groups == 3 ? 160 : HeldQueries && !kIsWidened ? 240 : 232;
  static_assert(kSharedBytes <= 232448, "too much shared memory");
};

// Barriers and the two places for pieces, after the tiles. Addresses in shared memory.
template <class Config>
struct PrefillBarriers {
  static_assert(8 * (4 * Config::kStages + 8 + 4 * Config::kCopyStages) <= 256, "too many barriers");
  std::uint32_t base;
  __device__ std::uint32_t key_full(int stage) const { return base + 8 * stage; }
  __device__ std::uint32_t key_empty(int stage) const { return base + 8 * (Config::kStages + stage); }
  __device__ std::uint32_t value_full(int stage) const { return base + 8 * (2 * Config::kStages + stage); }
  __device__ std::uint32_t value_empty(int stage) const { return base + 8 * (3 * Config::kStages + stage); }
  __device__ std::uint32_t query_full(int stage) const { return base + 8 * (4 * Config::kStages + stage); }
  __device__ std::uint32_t query_empty(int stage) const { return base + 8 * (4 * Config::kStages + 2 + stage); }
  __device__ std::uint32_t piece_full(int slot) const { return base + 8 * (4 * Config::kStages + 4 + slot); }
  __device__ std::uint32_t piece_empty(int slot) const { return base + 8 * (4 * Config::kStages + 6 + slot); }
  // Those of what the copy engine brings.
  __device__ std::uint32_t copied_keys(int stage) const { return copied(0, stage, key_full(stage)); }
  __device__ std::uint32_t free_keys(int stage) const { return copied(1, stage, key_empty(stage)); }
  __device__ std::uint32_t copied_values(int stage) const { return copied(2, stage, value_full(stage)); }
  __device__ std::uint32_t free_values(int stage) const { return copied(3, stage, value_empty(stage)); }

 private:
  __device__ std::uint32_t copied(int kind, int stage, std::uint32_t own) const {
    return Config::kIsWidened ? base + 8 * (4 * Config::kStages + 8 + kind * Config::kCopyStages + stage) : own;
  }
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

}  // namespace llm_kernels::cuda::attention
