// The kernel of products with experts' weights: tiles of 128 sorted rows by 256 rows of W, all of one expert, through a
// ring of shared memory into wgmma. One warpgroup copies, two multiply 64 rows each; blocks stay and take tile after
// tile. Knows nothing of launching.
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

// `Gated`: W has a gate half, and rows of x are gathered by token; else they are sorted, and pairs are scattered.
template <class Element_, bool Gated_, int Stages_, int Lag_>
struct GroupedConfig {
  using Element = Element_;
  static constexpr bool kGated = Gated_;
  static constexpr int kStages = Stages_;
  static constexpr int kLag = Lag_;  // gathered steps under way when the next one is asked for
  static constexpr int kRowBytes = kGroups * kGroupRows * kStepBytes;
  static constexpr int kWeightBytes = kWeightRows * kStepBytes;
  static constexpr int kStageBytes = kRowBytes + kWeightBytes;
  static constexpr int kStepColumns = kStepBytes / static_cast<int>(sizeof(Element));
  static constexpr int kOutColumns = kGated ? kWeightRows / 2 : kWeightRows;
  static constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + 16);
  static_assert(kLag < kStages);
};

// A place in the ring, and how often the ring went round.
template <int Stages>
struct Place {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A tile: which block, which columns of `out`, which expert (-1: there are no more).
struct Tile {
  int block, column, expert;
};

template <class Config>
__device__ __forceinline__ Tile tile_at(const GroupedParams& p, int index) {
  const int block = index / p.num_tiles;
  if (block >= p.num_blocks) return {block, 0, -1};
  return {block, index % p.num_tiles * Config::kOutColumns, p.block_experts[block]};
}

// Pairs are at the front of a block.
__device__ __forceinline__ bool holds_pairs(const GroupedParams& p, const Tile& tile, int group) {
  if (tile.expert < 0) return false;
  return group == 0 || p.pairs[tile.block * (kGroups * kGroupRows) + group * kGroupRows] < p.num_pairs;
}

template <class Config>
struct Barriers {
  std::uint32_t ring;
  __device__ std::uint32_t rows(int stage) const { return ring + stage * Config::kStageBytes; }
  __device__ std::uint32_t weight(int stage) const { return rows(stage) + Config::kRowBytes; }
  __device__ std::uint32_t full(int stage) const { return ring + Config::kStages * Config::kStageBytes + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const { return full(stage) + 8 * Config::kStages; }
};

template <class Config>
__device__ __forceinline__ void copy_weight(const GroupedParams& p, const CUtensorMap* map, const Barriers<Config>& ring,
                                            int stage, const Tile& tile, int step) {
  const int column = step * Config::kStepColumns;
  copy_box(ring.weight(stage), map, column, tile.column, tile.expert, ring.full(stage));
  if constexpr (Config::kGated) {
    copy_box(ring.weight(stage) + Config::kWeightBytes / 2, map, column, p.out_size + tile.column, tile.expert,
             ring.full(stage));
  }
}

// Copies 16 bytes to shared memory, or writes zeros where `bytes` is 0.
__device__ __forceinline__ void copy_piece(std::uint32_t to, const char* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copying of gathered rows: a thread has the 16-byte piece `piece` of eight rows, 16 apart.
template <class Config>
struct Gather {
  static constexpr int kRows = kGroups * kGroupRows / 16;

  static __device__ void load_rows(const GroupedParams& p, int block, int (&pairs)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      pairs[i] = p.pairs[block * (kGroups * kGroupRows) + (threadIdx.x & 127) / 8 + 16 * i];
    }
  }

  // Waits for all but `Pending` steps and says that the one before those is there.
  template <int Pending>
  static __device__ void finish(std::uint32_t full) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  }

  static __device__ void run(const GroupedParams& p, const CUtensorMap* weight_map, const Barriers<Config>& ring) {
    const int thread = threadIdx.x & 127, piece = thread % 8, row = thread / 8;
    const std::uint32_t place = row * kStepBytes + ((piece ^ (row & 7)) << 4);
    Place<Config::kStages> at, done;
    int started = 0;
    Tile tile = tile_at<Config>(p, blockIdx.x);
    int next_pairs[kRows];
    if (tile.expert >= 0) load_rows(p, tile.block, next_pairs);
    for (int index = blockIdx.x; tile.expert >= 0;) {
      std::int64_t offset[kRows];  // bytes from x; below 0: no row
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int token = next_pairs[i] / p.top_k;
        offset[i] = next_pairs[i] < p.num_pairs ? token * p.x_stride_bytes + piece * 16 : -1;
      }
      const Tile now = tile;
      index += gridDim.x;
      tile = tile_at<Config>(p, index);
      if (tile.expert >= 0) load_rows(p, tile.block, next_pairs);
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.empty(at.stage), at.parity ^ 1);
        if (thread == 0) {
          barrier_expect(ring.full(at.stage), Config::kWeightBytes);
          copy_weight<Config>(p, weight_map, ring, at.stage, now, step);
        }
        const int column = step * kStepBytes;
        const bool inside = column + piece * 16 < p.row_bytes;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const bool is_row = offset[i] >= 0 && inside;
          copy_piece(ring.rows(at.stage) + place + i * (16 * kStepBytes), p.x + (is_row ? offset[i] + column : 0),
                     is_row ? 16 : 0);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        at.advance();
        if (started < Config::kLag) {
          ++started;
        } else {
          finish<Config::kLag>(ring.full(done.stage));
          done.advance();
        }
      }
    }
    for (; started > 0; --started) {
      finish<0>(ring.full(done.stage));
      done.advance();
    }
  }
};

// The copying of sorted rows; one thread.
template <class Config>
__device__ void copy_sorted(const GroupedParams& p, const CUtensorMap* rows_map, const CUtensorMap* weight_map,
                            const Barriers<Config>& ring) {
  Place<Config::kStages> at;
  for (int index = blockIdx.x;; index += gridDim.x) {
    const Tile tile = tile_at<Config>(p, index);
    if (tile.expert < 0) return;
    const int groups = holds_pairs(p, tile, 1) ? 2 : 1;
    const unsigned bytes = Config::kWeightBytes + groups * (Config::kRowBytes / kGroups);
    for (int step = 0; step < p.num_steps; ++step) {
      barrier_wait_branching(ring.empty(at.stage), at.parity ^ 1);
      barrier_expect(ring.full(at.stage), bytes);
      copy_weight<Config>(p, weight_map, ring, at.stage, tile, step);
      for (int group = 0; group < groups; ++group) {
        copy_box(ring.rows(at.stage) + group * (Config::kRowBytes / kGroups), rows_map, step * Config::kStepColumns,
                 tile.block * (kGroups * kGroupRows) + group * kGroupRows, 0, ring.full(at.stage));
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

// One multiplying warpgroup.
template <class Config>
__device__ void multiply(const GroupedParams& p, const Barriers<Config>& ring) {
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const bool arrives = threadIdx.x % 32 == 0;
  Place<Config::kStages> at;
  int lead = min(p.lead, p.num_steps);  // of the first tile only
  Tile next = tile_at<Config>(p, blockIdx.x);
  bool next_holds = holds_pairs(p, next, group);
  if (p.lead > 0 && group == 1 && next.expert >= 0) named_sync(1, 256);
  for (int index = blockIdx.x; next.expert >= 0;) {
    const Tile tile = next;
    const bool holds = next_holds;
    index += gridDim.x;
    Output<Config> output(p, tile, group, holds);
    next = tile_at<Config>(p, index);
    next_holds = holds_pairs(p, next, group);
    if (holds) {
      float sum[128];
      int before = 0;
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.full(at.stage), at.parity);
        multiply_step<Config>(sum, ring.rows(at.stage) + group * (kGroupRows * kStepBytes), ring.weight(at.stage),
                              step > 0);
        wgmma_wait<1>();
        if (step > 0 && arrives) barrier_arrive(ring.empty(before));
        if (step + 1 == lead && group == 0) {
          named_arrive(1, 256);
        }
        before = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      if (arrives) barrier_arrive(ring.empty(before));
      output.write(p, sum);
    } else {
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.full(at.stage), at.parity);
        if (arrives) barrier_arrive(ring.empty(at.stage));
        at.advance();
      }
    }
    lead = 0;
  }
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_kernel(const __grid_constant__ GroupedParams params, const __grid_constant__ CUtensorMap rows_map,
                   const __grid_constant__ CUtensorMap weight_map) {
  extern __shared__ char raw[];
  const Barriers<Config> ring{(shared_address(raw) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    prefetch_map(&rows_map);
    prefetch_map(&weight_map);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(ring.full(stage), Config::kGated ? 5 : 1);  // four warps that gather, and the weights' copy
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
      Gather<Config>::run(params, &weight_map, ring);
    } else if (threadIdx.x == 128 * kGroups) {
      copy_sorted<Config>(params, &rows_map, &weight_map, ring);
    }
  } else {
    take_registers<224>();
    multiply<Config>(params, ring);
  }
}

}  // namespace llm_kernels::cuda::experts
