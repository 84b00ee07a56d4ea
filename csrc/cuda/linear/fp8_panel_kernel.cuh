// The kernel of e4m3 products of some hundred tokens: a panel of rows of W and all tokens through a ring of shared
// memory into wgmma, the panel as its A operand, a warpgroup each 64 rows. One warp copies, all others multiply and add
// up. Knows nothing of plans and launches.
#pragma once

#include <cuda_bf16.h>

#include "cuda/hopper.cuh"
#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/fp8_panel_wgmma.cuh"

namespace llm_kernels::cuda {

constexpr int kPanelStep = 128;  // columns of a step, and bytes: the width of the swizzle

struct PanelParams {
  Epilogue epilogue;
  int num_steps;  // of 128 columns
  int num_token_tiles, split, stages;
  int up_row;  // with a gate: first row of the up half
};

// A block's part of the product.
struct PanelPart {
  int panel, token;  // number of the panel, first token
  int first, count;  // steps
  int rank;          // in the cluster
};

template <int N, int Groups, bool Gated>
struct PanelKernel {
  static constexpr int kRows = Groups * 64;  // of W
  static constexpr int kOutRows = Gated ? kRows / 2 : kRows;
  // Where 13 warps have too few registers, the copying warp gets three idle ones, and all four hand theirs over.
  static constexpr bool kHandsOver = Groups == 3 && N > 160;
  static constexpr int kConsumers = Groups * 128, kThreads = kConsumers + (kHandsOver ? 128 : 32);
  static constexpr int kWeightBytes = kRows * kPanelStep;
  static constexpr int kStageBytes = kWeightBytes + N * kPanelStep;
  static constexpr int kSumStride = kRows + 4;  // floats between the sums of two tokens
  static constexpr int kSumBytes = N * kSumStride * 4;

  struct Ring {
    std::uint32_t data, full, empty;
    int stages;
    __device__ std::uint32_t at(int stage) const { return data + stage * kStageBytes; }
  };

  static __device__ void copy_weight(const CUtensorMap* map, const PanelParams& p, const Ring& ring, int stage,
                                     int panel, int step) {
    const std::uint32_t to = ring.at(stage), full = ring.full + 8 * stage;
    copy_box(to, map, step * kPanelStep, panel * kOutRows, full, true);
    if constexpr (Gated) {
      copy_box(to + kOutRows * kPanelStep, map, step * kPanelStep, p.up_row + panel * kOutRows, full, true);
    }
  }

  static __device__ void copy_tokens(const CUtensorMap* map, const Ring& ring, int stage, int token, int step) {
    copy_box(ring.at(stage) + kWeightBytes, map, step * kPanelStep, token, ring.full + 8 * stage, false);
  }

  // The first stages of W, which are under way before the kernels ahead have ended.
  static __device__ void begin(const CUtensorMap* weight, const PanelParams& p, const Ring& ring,
                               const PanelPart& part) {
    for (int i = 0; i < min(part.count, ring.stages); ++i) {
      barrier_expect(ring.full + 8 * i, kStageBytes);
      copy_weight(weight, p, ring, i, part.panel, part.first + i);
    }
  }

  static __device__ void produce(const CUtensorMap* weight, const CUtensorMap* tokens, const PanelParams& p,
                                 const Ring& ring, const PanelPart& part) {
    const int begun = min(part.count, ring.stages);
    for (int i = 0; i < begun; ++i) copy_tokens(tokens, ring, i, part.token, part.first + i);
    int stage = 0;
    unsigned parity = 0;
    for (int i = begun; i < part.count; ++i) {
      barrier_wait(ring.empty + 8 * stage, parity);
      barrier_expect(ring.full + 8 * stage, kStageBytes);
      copy_weight(weight, p, ring, stage, part.panel, part.first + i);
      copy_tokens(tokens, ring, stage, part.token, part.first + i);
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  static __device__ void consume(float (&sum)[N / 2], const Ring& ring, int count) {
    const std::uint32_t rows = threadIdx.x / 128 * 64 * kPanelStep;
    int stage = 0, before = 0;
    unsigned parity = 0;
    for (int i = 0; i < count; ++i) {
      barrier_wait(ring.full + 8 * stage, parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint64_t a = swizzled_tile(ring.at(stage) + rows + 32 * k);
        wgmma_e4m3<N>(sum, a, swizzled_tile(ring.at(stage) + kWeightBytes + 32 * k), true);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0 && threadIdx.x % 32 == 0) barrier_arrive(ring.empty + 8 * before);
      before = stage;
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
  }

  // Lays this warpgroup's sums into shared memory, token after token.
  static __device__ void lay_down(const float (&sum)[N / 2], float* sums) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, token = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      sums[(i / 4 * 8 + token + i % 2) * kSumStride + row + i % 4 / 2 * 8] = sum[i];
    }
  }

  // Four neighbouring rows of a token, added over the cluster in the order of its blocks.
  template <int Split>
  static __device__ float4 total(const float* mine) {
    if constexpr (Split == 1) return *reinterpret_cast<const float4*>(mine);
    const std::uint32_t at = shared_address(mine);
    float4 part[Split];
#pragma unroll
    for (int rank = 0; rank < Split; ++rank) part[rank] = read_cluster(at, rank);
#pragma unroll
    for (int rank = 1; rank < Split; ++rank) {
      part[0].x += part[rank].x;
      part[0].y += part[rank].y;
      part[0].z += part[rank].z;
      part[0].w += part[rank].w;
    }
    return part[0];
  }

  // Scale and bias of four neighbouring rows.
  struct Quad {
    float scale[4], bias[4];
    __device__ Quad(const Epilogue& epilogue, int row) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scale[i] = epilogue.scale[(row + i) * epilogue.scale_stride];
        bias[i] = epilogue.bias == nullptr ? 0.0f : __bfloat162float(epilogue.bias[row + i]);
      }
    }
    __device__ float4 scaled(float4 sums, float token_scale) const {
      return {fmaf(sums.x * token_scale, scale[0], bias[0]), fmaf(sums.y * token_scale, scale[1], bias[1]),
              fmaf(sums.z * token_scale, scale[2], bias[2]), fmaf(sums.w * token_scale, scale[3], bias[3])};
    }
  };

  static __device__ float4 gated(const Epilogue& epilogue, float4 gates, float4 ups) {
    return {epilogue.activated(gates.x) * ups.x, epilogue.activated(gates.y) * ups.y,
            epilogue.activated(gates.z) * ups.z, epilogue.activated(gates.w) * ups.w};
  }

  // Finishes this block's share of the cluster's rows; a thread keeps to four of them.
  template <int Split>
  static __device__ void finish(const PanelParams& p, const float* sums, const PanelPart& part) {
    constexpr int quads = kOutRows / 4 / Split, tokens_at_once = kConsumers / quads;
    const int row = 4 * (part.rank * quads + static_cast<int>(threadIdx.x) % quads);
    const int out_row = part.panel * kOutRows + row;
    if (out_row >= p.epilogue.num_rows) return;
    const Quad first(p.epilogue, out_row), second(p.epilogue, Gated ? p.up_row + out_row : out_row);
    const int tokens = min(N, p.epilogue.num_tokens - part.token);
#pragma unroll 2
    for (int at = threadIdx.x / quads; at < tokens; at += tokens_at_once) {
      const int token = part.token + at;
      const float token_scale =
          p.epilogue.token_scale == nullptr ? 1.0f : p.epilogue.token_scale[token * p.epilogue.token_scale_stride];
      const float* mine = sums + at * kSumStride + row;
      float4 value = first.scaled(total<Split>(mine), token_scale);
      if constexpr (Gated) {
        value = gated(p.epilogue, value, second.scaled(total<Split>(mine + kOutRows), token_scale));
      }
      p.epilogue.store_quad(token, out_row, value);
    }
  }

  static __device__ void finish_split(const PanelParams& p, const float* sums, const PanelPart& part) {
    if (p.split == 2) return finish<2>(p, sums, part);
    if (p.split == 4) return finish<4>(p, sums, part);
    finish<8>(p, sums, part);
  }

  static __device__ PanelPart part_of(const PanelParams& p) {
    PanelPart part;
    part.rank = blockIdx.x % p.split;
    const int tile = blockIdx.x / p.split;
    part.panel = tile / p.num_token_tiles;
    part.token = tile % p.num_token_tiles * N;
    part.first = p.num_steps * part.rank / p.split;
    part.count = p.num_steps * (part.rank + 1) / p.split - part.first;
    return part;
  }

  static __device__ void run(const CUtensorMap* weight, const CUtensorMap* tokens, const PanelParams& p) {
    extern __shared__ std::uint8_t shared[];
    std::uint8_t* memory = shared + (1024 - shared_address(shared) % 1024) % 1024;
    Ring ring;
    ring.data = shared_address(memory);
    ring.stages = p.stages;
    // Behind the sums too: what is written over a barrier may be undone when another process takes turns on the GPU.
    ring.full = ring.data + max(p.stages * kStageBytes, kSumBytes);
    ring.empty = ring.full + 8 * p.stages;
    const PanelPart part = part_of(p);
    const bool copies = threadIdx.x == kConsumers;
    if (copies) {
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(ring.full + 8 * i, 1);
        barrier_init(ring.empty + 8 * i, kConsumers / 32);
      }
      barrier_init_fence();
      begin(weight, p, ring, part);
      let_next_kernel_start();
    }
    __syncthreads();
    wait_for_earlier_kernels();
    float* sums = reinterpret_cast<float*>(memory);
    if (threadIdx.x >= kConsumers) {
      if constexpr (kHandsOver) give_registers<32>();
      if (copies) produce(weight, tokens, p, ring, part);
      __syncwarp();
      if (p.split > 1) {
        cluster_sync();
        cluster_sync();
      }
    } else {
      if constexpr (kHandsOver) take_registers<160>();
      float sum[N / 2] = {};
      consume(sum, ring, part.count);
      named_sync(1, kConsumers);  // all have read the ring
      lay_down(sum, sums);
      if (p.split == 1) {
        named_sync(1, kConsumers);
        finish<1>(p, sums, part);
      } else {
        cluster_sync();
        finish_split(p, sums, part);
        __syncwarp();
        cluster_sync();  // the others may still read this block's sums
      }
    }
  }

  static __device__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
  }
};

template <int N, int Groups>
__global__ void __launch_bounds__(PanelKernel<N, Groups, false>::kThreads, 1)
    panel_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap tokens,
                 const __grid_constant__ PanelParams params) {
  PanelKernel<N, Groups, false>::run(&weight, &tokens, params);
}

}  // namespace llm_kernels::cuda
