// The kernel of up to 8 bfloat16 tokens and e4m3 weights: each block quantizes its part of the tokens itself, with a
// scale a token and 128 columns, while its weights are on their way. Knows nothing of plans and launches.
#pragma once

#include "cuda/linear/fp8_panel_kernel.cuh"
#include "cuda/linear/tokens.cuh"

namespace llm_kernels::cuda {

struct FewParams {
  PanelParams panel;  // one tile of tokens, without scales
  TokenParams tokens;
  int most_steps;  // of a block
};

template <int Groups, bool Gated>
struct FewKernel {
  static constexpr int kTokens = 8;
  using Panel = PanelKernel<kTokens, Groups, Gated>;
  static constexpr int kConsumers = Panel::kConsumers, kThreads = Panel::kThreads;
  static constexpr int kStageBytes = Panel::kWeightBytes, kTileBytesOfStep = kTokens * kPanelStep;
  static constexpr int kLanes = 16;  // that quantize the 128 columns of a step, eight each
  static constexpr float kLargest = 448.0f, kLeast = 1e-10f;

  struct Memory {
    std::uint32_t ring, tokens, full, empty;
    float* scales;  // [steps][tokens]
    int stages;
    __device__ std::uint32_t at(int stage) const { return ring + stage * kStageBytes; }
  };

  static __device__ void copy(const CUtensorMap* map, const FewParams& p, const Memory& m, int stage, int panel,
                              int step) {
    const std::uint32_t to = m.at(stage), full = m.full + 8 * stage;
    constexpr int rows = Panel::kOutRows;
    barrier_expect(full, kStageBytes);
    copy_box(to, map, step * kPanelStep, panel * rows, full, true);
    if constexpr (Gated) {
      copy_box(to + rows * kPanelStep, map, step * kPanelStep, p.panel.up_row + panel * rows, full, true);
    }
  }

  static __device__ void begin(const CUtensorMap* map, const FewParams& p, const Memory& m, const PanelPart& part) {
    for (int i = 0; i < min(part.count, m.stages); ++i) copy(map, p, m, i, part.panel, part.first + i);
  }

  static __device__ void produce(const CUtensorMap* map, const FewParams& p, const Memory& m, const PanelPart& part) {
    int stage = 0;
    unsigned parity = 0;
    for (int i = m.stages; i < part.count; ++i) {
      barrier_wait(m.empty + 8 * stage, parity);
      copy(map, p, m, stage, part.panel, part.first + i);
      if (++stage == m.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  static __device__ unsigned short narrow(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
  }

  // Eight columns of a token: the 16 lanes that hold the other columns of the step find the scale with this one.
  static __device__ void quantize_piece(const Memory& m, const uint4& piece, int token, int step, int lane,
                                        bool real) {
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
    float value[8], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[2 * i] = __uint_as_float(words[i] << 16);
      value[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      largest = fmaxf(largest, fmaxf(fabsf(value[2 * i]), fabsf(value[2 * i + 1])));
    }
#pragma unroll
    for (int over = 1; over < kLanes; over *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, over));
    }
    if (!real) return;
    const float scale = fmaxf(largest, kLeast) / kLargest, inverse = 1.0f / scale;
    unsigned short pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = narrow(value[2 * i] * inverse, value[2 * i + 1] * inverse);
    const std::uint32_t to = m.tokens + step * kTileBytesOfStep + token * kPanelStep +
                             ((lane / 2 ^ token % 8) << 4) + lane % 2 * 8;
    asm volatile("st.shared.v4.u16 [%0], {%1, %2, %3, %4};" ::"r"(to), "h"(pairs[0]), "h"(pairs[1]), "h"(pairs[2]),
                 "h"(pairs[3])
                 : "memory");
    if (lane == 0) m.scales[step * kTokens + token] = scale;
  }

  // This block's part of the tokens. Those beyond the last stay as they are: nothing of them is stored.
  static __device__ void quantize(const FewParams& p, const Memory& m, const PanelPart& part) {
    constexpr int at_once = kConsumers / kLanes, batch = 4;
    const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes, pieces = part.count * p.tokens.num_tokens;
    for (int base = 0; base < pieces; base += batch * at_once) {
      uint4 piece[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int at = base + i * at_once + mine, token = at / part.count;
        const int column = (part.first + at % part.count) * kPanelStep + 8 * lane;
        const bool there = at < pieces && column < p.tokens.in_size;
        const auto* from = p.tokens.x + token * p.tokens.x_stride + column;
        piece[i] = there ? __ldcg(reinterpret_cast<const uint4*>(from)) : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int at = base + i * at_once + mine;
        quantize_piece(m, piece[i], at / part.count, at % part.count, lane, at < pieces);
      }
    }
  }

  static __device__ void consume(float (&sum)[4], const Memory& m, int count) {
    const std::uint32_t rows = threadIdx.x / 128 * 64 * kPanelStep;
    const int token = threadIdx.x % 4 * 2;
    int stage = 0;
    unsigned parity = 0;
    for (int i = 0; i < count; ++i) {
      float part[4];
      const float2 scale = *reinterpret_cast<const float2*>(m.scales + i * kTokens + token);
      barrier_wait(m.full + 8 * stage, parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint64_t a = swizzled_tile(m.at(stage) + rows + 32 * k);
        wgmma_e4m3<kTokens>(part, a, swizzled_tile(m.tokens + i * kTileBytesOfStep + 32 * k), k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (threadIdx.x % 32 == 0) barrier_arrive(m.empty + 8 * stage);
      // A token that is not there has no scale; what its sum becomes is not stored.
      sum[0] = fmaf(part[0], scale.x, sum[0]);
      sum[1] = fmaf(part[1], scale.y, sum[1]);
      sum[2] = fmaf(part[2], scale.x, sum[2]);
      sum[3] = fmaf(part[3], scale.y, sum[3]);
      if (++stage == m.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  static __device__ Memory memory_of(const FewParams& p, std::uint8_t* start) {
    Memory m;
    m.stages = p.panel.stages;
    m.ring = shared_address(start);
    m.tokens = m.at(m.stages);
    const int after = m.stages * kStageBytes + p.most_steps * kTileBytesOfStep;
    m.scales = reinterpret_cast<float*>(start + after);
    m.full = m.ring + after + p.most_steps * kTokens * 4;
    m.empty = m.full + 8 * m.stages;
    return m;
  }

  static __device__ void run(const CUtensorMap* weight, const FewParams& p) {
    extern __shared__ std::uint8_t shared[];
    std::uint8_t* start = shared + (1024 - shared_address(shared) % 1024) % 1024;
    const Memory m = memory_of(p, start);
    const PanelPart part = Panel::part_of(p.panel);
    const bool copies = threadIdx.x == kConsumers;
    if (copies) {
      for (int i = 0; i < m.stages; ++i) {
        barrier_init(m.full + 8 * i, 1);
        barrier_init(m.empty + 8 * i, kConsumers / 32);
      }
      barrier_init_fence();
      begin(weight, p, m, part);
      let_next_kernel_start();
    }
    __syncthreads();
    wait_for_earlier_kernels();
    if (threadIdx.x >= kConsumers) {
      if (copies) produce(weight, p, m, part);
      __syncwarp();
      if (p.panel.split > 1) {
        Panel::cluster_sync();
        Panel::cluster_sync();
      }
      return;
    }
    quantize(p, m, part);
    fence_async_proxy();
    named_sync(1, kConsumers);
    float sum[4] = {};
    consume(sum, m, part.count);
    named_sync(1, kConsumers);  // all have read the ring
    float* sums = reinterpret_cast<float*>(start);
    Panel::lay_down(sum, sums);
    if (p.panel.split == 1) {
      named_sync(1, kConsumers);
      return Panel::template finish<1>(p.panel, sums, part);
    }
    Panel::cluster_sync();
    Panel::finish_split(p.panel, sums, part);
    __syncwarp();
    Panel::cluster_sync();  // the others may still read this block's sums
  }
};

template <int Groups, bool Gated>
__global__ void __launch_bounds__(FewKernel<Groups, Gated>::kThreads)
    few_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ FewParams params) {
  FewKernel<Groups, Gated>::run(&weight, params);
}

}  // namespace llm_kernels::cuda
