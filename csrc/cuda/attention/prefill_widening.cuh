// The warps of the prefill kernel that widen tiles of e4m3 to fp16, which holds every number of e4m3; queries in bf16
// become fp16 with them. Knows nothing of what the tiles are multiplied with.
#pragma once

#include "cuda/attention/prefill_config.cuh"
#include "cuda/attention/prefill_softmax.cuh"
#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::attention {

constexpr int kWideningWarps = 3;

// Two numbers of e4m3, the lower half of `both` and its upper half.
__device__ __forceinline__ void widen_pairs(std::uint32_t both, std::uint32_t& low, std::uint32_t& high) {
  asm("{\n.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
      : "=r"(low), "=r"(high)
      : "r"(both));
}

__device__ __forceinline__ void load_chunk(std::uint32_t (&x)[4], std::uint32_t from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void store_chunk(std::uint32_t to, const std::uint32_t* x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// A tile. The copies lie as the wide tile does, eight rows of a panel after eight rows, but without its swizzle. A warp
// takes eight rows at once; eight threads that access shared memory together have four chunks of two rows, one even and
// one odd: no bank conflicts.
template <class Config>
__device__ __forceinline__ void widen_tile(std::uint32_t from, std::uint32_t to, int warp) {
  constexpr int count = Config::kKeys / 8 * Config::kPanels, batch = 4, step = batch * kWideningWarps;
  const int lane = threadIdx.x % 32, row = lane / 4, chunk = lane % 4;
  from += warp * 512 + lane * 16;
  to += warp * 1024 + row * 128;
  const std::uint32_t first = ((2 * chunk) ^ row) * 16, second = ((2 * chunk + 1) ^ row) * 16;
#pragma unroll 1
  for (int left = count - warp; left > 0; left -= step, from += step * 512, to += step * 1024) {
    std::uint32_t x[batch][4];
#pragma unroll
    for (int k = 0; k < batch; ++k) {  // all loads before the first store
      if (k * kWideningWarps < left) load_chunk(x[k], from + k * kWideningWarps * 512);
    }
#pragma unroll
    for (int k = 0; k < batch; ++k) {
      if (k * kWideningWarps >= left) break;
      std::uint32_t y[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) widen_pairs(x[k][i], y[2 * i], y[2 * i + 1]);
      store_chunk(to + k * kWideningWarps * 1024 + first, y);
      store_chunk(to + k * kWideningWarps * 1024 + second, y + 4);
    }
  }
  fence_async_proxy();
  __syncwarp();
}

// Widening warp `warp` of kWideningWarps: all tiles of all pieces, in the order in which they are copied.
template <class Config>
__device__ __forceinline__ void widen(std::uint32_t tiles, const Piece* pieces, PrefillBarriers<Config> barriers,
                                      int warp) {
  const int lane = threadIdx.x % 32;
  Ring<Config::kCopyStages> copied;
  Ring<Config::kStages> wide;
  Ring<2> slot;
  for (;;) {
    barrier_wait_branching(barriers.piece_full(slot.place), slot.parity);
    const int row = pieces[slot.place].row, num_tiles = num_key_tiles<Config>(pieces[slot.place]);
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers.piece_empty(slot.place));
    slot.advance();
    if (row < 0) break;
    for (int tile = num_tiles; tile > 0; --tile) {
      const std::uint32_t from = tiles + copied.place * Config::kCopyBytes, to = tiles + wide.place * Config::kKeyBytes;
      barrier_wait_branching(barriers.copied_keys(copied.place), copied.parity);
      barrier_wait_branching(barriers.key_empty(wide.place), wide.parity ^ 1);
      widen_tile<Config>(from + Config::kCopyKeyOffset, to + Config::kKeyOffset, warp);
      if (lane == 0) {
        barrier_arrive(barriers.key_full(wide.place));
        barrier_arrive(barriers.free_keys(copied.place));
      }
      barrier_wait_branching(barriers.copied_values(copied.place), copied.parity);
      barrier_wait_branching(barriers.value_empty(wide.place), wide.parity ^ 1);
      widen_tile<Config>(from + Config::kCopyValueOffset, to + Config::kValueOffset, warp);
      if (lane == 0) {
        barrier_arrive(barriers.value_full(wide.place));
        barrier_arrive(barriers.free_values(copied.place));
      }
      copied.advance();
      wide.advance();
    }
  }
}

// Two numbers of bf16 as fp16, cut off at the largest one.
__device__ __forceinline__ std::uint32_t halves_of(std::uint32_t both) {
  std::uint32_t halves;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
      : "=r"(halves)
      : "f"(__uint_as_float(both & 0xFFFF0000u)), "f"(__uint_as_float(both << 16)));
  return halves;
}

// The 64 rows of one warpgroup, in place.
template <class Config>
__device__ __forceinline__ void halve_queries(std::uint32_t queries, int thread) {
#pragma unroll 1
  for (int i = thread; i < 512 * Config::kPanels; i += 128) {
    const std::uint32_t at = queries + i / 512 * Config::kQueryPanel + i % 512 * 16;
    std::uint32_t x[4];
    load_chunk(x, at);
    for (std::uint32_t& both : x) both = halves_of(both);
    store_chunk(at, x);
  }
  fence_async_proxy();
}

}  // namespace llm_kernels::cuda::attention
