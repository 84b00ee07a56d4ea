// The weight-streaming kernel: 64-row tiles of W through a ring of shared memory into wgmma, as its A operand; the
// tokens are its N. One warp copies, four multiply, all add up. Knows nothing of plans and launches.
#pragma once

#include <cuda_bf16.h>

#include "cuda/hopper.cuh"
#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/wgmma.cuh"

namespace llm_kernels::cuda {

constexpr int kTileRows = 64;
constexpr int kTileBytes = 128;  // of a row in one stage: the width of the swizzle
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;

struct StreamParams {
  Epilogue epilogue;
  const float* scale;  // of 128 x 128 blocks, else null
  std::int64_t scale_stride;
  int num_steps;  // of 128 bytes of a row of W
  int split, stages;
  int quad_shift;  // logarithm of the quads of rows a block of the cluster finishes
  int up_row;      // with a gate: first row of the up half
};

// `Tiles` 64-row tiles a block and up to `N` tokens. A step is 128 bytes of each row of W: 64 or, in float8, 128
// columns. With bfloat16 tokens float8 weights are widened in registers; with float8 tokens both are multiplied as they
// are.
template <int N, int Tiles, bool Gated, LinearWeight Kind, bool BlockScale>
struct StreamKernel {
  static constexpr bool kFloat8 = Kind != LinearWeight::kBFloat16;
  static constexpr bool kWidens = Kind == LinearWeight::kFloat8;
  static constexpr int kColumns = kFloat8 ? 128 : 64;
  static constexpr int kWeightBytes = Tiles * kTileRows * kTileBytes;
  static constexpr int kTokenTile = N * kTileBytes;
  static constexpr int kTokenTiles = kWidens ? 2 : 1;  // of a step
  static constexpr int kTokenColumns = kColumns / kTokenTiles;
  static constexpr int kTokenBytes = kTokenTile * kTokenTiles;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kRows = Tiles * kTileRows;
  static constexpr int kSumStride = kRows + 4;  // floats between the sums of two tokens
  static constexpr int kSumBytes = N * kSumStride * 4;

  static __device__ void copy_weight(const CUtensorMap* map, const StreamParams& p, std::uint32_t to,
                                     std::uint32_t full, int tile, int step) {
    if constexpr (Gated) {
      constexpr int half = kRows / 2;
      copy_box(to, map, step * kColumns, tile * half, full, true);
      copy_box(to + half * kTileBytes, map, step * kColumns, p.up_row + tile * half, full, true);
    } else {
      copy_box(to, map, step * kColumns, tile * kRows, full, true);
    }
  }

  static __device__ void copy_tokens(const CUtensorMap* map, std::uint32_t to, std::uint32_t full, int step) {
#pragma unroll
    for (int part = 0; part < kTokenTiles; ++part) {
      copy_box(to + part * kTokenTile, map, step * kColumns + part * kTokenColumns, 0, full, false);
    }
  }

  // The copying thread. The first stages of W are under way before the kernels ahead have ended.
  static __device__ void produce(const CUtensorMap* weight, const CUtensorMap* tokens, const StreamParams& p,
                                 std::uint32_t ring, std::uint32_t full, std::uint32_t empty, int tile, int first,
                                 int count, bool ahead) {
    const int early = min(count, p.stages);
    if (ahead) {
      for (int i = 0; i < early; ++i) {
        barrier_expect(full + 8 * i, kStageBytes);
        copy_weight(weight, p, ring + i * kStageBytes, full + 8 * i, tile, first + i);
      }
      return;
    }
    for (int i = 0; i < early; ++i) {
      copy_tokens(tokens, ring + i * kStageBytes + kWeightBytes, full + 8 * i, first + i);
    }
    int stage = early == p.stages ? 0 : early;
    unsigned parity = 0;
    for (int i = early; i < count; ++i) {
      barrier_wait(empty + 8 * stage, parity);
      barrier_expect(full + 8 * stage, kStageBytes);
      copy_weight(weight, p, ring + stage * kStageBytes, full + 8 * stage, tile, first + i);
      copy_tokens(tokens, ring + stage * kStageBytes + kWeightBytes, full + 8 * stage, first + i);
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // e4m3 pairs (low byte first) to bfloat16 pairs: the bits moved give the value times 2^-120.
  static __device__ unsigned widen(unsigned pair) {
    const unsigned bits = __byte_perm(pair, 0, 0x1404);
    const unsigned moved = (bits & 0x80008000u) | ((bits >> 4) & 0x07F007F0u);
    unsigned value;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(value) : "r"(moved), "r"(0x7B807B80u));  // 2^120
    return value;
  }

  // A fragment of 64 rows x 16 columns of a float8 tile: rows g and g + 8 of this warp's 16, chunk `chunk` of 16 bytes.
  static __device__ void fragment(unsigned (&a)[4], std::uint32_t tile, int row, int pair, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + 8 * half;
      const std::uint32_t address = tile + at * kTileBytes + ((chunk ^ (at & 7)) << 4) + 2 * pair;
      unsigned short low, high;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(address));
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(address + 8));
      a[half] = widen(low);
      a[half + 2] = widen(high);
    }
  }

  // Both operands from shared memory, 32 bytes of each row at a time.
  static __device__ void multiply_shared(float (&sum)[Tiles][N / 2], std::uint32_t stage) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t b = swizzled_tile(stage + kWeightBytes + 32 * k);
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        const std::uint64_t a = swizzled_tile(stage + tile * kTileRows * kTileBytes + 32 * k);
        if constexpr (kFloat8) {
          wgmma_e4m3<N>(sum[tile], a, b, true);
        } else {
          wgmma<N>(sum[tile], a, b, true);
        }
      }
    }
    wgmma_commit();
  }

  static __device__ void multiply_widened(float (&sum)[Tiles][N / 2], std::uint32_t stage, bool add) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      unsigned a[8][4];
#pragma unroll
      for (int k = 0; k < 8; ++k) fragment(a[k], stage + tile * kTileRows * kTileBytes, row, pair, k);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const std::uint64_t b = swizzled_tile(stage + kWeightBytes + k / 4 * kTokenTile + 32 * (k % 4));
        wgmma<N>(sum[tile], a[k], b, add || k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
    }
  }

  // The scale of the 128 x 128 block that holds tile `tile` of this block, in column `step`.
  static __device__ float block_scale(const StreamParams& p, int first_row, int step) {
    return p.scale[first_row / 128 * p.scale_stride + step];
  }

  static __device__ void consume(float (&sum)[Tiles][N / 2], const StreamParams& p, std::uint32_t ring,
                                 std::uint32_t full, std::uint32_t empty, int tile, int first, int count) {
    int stage = 0, before = 0;
    unsigned parity = 0;
    for (int i = 0; i < count; ++i) {
      const std::uint32_t data = ring + stage * kStageBytes;
      if constexpr (BlockScale) {
        float part[Tiles][N / 2], scale[Tiles];
#pragma unroll
        for (int at = 0; at < Tiles; ++at) scale[at] = block_scale(p, tile_row(p, tile, at), first + i);
        barrier_wait(full + 8 * stage, parity);
        multiply_widened(part, data, false);
#pragma unroll
        for (int at = 0; at < Tiles; ++at) {
#pragma unroll
          for (int j = 0; j < N / 2; ++j) sum[at][j] = fmaf(part[at][j], scale[at], sum[at][j]);
        }
      } else {
        barrier_wait(full + 8 * stage, parity);
        if constexpr (kWidens) {
          multiply_widened(sum, data, true);
        } else {
          multiply_shared(sum, data);
        }
      }
      if constexpr (kWidens) {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * stage);
      } else {
        wgmma_wait<1>();
        if (i > 0 && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * before);
        before = stage;
      }
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    wgmma_wait<0>();
  }

  // First row of W in tile `at` of this block.
  static __device__ int tile_row(const StreamParams& p, int tile, int at) {
    if constexpr (!Gated) return tile * kRows + at * kTileRows;
    constexpr int half = Tiles / 2 > 0 ? Tiles / 2 : 1;
    return at / half * p.up_row + tile * (kRows / 2) + at % half * kTileRows;
  }

  // Lays this block's sums into shared memory, token after token.
  static __device__ void lay_down(const float (&sum)[Tiles][N / 2], float* sums) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, token = threadIdx.x % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[(8 * j + token + e % 2) * kSumStride + tile * kTileRows + row + 8 * (e / 2)] = sum[tile][4 * j + e];
        }
      }
    }
  }

  // Four neighbouring rows of one token, added over the cluster in the order of its blocks.
  static __device__ float4 total(const StreamParams& p, const float* sums, int token, int row) {
    const float* mine = sums + token * kSumStride + row;
    if (p.split == 1) return *reinterpret_cast<const float4*>(mine);
    const std::uint32_t at = shared_address(mine);
    float4 value = read_cluster(at, 0);
#pragma unroll 4
    for (int rank = 1; rank < p.split; ++rank) {
      const float4 more = read_cluster(at, rank);
      value.x += more.x;
      value.y += more.y;
      value.z += more.z;
      value.w += more.w;
    }
    return value;
  }

  // Finishes this block's share of the cluster's rows: quads of rows, `quad_shift` of them a token, rounded up.
  static __device__ void finish(const StreamParams& p, const float* sums, int tile, int rank) {
    constexpr int rows = Gated ? kRows / 2 : kRows;
    const int share = (rows / 4 + p.split - 1) / p.split, begin = rank * share;
    const int width = min(rows / 4 - begin, share), mask = (1 << p.quad_shift) - 1;
#pragma unroll 4
    for (int i = threadIdx.x; i < p.epilogue.num_tokens << p.quad_shift; i += kThreads) {
      const int token = i >> p.quad_shift, quad = i & mask, row = 4 * (begin + quad), out_row = tile * rows + row;
      if (quad >= width || out_row >= p.epilogue.num_rows) continue;
      const float4 value = total(p, sums, token, row);
      if constexpr (Gated) {
        p.epilogue.store_gated(token, out_row, value, total(p, sums, token, row + rows), p.up_row);
      } else {
        p.epilogue.store(token, out_row, value);
      }
    }
  }

  static __device__ void run(const CUtensorMap* weight, const CUtensorMap* tokens, const StreamParams& p) {
    extern __shared__ std::uint8_t shared[];
    std::uint8_t* ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
    // Behind the sums too: what is written over a barrier may be undone when another process takes turns on the GPU.
    const std::uint32_t data = shared_address(ring);
    const std::uint32_t full = data + max(p.stages * kStageBytes, kSumBytes), empty = full + 8 * p.stages;
    const int rank = blockIdx.x % p.split, tile = blockIdx.x / p.split;
    const int first = p.num_steps * rank / p.split, count = p.num_steps * (rank + 1) / p.split - first;
    const bool copies = threadIdx.x == kConsumers;
    if (copies) {
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(full + 8 * i, 1);
        barrier_init(empty + 8 * i, kConsumers / 32);
      }
      barrier_init_fence();
      produce(weight, tokens, p, data, full, empty, tile, first, count, true);
      let_next_kernel_start();
    }
    __syncthreads();
    wait_for_earlier_kernels();
    if (threadIdx.x >= kConsumers) {
      if (copies) produce(weight, tokens, p, data, full, empty, tile, first, count, false);
      __syncwarp();
    } else {
      float sum[Tiles][N / 2] = {};
      consume(sum, p, data, full, empty, tile, first, count);
      asm volatile("bar.sync 1, 128;" ::: "memory");  // all have read the ring
      lay_down(sum, reinterpret_cast<float*>(ring));
    }
    const float* sums = reinterpret_cast<const float*>(ring);
    if (p.split == 1) {
      __syncthreads();
      finish(p, sums, tile, 0);
    } else {
      cluster_arrive();
      cluster_wait();
      finish(p, sums, tile, rank);
      cluster_arrive();
      cluster_wait();  // the others may still read this block's sums
    }
  }
};

template <int N, int Tiles, bool Gated, LinearWeight Kind, bool BlockScale>
__global__ void __launch_bounds__(kThreads)
    stream_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap tokens,
                  const __grid_constant__ StreamParams params) {
  StreamKernel<N, Tiles, Gated, Kind, BlockScale>::run(&weight, &tokens, params);
}

}  // namespace llm_kernels::cuda
