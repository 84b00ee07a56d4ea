// The kernel of products with experts' weights: tiles of 128 sorted rows by 256 rows of W, all of one expert, through a
// ring of shared memory into wgmma. One warpgroup copies, two multiply 64 rows each; blocks of threads stay and take tile
// after tile. Knows nothing of launching.
//
// The blocks of a cluster of two take the 128-row halves of a block of 256 rows against the same rows of W, of which each
// copies one half to both; where the second half is empty they take other rows of W each. Both go through the ring in
// step: a place is free when both have read it.
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
template <class Element_, bool Gated_, int Cluster_>
struct GroupedConfig {
  using Element = Element_;
  static constexpr bool kGated = Gated_;
  static constexpr int kCluster = Cluster_;
  static constexpr int kStages = 4;
  static constexpr int kLag = 2;  // gathered steps under way when the next one is asked for
  static constexpr int kTileRows = kGroups * kGroupRows;
  static constexpr int kBlockRows = kCluster * kTileRows;
  static constexpr int kRowBytes = kTileRows * kStepBytes;
  static constexpr int kHalfBytes = kWeightRows / 2 * kStepBytes;  // of W
  static constexpr int kWeightBytes = 2 * kHalfBytes;
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

// What memory says of an index: the expert of its block (-1: there are no more), the first pair of the second half.
struct Found {
  int expert, second_pair;
};

template <class Config>
__device__ __forceinline__ Found find(const GroupedParams& p, int index) {
  const int block = index / p.num_tiles;
  if (block >= p.num_blocks) return {-1, 0};
  Found found{read_now(p.block_experts + block), p.num_pairs};
  if constexpr (Config::kCluster == 2) {
    found.second_pair = read_now(p.pairs + block * Config::kBlockRows + Config::kTileRows);
  }
  return found;
}

// A tile of this block of threads: its first row, its first column of `out`, its expert.
struct Tile {
  int first_row, column, expert;
  bool is_shared;  // the other block of the cluster takes other rows and the same rows of W
  bool is_void;    // there is nothing to do
};

template <class Config>
__device__ __forceinline__ Tile tile_at(const GroupedParams& p, int index, const Found& found, int rank) {
  const int block = index / p.num_tiles, turn = index % p.num_tiles;
  const bool is_shared = Config::kCluster == 2 && found.second_pair < p.num_pairs;
  if (Config::kCluster == 1 || is_shared) {
    return {block * Config::kBlockRows + rank * Config::kTileRows, turn * Config::kOutColumns, found.expert, is_shared,
            false};
  }
  const int turns = (p.num_tiles + 1) / 2;
  return {block * Config::kBlockRows, (turn + rank * turns) * Config::kOutColumns, found.expert, false, turn >= turns};
}

// Indices go round over the clusters.
template <class Config>
__device__ __forceinline__ int first_index() {
  return blockIdx.x / Config::kCluster;
}
template <class Config>
__device__ __forceinline__ int next_index(int index) {
  return index + gridDim.x / Config::kCluster;
}

template <class Config>
struct Ring {
  std::uint32_t start;
  __device__ std::uint32_t rows(int stage) const { return start + stage * Config::kStageBytes; }
  __device__ std::uint32_t weight(int stage) const { return rows(stage) + Config::kRowBytes; }
  __device__ std::uint32_t full(int stage) const { return start + Config::kStages * Config::kStageBytes + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const { return full(stage) + 8 * Config::kStages; }

  // A multiplying warp has read a place.
  __device__ void release(int stage) const {
    barrier_arrive(empty(stage));
    if constexpr (Config::kCluster == 2) {
      asm volatile(
          "{\n.reg .b32 remote;\n"
          "mapa.shared::cluster.u32 remote, %0, %1;\n"
          "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(empty(stage)),
          "r"(cluster_rank() ^ 1)
          : "memory");
    }
  }
};

// Copies a box to the same place in both blocks of a cluster, and tells the barrier of each.
__device__ __forceinline__ void copy_box_to_both(std::uint32_t to, const CUtensorMap* map, int c0, int c1, int c2,
                                                 std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}

template <class Config>
__device__ __forceinline__ void copy_weight(const GroupedParams& p, const CUtensorMap* map, const Ring<Config>& ring,
                                            int stage, const Tile& tile, int rank, int step) {
  const int column = step * Config::kStepColumns;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = tile.column + half * (Config::kGated ? p.out_size : kWeightRows / 2);
    const std::uint32_t to = ring.weight(stage) + half * Config::kHalfBytes;
    if (!tile.is_shared) {
      copy_box(to, map, column, row, tile.expert, ring.full(stage));
    } else if (half == rank) {
      copy_box_to_both(to, map, column, row, tile.expert, ring.full(stage));
    }
  }
}

// Copies 16 bytes to shared memory, or writes zeros where `bytes` is 0.
__device__ __forceinline__ void copy_piece(std::uint32_t to, const char* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copying of gathered rows: a thread has the 16-byte piece `piece` of eight rows, 16 apart.
template <class Config>
struct Gather {
  static constexpr int kRows = Config::kTileRows / 16;

  // Waits for all but `Pending` steps and says that the one before those is there.
  template <int Pending>
  static __device__ void finish(std::uint32_t full) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  }

  static __device__ void run(const GroupedParams& p, const CUtensorMap* weight_map, const Ring<Config>& ring,
                             int rank) {
    const int thread = threadIdx.x & 127, piece = thread % 8, row = thread / 8;
    const std::uint32_t place = row * kStepBytes + ((piece ^ (row & 7)) << 4);
    Place<Config::kStages> at, done;
    int started = 0, index = first_index<Config>();
    Found next = find<Config>(p, index);
    while (next.expert >= 0) {
      const Tile tile = tile_at<Config>(p, index, next, rank);
      index = next_index<Config>(index);
      next = find<Config>(p, index);
      if (tile.is_void) continue;
      int pairs[kRows];
      std::int64_t offset[kRows];  // bytes from x; below 0: no row
#pragma unroll
      for (int i = 0; i < kRows; ++i) pairs[i] = read_now(p.pairs + tile.first_row + row + 16 * i);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        offset[i] = pairs[i] < p.num_pairs ? pairs[i] / p.top_k * p.x_stride_bytes + piece * 16 : -1;
      }
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.empty(at.stage), at.parity ^ 1);
        if (thread == 0) {
          barrier_expect(ring.full(at.stage), Config::kWeightBytes);
          copy_weight<Config>(p, weight_map, ring, at.stage, tile, rank, step);
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
                            const Ring<Config>& ring, int rank) {
  Place<Config::kStages> at;
  int index = first_index<Config>();
  Found next = find<Config>(p, index);
  while (next.expert >= 0) {
    const Tile tile = tile_at<Config>(p, index, next, rank);
    index = next_index<Config>(index);
    next = find<Config>(p, index);
    if (tile.is_void) continue;
    const bool holds_both = read_now(p.pairs + tile.first_row + kGroupRows) < p.num_pairs;
    const int groups = holds_both ? 2 : 1;
    const unsigned bytes = Config::kWeightBytes + groups * (Config::kRowBytes / kGroups);
    for (int step = 0; step < p.num_steps; ++step) {
      barrier_wait_branching(ring.empty(at.stage), at.parity ^ 1);
      barrier_expect(ring.full(at.stage), bytes);
      copy_weight<Config>(p, weight_map, ring, at.stage, tile, rank, step);
      for (int group = 0; group < groups; ++group) {
        copy_box(ring.rows(at.stage) + group * (Config::kRowBytes / kGroups), rows_map, step * Config::kStepColumns,
                 tile.first_row + group * kGroupRows, 0, ring.full(at.stage));
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

// What a warpgroup knows of its next tile: read while it multiplies the one before. The rows depend on whether there is a
// second half: those of both cases are read.
template <class Config>
struct Ahead {
  static constexpr int kCases = Config::kCluster;
  Found found;
  int group_pair[kCases];  // the first of the group's rows
  int pair[kCases][2];     // of this thread's rows

  __device__ Ahead(const GroupedParams& p, int index, int group, int rank) : found(find<Config>(p, index)) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < kCases; ++half) group_pair[half] = pair[half][0] = pair[half][1] = p.num_pairs;
    if (index / p.num_tiles >= p.num_blocks) return;
#pragma unroll
    for (int half = 0; half < kCases; ++half) {
      if (half > rank) continue;
      const std::int32_t* from =
          p.pairs + index / p.num_tiles * Config::kBlockRows + half * Config::kTileRows + group * kGroupRows;
      group_pair[half] = read_now(from);
      pair[half][0] = read_now(from + row);
      pair[half][1] = read_now(from + row + 8);
    }
  }
};

// One multiplying warpgroup.
template <class Config>
__device__ void multiply(const GroupedParams& p, const Ring<Config>& ring, int rank) {
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const bool arrives = threadIdx.x % 32 == 0;
  Place<Config::kStages> at;
  int lead = min(p.lead, p.num_steps);  // of the first tile only
  int index = first_index<Config>();
  Ahead<Config> next(p, index, group, rank);
  while (next.found.expert >= 0) {
    const Tile tile = tile_at<Config>(p, index, next.found, rank);
    const int half = tile.is_shared ? rank : 0;
    int pair[2] = {next.pair[0][0], next.pair[0][1]}, group_pair = next.group_pair[0];
    if constexpr (Config::kCluster == 2) {
      if (half == 1) {
        pair[0] = next.pair[1][0];
        pair[1] = next.pair[1][1];
        group_pair = next.group_pair[1];
      }
    }
    index = next_index<Config>(index);
    next = Ahead<Config>(p, index, group, rank);
    if (tile.is_void) continue;
    if (lead > 0 && group == 1) named_sync(1, 256);
    if (group == 0 || group_pair < p.num_pairs) {
      const Output<Config> output(p, tile.first_row + group * kGroupRows, tile.column, tile.expert, pair);
      float sum[128];
      int before = 0;
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.full(at.stage), at.parity);
        multiply_step<Config>(sum, ring.rows(at.stage) + group * (kGroupRows * kStepBytes), ring.weight(at.stage),
                              step > 0);
        wgmma_wait<1>();
        if (step > 0 && arrives) ring.release(before);
        if (step + 1 == lead && group == 0) named_arrive(1, 256);
        before = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      if (arrives) ring.release(before);
      output.write(p, sum);
    } else {
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(ring.full(at.stage), at.parity);
        if (arrives) ring.release(at.stage);
        at.advance();
      }
    }
    lead = 0;
  }
}

template <class Config>
__device__ __forceinline__ void wait_for_cluster() {
  if constexpr (Config::kCluster == 2) {
    cluster_arrive();
    cluster_wait();
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
      barrier_init(ring.full(stage), Config::kGated ? 5 : 1);  // four warps that gather, and the weights' copy
      barrier_init(ring.empty(stage), 4 * kGroups * Config::kCluster);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_cluster<Config>();
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int rank = Config::kCluster == 2 ? cluster_rank() : 0;
  if (threadIdx.x >= 128 * kGroups) {
    give_registers<56>();
    if constexpr (Config::kGated) {
      Gather<Config>::run(params, &weight_map, ring, rank);
    } else if (threadIdx.x == 128 * kGroups) {
      copy_sorted<Config>(params, &rows_map, &weight_map, ring, rank);
    }
    __syncwarp();
  } else {
    take_registers<224>();
    multiply<Config>(params, ring, rank);
    __syncwarp();
  }
  wait_for_cluster<Config>();  // the other block still writes to this one's shared memory
}

}  // namespace llm_kernels::cuda::experts
