// Decode attention whose warps take even shares of all keys, whatever the rows' lengths. Knows no host.
//
// Warp w works for KV head w % K and finds its share, the (w / K)-th, by the rows' lengths. What it covers whole goes to the
// output; of a row that it shares with others it has a part. The warp that begins a row waits for the parts of those after
// it and adds them up. It waits only for warps of its own block or of blocks before it: they are numbered from the last to
// the first.
#pragma once

#include "cuda/decode/even_copies.cuh"
#include "cuda/decode/even_softmax.cuh"

#ifdef LLM_DECODE_TIMES  // clocks of the stages of every warp, and in place 5 its processor
#define TIME(i)                                                            \
  do {                                                                     \
    unsigned long long t;                                                  \
    unsigned sm;                                                           \
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");        \
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));                        \
    if (threadIdx.x % 32 == 0) {                                           \
      args.times[8 * warp + i] = t;                                        \
      args.times[8 * warp + 5] = sm;                                       \
    }                                                                      \
  } while (0)
#else
#define TIME(i)
#endif

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

template <class T, class C, int D, int Octets, int Warps, int Stages>
__global__ void __launch_bounds__(32 * Warps, EvenKernel<T, C, D, Octets, Warps, Stages>::kBlocks)
    even_kernel(const __grid_constant__ EvenDecodeArgs args, const __grid_constant__ EvenMaps maps) {
  using Kernel = EvenKernel<T, C, D, Octets, Warps, Stages>;
  extern __shared__ __align__(1024) unsigned char even_shared[];
  const DecodeAttentionArgs& call = args.call;
  const int num_warps = gridDim.x * Warps, lane = threadIdx.x % 32, num_kv_heads = call.num_kv_heads;
  const int warp = num_warps - 1 - (blockIdx.x * Warps + threadIdx.x / 32), kv_head = warp % num_kv_heads;
  const int group = call.num_heads / num_kv_heads, first_stage = threadIdx.x / 32 * Stages;
  const std::uint32_t base = shared_address(even_shared), ring = base + first_stage * Kernel::kStageBytes;
  const std::uint32_t barriers = base + Kernel::kRingBytes + 8 * first_stage;
  TIME(0);
  if (base % 1024 != 0) __trap();  // the copy engine's swizzle would be another
  if (lane == 0) {
    prefetch_map(&maps.key);
    prefetch_map(&maps.value);
    for (int i = 0; i < Stages; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_fence();
  }

  let_next_kernel_start();
  wait_for_earlier_kernels();
  TIME(1);
  auto& memory = *reinterpret_cast<ShareMemory<32 * Warps>*>(even_shared + Kernel::kRingBytes + Kernel::kBarrierBytes);
  const Share share =
      find_share(call, memory, warp / num_kv_heads, max(num_warps / num_kv_heads, 1), args.least_tiles);
  if (share.count == 0) return;
  TIME(2);
  Place place = share.first;
  EvenSoftmax<Kernel, T, D> softmax;
  softmax.ask(call, place.row, kv_head, group);
  Copies<Kernel> copies(call, maps, share, kv_head, ring, barriers);
#pragma unroll
  for (int i = 0; i + 1 < Stages; ++i) copies.issue();
  const float scale = call.key.scale == nullptr ? call.scale : call.scale * call.key.scale[kv_head];
  int stage = 0;
  unsigned parity = 0;
  TIME(3);
  for (int left = share.count; left > 0;) {
    const bool begins = place.tile == 0;
    const int tile_end = min(place.tile + left, place.tiles);
    left -= tile_end - place.tile;
    softmax.start();
    if (left > 0) softmax.ask(call, place.row + 1, kv_head, group);
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
    TIME(7);
    softmax.gather_weights();
    if (begins) {
      int other = warp;
      for (int rest = place.tiles - tile_end; rest > 0; rest -= share.size) {
        other += num_kv_heads;
        await(args.arrivals + other);
        softmax.add(args.parts + std::int64_t{other} * Kernel::kPartFloats, group);
      }
      softmax.finish(call, place.row, kv_head, group);
    } else {
      softmax.leave(args.parts + std::int64_t{warp} * Kernel::kPartFloats, group);
      arrive(args.arrivals + warp);
    }
    if (left > 0) place.enter_next(call);
  }
  TIME(4);
}

}  // namespace llm_kernels::cuda::decode
