// The kernel of products of few pairs an expert: tiles of 64 pairs by 128 rows of W through a ring of shared memory into
// wgmma. One warpgroup copies, one multiplies; blocks of threads stay and take tile after tile, and two kernels fit on a
// multiprocessor, so that one begins to read W while the one before it ends. Knows nothing of launching.
//
// Where pairs are many, almost every expert has some: then a block reads the weights of the tile it will probably have
// before it knows the pairs, which it sorts by expert for itself meanwhile. Their order within an expert may change from
// run to run, and nothing depends on it.
#pragma once

#include <cuda_bf16.h>

#include "cuda/experts/grouped_output.cuh"
#include "cuda/hopper.cuh"
#include "cuda/linear/wgmma.cuh"
#include "llm_kernels/cuda/pairs_gemm.h"

namespace llm_kernels::cuda::experts {

struct PairsParams {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  const char* x;
  std::int64_t x_stride_bytes;
  const float* pair_weights;
  const std::int64_t* ids;
  std::int32_t num_pairs, num_experts;
  std::int32_t pairs_of_row;  // of x
  std::int32_t num_tiles;     // of an expert
  std::int32_t num_steps;     // of 128 bytes of a row
  std::int32_t row_bytes;
  std::int32_t out_size;  // columns of `out`
  GroupedGate gate;
  bool guesses;  // reads the weights of the first tile before the pairs are known
};

template <bool Gated_>
struct PairsConfig {
  static constexpr bool kGated = Gated_;
  static constexpr int kThreads = 256;  // a warpgroup that multiplies, one that copies
  static constexpr int kStages = 4;
  static constexpr int kLag = 2;
  static constexpr int kRows = 64;
  static constexpr int kStep = 128;  // bytes of a row
  static constexpr int kRowBytes = kRows * kStep;
  static constexpr int kHalfBytes = 64 * kStep;  // of W
  static constexpr int kWeightBytes = 2 * kHalfBytes;
  static constexpr int kStageBytes = kRowBytes + kWeightBytes;
  static constexpr int kOutColumns = kGated ? 64 : 128;
  static constexpr int kPairsOfThread = kMostPairs / kThreads;
  // The ring, its barriers, how many experts have pairs, the first pair of each, the experts with pairs, the pairs.
  static constexpr int kBarrierOffset = kStages * kStageBytes;
  static constexpr int kFirstOffset = kBarrierOffset + 16 * kStages;

  static constexpr int shared_bytes(int num_pairs, int num_experts) {
    return 1024 + kFirstOffset + 4 * (num_experts + 2) + 2 * num_experts + 2 * num_pairs;
  }
};

// The pairs by expert, in shared memory: those of expert e are list[first[e]] to list[first[e + 1] - 1]. The experts that
// have pairs are experts[0] to experts[count - 1].
struct SortedPairs {
  int* count;
  int* first;
  std::uint16_t* experts;
  std::uint16_t* list;
};

template <class Config>
__device__ __forceinline__ int id_of(const PairsParams& p, int pair) {
  const std::int64_t id = __ldcg(p.ids + pair);
  return id >= 0 && id < p.num_experts ? static_cast<int>(id) : p.num_experts;
}

// All threads. Call once earlier kernels have ended; `first` holds zeros.
template <class Config>
__device__ void sort_pairs(const PairsParams& p, const SortedPairs& sorted) {
  int expert[Config::kPairsOfThread], place[Config::kPairsOfThread];
#pragma unroll
  for (int i = 0; i < Config::kPairsOfThread; ++i) {
    const int pair = i * Config::kThreads + threadIdx.x;
    if (pair < p.num_pairs) expert[i] = id_of<Config>(p, pair);
  }
#pragma unroll
  for (int i = 0; i < Config::kPairsOfThread; ++i) {
    const int pair = i * Config::kThreads + threadIdx.x;
    if (pair < p.num_pairs) place[i] = atomicAdd(sorted.first + expert[i], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // exclusive sums
    int before = 0, used = 0;
    for (int start = 0; start < p.num_experts + 1; start += 32) {
      const int at = start + threadIdx.x, own = at < p.num_experts + 1 ? sorted.first[at] : 0;
      const bool is_used = own > 0 && at < p.num_experts;
      const unsigned all_used = __ballot_sync(0xFFFFFFFFu, is_used);
      if (is_used) sorted.experts[used + __popc(all_used & ((1u << threadIdx.x) - 1))] = at;
      used += __popc(all_used);
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        if (threadIdx.x >= distance) sum += other;
      }
      if (at < p.num_experts + 1) sorted.first[at] = before + sum - own;
      before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    if (threadIdx.x == 0) *sorted.count = used;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Config::kPairsOfThread; ++i) {
    const int pair = i * Config::kThreads + threadIdx.x;
    if (pair < p.num_pairs) sorted.list[sorted.first[expert[i]] + place[i]] = static_cast<std::uint16_t>(pair);
  }
  __syncthreads();
}

template <class Config>
struct PairsRing {
  std::uint32_t start;
  int stage = 0;
  unsigned parity = 0;

  __device__ std::uint32_t rows(int at) const { return start + at * Config::kStageBytes; }
  __device__ std::uint32_t weight(int at) const { return rows(at) + Config::kRowBytes; }
  __device__ std::uint32_t full(int at) const { return start + Config::kBarrierOffset + 8 * at; }
  __device__ std::uint32_t empty(int at) const { return full(at) + 8 * Config::kStages; }
  __device__ void advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class Config>
__device__ __forceinline__ int column_of(const PairsParams& p, int index) {
  return index % p.num_tiles * Config::kOutColumns;
}

// Steps under way before the pairs are known.
template <class Config>
__device__ __forceinline__ int early_steps(const PairsParams& p) {
  return p.guesses ? min(Config::kStages, p.num_steps) : 0;
}

// Whether they are of the block's first tile.
__device__ __forceinline__ bool guessed_right(const PairsParams& p, const SortedPairs& sorted) {
  const int place = blockIdx.x / p.num_tiles;
  return place < *sorted.count && sorted.experts[place] == place;
}

template <class Config>
__device__ __forceinline__ void copy_pairs_weight(const PairsParams& p, const CUtensorMap* map,
                                                  const PairsRing<Config>& ring, int stage, int expert, int column,
                                                  int step) {
  barrier_expect(ring.full(stage), Config::kWeightBytes);
  copy_box(ring.weight(stage), map, step * (Config::kStep / 2), column, expert, ring.full(stage));
  copy_box(ring.weight(stage) + Config::kHalfBytes, map, step * (Config::kStep / 2),
           column + (Config::kGated ? p.out_size : 64), expert, ring.full(stage));
}

// The copying warpgroup. The weights of the first steps are under way.
template <class Config>
struct PairsCopy {
  static constexpr int kPieces = Config::kRows / 16;  // of a thread: one of 16 bytes in each of so many rows

  template <int Pending>
  static __device__ void finish(std::uint32_t full) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  }

  static __device__ void run(const PairsParams& p, const CUtensorMap* weight_map, const SortedPairs& sorted,
                             PairsRing<Config> at) {
    const int thread = threadIdx.x & 127, piece = thread % 8, row = thread / 8;
    const std::uint32_t place = row * Config::kStep + ((piece ^ (row & 7)) << 4);
    PairsRing<Config> done = at;
    int started = 0, early = early_steps<Config>(p);
    if (!guessed_right(p, sorted)) {  // let them come, for nothing
      for (; early > 0; --early) {
        if (thread % 32 == 0) barrier_arrive(at.full(at.stage));
        at.advance();
      }
      done = at;
    }
    for (int index = blockIdx.x; index < p.num_tiles * *sorted.count; index += gridDim.x) {
      const int expert = sorted.experts[index / p.num_tiles], end = sorted.first[expert + 1];
      int first = sorted.first[expert];
      do {
        const char* from[kPieces];
        bool is_row[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const int entry = first + row + 16 * i;
          is_row[i] = entry < end;
          const int x_row = is_row[i] ? sorted.list[entry] / p.pairs_of_row : 0;
          from[i] = p.x + x_row * p.x_stride_bytes + piece * 16;
        }
        for (int step = 0; step < p.num_steps; ++step) {
          if (early > 0) {
            --early;
          } else {
            barrier_wait_branching(at.empty(at.stage), at.parity ^ 1);
            if (thread == 0) {
              copy_pairs_weight<Config>(p, weight_map, at, at.stage, expert, column_of<Config>(p, index), step);
            }
          }
          const int column = step * Config::kStep;
          const bool inside = column + piece * 16 < p.row_bytes;
#pragma unroll
          for (int i = 0; i < kPieces; ++i) {
            const bool reads = is_row[i] && inside;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at.rows(at.stage) + place +
                                                                               i * (16 * Config::kStep)),
                         "l"(from[i] + (reads ? column : 0)), "r"(reads ? 16 : 0)
                         : "memory");
          }
          asm volatile("cp.async.commit_group;" ::: "memory");
          at.advance();
          if (started < Config::kLag) {
            ++started;
          } else {
            finish<Config::kLag>(done.full(done.stage));
            done.advance();
          }
        }
        first += Config::kRows;
      } while (first < end);
    }
    for (; started > 0; --started) {
      finish<0>(done.full(done.stage));
      done.advance();
    }
  }
};

// The output of 64 pairs: a thread's sums are those of rows r and r + 8 as wgmma has them.
template <class Config>
struct PairsOutput {
  int pair[2];  // below 0: none
  float share[2];

  __device__ PairsOutput(const PairsParams& p, const SortedPairs& sorted, int first, int end) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int entry = first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
      pair[half] = entry < end ? sorted.list[entry] : -1;
      share[half] = 1.0f;
      if (!Config::kGated && p.pair_weights != nullptr) share[half] = read_now(p.pair_weights + max(pair[half], 0));
    }
  }

  __device__ std::uint32_t word(const PairsParams& p, const float (&sum)[64], int j, int half) const {
    const float a = sum[4 * j + 2 * half], b = sum[4 * j + 2 * half + 1];
    if constexpr (!Config::kGated) {
      return packed(a * share[half], b * share[half]);
    } else {
      const float c = sum[32 + 4 * j + 2 * half], d = sum[32 + 4 * j + 2 * half + 1];
      return packed(activated(p.gate, a) * c, activated(p.gate, b) * d);
    }
  }

  __device__ void write(const PairsParams& p, const float (&sum)[64], int column) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A quad has one row; where none of a warp's rows holds a pair there is nothing to do.
      if (!__any_sync(0xFFFFFFFFu, pair[half] >= 0)) continue;
      __nv_bfloat16* to = p.out + pair[half] * p.out_stride;
#pragma unroll
      for (int j = 0; j < Config::kOutColumns / 8; j += 4) {
        const uint4 words = transposed(word(p, sum, j, half), word(p, sum, j + 1, half), word(p, sum, j + 2, half),
                                       word(p, sum, j + 3, half));
        const int at = column + 8 * (j + lane);
        if (pair[half] >= 0 && at < p.out_size) *reinterpret_cast<uint4*>(to + at) = words;
      }
    }
  }
};

// The multiplying warpgroup.
template <class Config>
__device__ void multiply_pairs(const PairsParams& p, const SortedPairs& sorted, PairsRing<Config> at) {
  const bool arrives = threadIdx.x % 32 == 0;
  if (!guessed_right(p, sorted)) {
    for (int step = 0; step < early_steps<Config>(p); ++step) {
      barrier_wait_branching(at.full(at.stage), at.parity);
      if (arrives) barrier_arrive(at.empty(at.stage));
      at.advance();
    }
  }
  for (int index = blockIdx.x; index < p.num_tiles * *sorted.count; index += gridDim.x) {
    const int expert = sorted.experts[index / p.num_tiles], end = sorted.first[expert + 1];
    for (int first = sorted.first[expert]; first < end; first += Config::kRows) {
      const PairsOutput<Config> output(p, sorted, first, end);
      float sum[64];
      int before = 0;
      for (int step = 0; step < p.num_steps; ++step) {
        barrier_wait_branching(at.full(at.stage), at.parity);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma<128>(sum, swizzled_tile(at.rows(at.stage) + 32 * k), swizzled_tile(at.weight(at.stage) + 32 * k),
                     step > 0 || k > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && arrives) barrier_arrive(at.empty(before));
        before = at.stage;
        at.advance();
      }
      wgmma_wait<0>();
      if (arrives) barrier_arrive(at.empty(before));
      output.write(p, sum, column_of<Config>(p, index));
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    pairs_kernel(const __grid_constant__ PairsParams params, const __grid_constant__ CUtensorMap weight_map) {
  extern __shared__ std::uint8_t raw[];
  std::uint8_t* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const PairsRing<Config> ring{shared_address(shared)};
  int* numbers = reinterpret_cast<int*>(shared + Config::kFirstOffset);
  auto* lists = reinterpret_cast<std::uint16_t*>(numbers + params.num_experts + 2);
  const SortedPairs sorted{numbers, numbers + 1, lists, lists + params.num_experts};
  if (threadIdx.x == 128) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(ring.full(stage), 5);  // four warps that copy rows, and the weights' copy
      barrier_init(ring.empty(stage), 4);
    }
    barrier_init_fence();
    for (int step = 0; step < early_steps<Config>(params); ++step) {
      copy_pairs_weight<Config>(params, &weight_map, ring, step, blockIdx.x / params.num_tiles,
                                column_of<Config>(params, blockIdx.x), step);
    }
  }
  for (int i = threadIdx.x; i < params.num_experts + 1; i += Config::kThreads) sorted.first[i] = 0;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  __syncthreads();
  sort_pairs<Config>(params, sorted);
  if (threadIdx.x >= 128) {
    PairsCopy<Config>::run(params, &weight_map, sorted, ring);
  } else {
    multiply_pairs<Config>(params, sorted, ring);
  }
}

}  // namespace llm_kernels::cuda::experts
