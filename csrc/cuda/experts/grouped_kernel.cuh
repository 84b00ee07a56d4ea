// The kernel of products with experts' weights: tiles of 128 sorted rows by 256 rows of W, all of one expert, through a
// ring of shared memory into wgmma. One warpgroup copies, two multiply 64 rows each; blocks of threads stay and take tile
// after tile. Knows nothing of launching.
//
// Shared memory holds tiles as rows of 128 bytes with the copy engine's swizzle. W comes by the copy engine, and so do
// sorted rows; rows that are gathered by token come by 16-byte copies of the copying warpgroup, to the same places.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "cuda/experts/grouped_output.cuh"
#include "cuda/experts/wgmma_256.cuh"
#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::experts {

constexpr int kStepBytes = 128;  // of a row, a step: the width of the swizzle
constexpr int kGroupRows = 64;   // rows of a multiplying warpgroup
constexpr int kGroups = 2;
constexpr int kWeightRows = 256;  // of a tile; with a gate half of them of the gate
constexpr int kThreads = 128 * (kGroups + 1);

// With a gate W has a gate half, and rows of x are gathered by token; else they are sorted, and pairs are scattered.
template <class Element_, GroupedGate Gate>
struct GroupedConfig {
  using Element = Element_;
  static constexpr GroupedGate kGate = Gate;
  static constexpr bool kGated = Gate != GroupedGate::kNone;
  static constexpr int kStages = 4;
  static constexpr int kRowBytes = kGroupedBlockRows * kStepBytes;
  static constexpr int kHalfBytes = kWeightRows / 2 * kStepBytes;  // of W
  static constexpr int kWeightBytes = 2 * kHalfBytes;
  static constexpr int kStageBytes = kRowBytes + kWeightBytes;
  static constexpr int kStepColumns = kStepBytes / static_cast<int>(sizeof(Element));
  static constexpr int kOutColumns = kGated ? kWeightRows / 2 : kWeightRows;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
};

template <class Config>
struct Ring {
  std::uint32_t start;
  int stage = 0;
  unsigned parity = 0;

  __device__ std::uint32_t rows(int at) const { return start + at * Config::kStageBytes; }
  __device__ std::uint32_t weight(int at) const { return rows(at) + Config::kRowBytes; }
  __device__ std::uint32_t full(int at) const { return start + Config::kStages * Config::kStageBytes + 8 * at; }
  __device__ std::uint32_t empty(int at) const { return full(at) + 8 * Config::kStages; }
  __device__ void advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A tile: its block, its first column of `out`, its expert (-1: there are no more). Read ahead of its use.
struct Tile {
  int block, column, expert;
};

template <class Config>
__device__ __forceinline__ Tile tile_at(const GroupedParams& p, int index) {
  const int block = index / p.num_tiles;
  if (block >= p.num_blocks) return {block, 0, -1};
  return {block, index % p.num_tiles * Config::kOutColumns, read_now(p.block_experts + block)};
}

template <class Config>
__device__ __forceinline__ void copy_weight(const GroupedParams& p, const CUtensorMap* map, const Ring<Config>& at,
                                            const Tile& tile, int step) {
  const int column = step * Config::kStepColumns, second = Config::kGated ? p.out_size : kWeightRows / 2;
  copy_box(at.weight(at.stage), map, column, tile.column, tile.expert, at.full(at.stage));
  copy_box(at.weight(at.stage) + Config::kHalfBytes, map, column, tile.column + second, tile.expert,
           at.full(at.stage));
}

// Copies 16 bytes to shared memory, or writes zeros where `bytes` is 0.
__device__ __forceinline__ void copy_piece(std::uint32_t to, const char* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Arrives once this thread's copies have come; the arrival is one of those the barrier counts.
__device__ __forceinline__ void arrive_when_copied(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// The copying of gathered rows: a thread has a 16-byte piece of eight rows, 16 apart.
template <class Config>
__device__ void copy_gathered(const GroupedParams& p, const CUtensorMap* weight_map, Ring<Config> at) {
  constexpr int kRows = kGroupedBlockRows / 16;
  const int thread = threadIdx.x & 127, piece = thread % 8, row = thread / 8;
  const std::uint32_t place = row * kStepBytes + ((piece ^ (row & 7)) << 4);
  int index = blockIdx.x;
  Tile next = tile_at<Config>(p, index);
  while (next.expert >= 0) {
    const Tile tile = next;
    next = tile_at<Config>(p, index += gridDim.x);
    int pairs[kRows];
    std::int64_t offset[kRows];  // bytes from x; below 0: no row
#pragma unroll
    for (int i = 0; i < kRows; ++i) pairs[i] = read_now(p.pairs + tile.block * kGroupedBlockRows + row + 16 * i);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      offset[i] = pairs[i] < p.num_pairs ? pairs[i] / p.top_k * p.x_stride_bytes + piece * 16 : -1;
    }
    for (int step = 0; step < p.num_steps; ++step) {
      barrier_wait_branching(at.empty(at.stage), at.parity ^ 1);
      if (thread == 0) {
        barrier_expect(at.full(at.stage), Config::kWeightBytes);
        copy_weight<Config>(p, weight_map, at, tile, step);
      }
      const int column = step * kStepBytes;
      const bool inside = column + piece * 16 < p.row_bytes;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const bool is_row = offset[i] >= 0 && inside;
        copy_piece(at.rows(at.stage) + place + i * (16 * kStepBytes), p.x + (is_row ? offset[i] + column : 0),
                   is_row ? 16 : 0);
      }
      arrive_when_copied(at.full(at.stage));
      at.advance();
    }
  }
}

// The copying of sorted rows; one thread.
template <class Config>
__device__ void copy_sorted(const GroupedParams& p, const CUtensorMap* rows_map, const CUtensorMap* weight_map,
                            Ring<Config> at) {
  int index = blockIdx.x;
  Tile next = tile_at<Config>(p, index);
  while (next.expert >= 0) {
    const Tile tile = next;
    next = tile_at<Config>(p, index += gridDim.x);
    const int first_row = tile.block * kGroupedBlockRows;
    const int groups = read_now(p.pairs + first_row + kGroupRows) < p.num_pairs ? 2 : 1;
    const unsigned bytes = Config::kWeightBytes + groups * (Config::kRowBytes / kGroups);
    for (int step = 0; step < p.num_steps; ++step) {
      barrier_wait_branching(at.empty(at.stage), at.parity ^ 1);
      barrier_expect(at.full(at.stage), bytes);
      copy_weight<Config>(p, weight_map, at, tile, step);
      for (int group = 0; group < groups; ++group) {
        copy_box(at.rows(at.stage) + group * (Config::kRowBytes / kGroups), rows_map, step * Config::kStepColumns,
                 first_row + group * kGroupRows, 0, at.full(at.stage));
      }
      at.advance();
    }
  }
}

// A tile of rows of 128 bytes with the 128-byte swizzle, eight rows (1,024 bytes) after eight rows.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address) {
  constexpr std::uint64_t layout = (1ull << 62) | (64ull << 32) | (1ull << 16);
  return layout | ((address & 0x3FFFF) >> 4);
}

template <class Config>
__device__ __forceinline__ void multiply_step(float (&sum)[128], std::uint32_t rows, std::uint32_t weight, bool add) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kStepBytes / 32; ++k) {
    if constexpr (std::is_same_v<typename Config::Element, __nv_bfloat16>) {
      multiply_256_bf16(sum, operand(rows + 32 * k), operand(weight + 32 * k), add || k > 0);
    } else {
      multiply_256_e4m3(sum, operand(rows + 32 * k), operand(weight + 32 * k), add || k > 0);
    }
  }
  wgmma_commit();
}

// What a warpgroup knows of its next tile: read while it multiplies the one before.
template <class Config>
struct Ahead {
  Tile tile;
  int group_pair;  // the first of the group's rows
  int pair[2];     // of this thread's rows

  __device__ Ahead(const GroupedParams& p, int index, int group)
      : tile(tile_at<Config>(p, index)), group_pair(0), pair{0, 0} {
    if (tile.block >= p.num_blocks) return;
    const std::int32_t* from = p.pairs + tile.block * kGroupedBlockRows + group * kGroupRows;
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    group_pair = read_now(from);
    pair[0] = read_now(from + row);
    pair[1] = read_now(from + row + 8);
  }
};

// One multiplying warpgroup.
template <class Config>
__device__ void multiply(const GroupedParams& p, Ring<Config> at) {
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const bool arrives = threadIdx.x % 32 == 0;
  int index = blockIdx.x;
  Ahead<Config> next(p, index, group);
  while (next.tile.expert >= 0) {
    const Ahead<Config> now = next;
    next = Ahead<Config>(p, index += gridDim.x, group);
    if (group == 0 || now.group_pair < p.num_pairs) {
      const Output<Config> output(p, now.tile.block * kGroupedBlockRows + group * kGroupRows, now.tile.column,
                                  now.tile.expert, now.pair);
      float sum[128];
      int before = 0;
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(at.full(at.stage), at.parity);
        if constexpr (Config::kGated) fence_async_proxy();  // rows came by ordinary copies
        multiply_step<Config>(sum, at.rows(at.stage) + group * (kGroupRows * kStepBytes), at.weight(at.stage),
                              step > 0);
        wgmma_wait<1>();
        if (step > 0 && arrives) barrier_arrive(at.empty(before));
        before = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      if (arrives) barrier_arrive(at.empty(before));
      output.write(p, sum);
    } else {
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(at.full(at.stage), at.parity);
        if (arrives) barrier_arrive(at.empty(at.stage));
        at.advance();
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_kernel(const __grid_constant__ GroupedParams params, const __grid_constant__ CUtensorMap rows_map,
                   const __grid_constant__ CUtensorMap weight_map) {
  extern __shared__ char raw[];
  const Ring<Config> ring{(shared_address(raw) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    prefetch_map(&rows_map);
    prefetch_map(&weight_map);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(ring.full(stage), Config::kGated ? 129 : 1);  // each thread that gathers, and the weights' copy
      barrier_init(ring.empty(stage), 4 * kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier_kernels();
  let_next_kernel_start();
  if (threadIdx.x >= 128 * kGroups) {
    give_registers<56>();
    if constexpr (Config::kGated) {
      copy_gathered<Config>(params, &weight_map, ring);
    } else if (threadIdx.x == 128 * kGroups) {
      copy_sorted<Config>(params, &rows_map, &weight_map, ring);
    }
  } else {
    take_registers<224>();
    multiply<Config>(params, ring);
  }
}

}  // namespace llm_kernels::cuda::experts
