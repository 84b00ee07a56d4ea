// The product kernel of many tokens: one thread copies tiles of W and of the tokens into a ring in shared memory by the
// copy engine, the warpgroups multiply them by wgmma (W is A, the tokens are B). Without a split the blocks stay and
// take tiles in turns; with one a cluster shares the columns of a tile. Knows nothing of plans and launches.
#pragma once

#include "cuda/gemm/config.cuh"
#include "cuda/gemm/copies.cuh"
#include "cuda/gemm/output.cuh"
#include "cuda/gemm/product.cuh"

namespace llm_kernels::cuda::gemm {

// Lets go of a stage: to its copying thread and, in a pair, to that of the other block too.
template <class Config>
__device__ __forceinline__ void release(const Params& params, std::uint32_t empty, unsigned rank) {
  if (params.pair == 1) return barrier_arrive(empty);
  barrier_arrive_in(empty, rank & ~1u);
  barrier_arrive_in(empty, rank | 1u);
}

// The products of `steps` stages. `copier` is fed after each in blocks without a thread for that.
template <class Config>
__device__ __forceinline__ void multiply(const Params& params, float (&sum)[Config::kBlocks][Config::kTokens / 2],
                                         std::uint32_t ring, Barriers<Config> barriers, Ring<Config::kStages>& place,
                                         int group, unsigned rank, int steps, Copier<Config>& copier) {
#pragma unroll
  for (int block = 0; block < Config::kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < Config::kTokens / 2; ++i) sum[block][i] = 0.0f;
  }
  const bool releases = threadIdx.x % 32 == 0;
  int before = 0;
  const auto let_go = [&] {
    if (releases) release<Config>(params, barriers.empty(before), rank);
    if constexpr (Config::kFeeds) {
      if (threadIdx.x == 0) copier.feed();
      __syncwarp();
    }
  };
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t stage = ring + place.place * Config::kStageBytes;
    barrier_wait_branching(barriers.full(place.place), place.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t b = tile_descriptor(stage + Config::kWeightBytes + 32 * k);
#pragma unroll
      for (int block = 0; block < Config::kBlocks; ++block) {
        const std::uint64_t a = tile_descriptor(stage + (group * Config::kBlocks + block) * 64 * 128 + 32 * k);
        Product<typename Config::Element, Config::kTokens>::run(sum[block], a, b);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) let_go();
    before = place.place;
    place.advance();
  }
  wgmma_wait<0>();
  let_go();
}

// A multiplying warpgroup: its tiles, or its part of one.
template <class Config>
__device__ __forceinline__ void consume(const Params& params, const CUtensorMap* out, std::uint8_t* data,
                                        Barriers<Config> barriers, int index, int stride, unsigned rank, int steps,
                                        Copier<Config>& copier) {
  const std::uint32_t ring = shared_address(data);
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const int tile_place = rank % params.pair;
  float sum[Config::kBlocks][Config::kTokens / 2];
  Ring<Config::kStages> place;
  wait_for_earlier_kernels();
  if (!Config::kSplits || params.split == 1) {
    const std::uint32_t buffers = ring + Config::kRingBytes + group * 2 * Config::kChunkBytes;
    int num_stores = 0;
    for (int at = index; at < params.num_tiles; at += stride) {
      multiply<Config>(params, sum, ring, barriers, place, group, rank, steps, copier);
      store_tile<Config>(params, out, buffers, sum, tile_of(params, at, tile_place), group, num_stores);
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
    __syncwarp();
  } else if constexpr (Config::kSplits) {
    multiply<Config>(params, sum, ring, barriers, place, group, rank, steps, copier);
    named_sync(8, Config::kConsumers);  // all have read the ring
    float* sums = reinterpret_cast<float*>(data);
    lay_down<Config>(sum, sums, group);
    cluster_arrive();
    cluster_wait();
    finish_share<Config>(params, sums, tile_of(params, index, tile_place), rank);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap tokens,
                const __grid_constant__ CUtensorMap out, const __grid_constant__ Params params) {
  extern __shared__ std::uint8_t shared[];
  std::uint8_t* data = shared + (1024 - shared_address(shared) % 1024) % 1024;
  const std::uint32_t ring = shared_address(data);
  const Barriers<Config> barriers{ring + Config::kBarrierOffset};
  const int cluster = params.split * params.pair;
  const int rank = blockIdx.x % cluster, part = rank / params.pair;
  const int index = blockIdx.x / cluster, stride = gridDim.x / cluster;
  const int begin = params.num_steps * part / params.split, end = params.num_steps * (part + 1) / params.split;
  Copier<Config> copier{&weight, &tokens, params, ring, barriers, rank, index, stride, begin, end};
  const bool copies = threadIdx.x == (Config::kFeeds ? 0 : Config::kConsumers);
  if (copies) {
    prefetch_map(&weight);
    prefetch_map(&tokens);
    prefetch_map(&out);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(barriers.full(stage), 1);
      barrier_init(barriers.empty(stage), 4 * Config::kGroups * params.pair);
    }
    barrier_init_fence();
    copier.start();
    let_next_kernel_start();
  }
  __syncwarp();
  if (params.pair > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if (copies) {
    wait_for_earlier_kernels();
    copier.follow();
  }
  __syncwarp();
  if (Config::kFeeds || threadIdx.x < Config::kConsumers) {
    if constexpr (Config::kMovesRegisters) take_registers<Config::kConsumerRegisters>();
    consume<Config>(params, &out, data, barriers, index, stride, rank, end - begin, copier);
    if (cluster > 1) {  // the others may still read this block's sums, or arrive at its barriers
      cluster_arrive();
      cluster_wait();
    }
  } else {
    if constexpr (Config::kMovesRegisters) give_registers<Config::kProducerRegisters>();
    if (copies) {
      while (copier.feed()) {
      }
    }
    __syncwarp();
    if (Config::kSplits && params.split > 1) {
      cluster_arrive();
      cluster_wait();
    }
    if (cluster > 1) {
      cluster_arrive();
      cluster_wait();
    }
  }
}

}  // namespace llm_kernels::cuda::gemm
