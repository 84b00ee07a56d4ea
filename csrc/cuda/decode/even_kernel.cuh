// Decode attention whose warps take even shares of all keys, whatever the rows' lengths. Knows no host.
//
// Warp w takes the tiles from w * share on and finds them by itself: it adds up the lengths. What it covers whole goes
// to the output; of a head that it shares with others it has a part. The warp that begins a head waits for the parts of
// those after it and adds them up. It waits only for warps of its own block or of blocks before it: they are numbered
// from the last to the first.
#pragma once

#include "cuda/decode/even_copies.cuh"
#include "cuda/decode/even_softmax.cuh"

namespace llm_kernels::cuda::decode {

// Says that a warp's part is there, written by all its lanes.
__device__ __forceinline__ void arrive(std::uint32_t* flag) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}
// Waits until it is there, and makes the flag ready for the next call.
__device__ __forceinline__ void await(std::uint32_t* flag) {
  if (threadIdx.x % 32 == 0) {
    std::uint32_t is_there;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_there) : "l"(flag) : "memory");
    } while (is_there == 0);
    *flag = 0;
  }
  __syncwarp();
}

// Padding rows, whose outputs are zeros: warp w sees to the rows w, w + num_warps, ...
template <class T, int D>
__device__ void clear_padding(const DecodeAttentionArgs& call, int warp, int num_warps) {
  for (int row = warp; row < call.num_rows; row += num_warps) {
    if (call.context_lens[row] > 0) continue;
    T* out = static_cast<T*>(call.out) + row * call.out_stride_row;
    for (int i = threadIdx.x % 32; i < call.num_heads * D; i += 32) out[i / D * call.out_stride_head + i % D] = T(0.0f);
  }
}

template <class T, class C, int D, int Octets, int Warps, int Stages>
__global__ void __launch_bounds__(32 * Warps, 16 / (Warps * Octets))
    even_kernel(const __grid_constant__ EvenDecodeArgs args, const __grid_constant__ EvenMaps maps) {
  using Kernel = EvenKernel<T, C, D, Octets, Warps, Stages>;
  extern __shared__ __align__(1024) unsigned char even_shared[];
  const DecodeAttentionArgs& call = args.call;
  const int num_warps = gridDim.x * Warps, lane = threadIdx.x % 32;
  const int warp = num_warps - 1 - (blockIdx.x * Warps + threadIdx.x / 32);
  const int group = call.num_heads / call.num_kv_heads, place_of_warp = threadIdx.x / 32 * Stages;
  const std::uint32_t base = shared_address(even_shared), ring = base + place_of_warp * Kernel::kStageBytes;
  const std::uint32_t barriers = base + Kernel::kRingBytes + 8 * place_of_warp;
  if (base % 1024 != 0) __trap();  // the copy engine's swizzle would be another
  if (lane == 0) {
    prefetch_map(&maps.key);
    prefetch_map(&maps.value);
    for (int i = 0; i < Stages; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_fence();
  }
  __syncwarp();

  let_next_kernel_start();
  wait_for_earlier_kernels();
  const Share share = find_share(args, warp, num_warps);
  const int count = share.end - share.begin;
  clear_padding<T, D>(call, warp, num_warps);
  if (count == 0) return;
  Place place = share.first;
  EvenSoftmax<Kernel, T, D> softmax;
  softmax.ask(call, place.row, place.kv_head, group);
  Copies<Kernel> copies(args, maps, share, ring, barriers);
#pragma unroll
  for (int i = 0; i + 1 < Stages; ++i) copies.issue();
  int stage = 0, first_tile = place.tile;
  unsigned parity = 0;
  for (int left = count; left > 0;) {
    const int tiles = min(place.tiles - place.tile, left), tile_end = place.tile + tiles;
    left -= tiles;
    softmax.start();
    if (left > 0) {
      Place next = place;
      next.tile = next.tiles - 1;
      next.advance(call);
      softmax.ask(call, next.row, next.kv_head, group);
    }
    const float scale = call.key.scale == nullptr ? call.scale : call.scale * call.key.scale[place.kv_head];
    for (; place.tile < tile_end; ++place.tile) {
      barrier_wait(barriers + 8 * stage, parity);
      __syncwarp();  // all lanes are done with the stage of the tile before
      copies.issue();
      const int begin = place.first_key();
      const std::uint32_t tile = ring + stage * Kernel::kStageBytes;
      clear_values<Kernel>(tile, place.range.end - begin);
      softmax.attend(tile, place.range.begin - begin, place.range.end - begin, scale, call.soft_cap);
      if (++stage == Stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    softmax.gather_weights();
    if (first_tile == 0) {
      int other = warp;
      for (int rest = place.tiles - tile_end; rest > 0; rest -= share.size) {
        await(args.arrivals + ++other);
        softmax.add(args.parts + std::int64_t{other} * Kernel::kPartFloats, group);
      }
      softmax.finish(call, place.row, place.kv_head, group);
    } else {
      softmax.leave(args.parts + std::int64_t{warp} * Kernel::kPartFloats, group);
      arrive(args.arrivals + warp);
    }
    if (left == 0) break;
    --place.tile;
    place.advance(call);
    first_tile = 0;
  }
}

}  // namespace llm_kernels::cuda::decode
