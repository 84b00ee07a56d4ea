// The kernels that sort pairs by expert: one counts the pairs of each chunk, one places them; and their launches.

#include "llm_kernels/cuda/expert_sort.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/hopper.cuh"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kPairsOfThread = kSortChunk / kSortThreads;

__device__ __forceinline__ int expert_of(const ExpertSortArgs& p, int pair) {
  if (pair >= p.num_pairs) return p.num_experts;
  const std::int64_t id = p.ids[pair];
  return id >= 0 && id < p.num_experts ? static_cast<int>(id) : p.num_experts;
}

// counts[chunk, expert]: its pairs in the chunk.
__global__ void __launch_bounds__(kSortThreads) count_kernel(const __grid_constant__ ExpertSortArgs p) {
  __shared__ int found[kMostSortExperts + 1];
  for (int i = threadIdx.x; i <= p.num_experts; i += kSortThreads) found[i] = 0;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairsOfThread; ++i) {
    atomicAdd(found + expert_of(p, blockIdx.x * kSortChunk + i * kSortThreads + threadIdx.x), 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.num_experts; i += kSortThreads) p.counts[blockIdx.x * p.num_experts + i] = found[i];
}

// Exclusive sums of values[0] to values[count - 1]; one warp. Returns the sum of all.
__device__ int sums_before(int* values, int count) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int start = 0; start < count; start += 32) {
    const int own = start + lane < count ? values[start + lane] : 0;
    int sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (start + lane < count) values[start + lane] = before + sum - own;
    before += __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  return before;
}

// Names the expert of its blocks and fills the last one up.
__device__ void fill_blocks(const ExpertSortArgs& p, int expert, int first_block, int count) {
  const int blocks = (count + p.block_rows - 1) / p.block_rows;
  for (int i = threadIdx.x; i < blocks; i += kSortThreads) p.block_experts[first_block + i] = expert;
  for (int i = count + threadIdx.x; i < blocks * p.block_rows; i += kSortThreads) {
    p.pairs[first_block * p.block_rows + i] = p.num_pairs;
  }
}

__global__ void __launch_bounds__(kSortThreads) place_kernel(const __grid_constant__ ExpertSortArgs p) {
  __shared__ int totals[kMostSortExperts], first_blocks[kMostSortExperts], first_rows[kMostSortExperts];
  __shared__ int of_warps[kSortWarps][kMostSortExperts + 1];  // pairs of each warp, then those of the warps before it
  __shared__ int num_used;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < kSortWarps * (kMostSortExperts + 1); i += kSortThreads) (&of_warps[0][0])[i] = 0;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  for (int expert = threadIdx.x; expert < p.num_experts; expert += kSortThreads) {
    int total = 0, before = 0;
#pragma unroll 8
    for (int chunk = 0; chunk < gridDim.x; ++chunk) {
      const int count = __ldcg(p.counts + chunk * p.num_experts + expert);
      total += count;
      before += chunk < blockIdx.x ? count : 0;
    }
    totals[expert] = total;
    first_blocks[expert] = (total + p.block_rows - 1) / p.block_rows;
    first_rows[expert] = before;
  }
  __syncthreads();
  if (warp == 0) {
    const int used = sums_before(first_blocks, p.num_experts);
    if (lane == 0) num_used = used;
  }
  int experts[kPairsOfThread], places[kPairsOfThread];
  const int first_pair = blockIdx.x * kSortChunk + warp * (kSortChunk / kSortWarps) + lane;
#pragma unroll
  for (int i = 0; i < kPairsOfThread; ++i) {
    experts[i] = expert_of(p, first_pair + 32 * i);
    const unsigned same = __match_any_sync(0xFFFFFFFFu, experts[i]);
    const int before = __popc(same & ((1u << lane) - 1));
    places[i] = of_warps[warp][experts[i]] + before;
    __syncwarp();
    if (before == 0) of_warps[warp][experts[i]] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < p.num_experts; expert += kSortThreads) {
    int before = first_blocks[expert] * p.block_rows + first_rows[expert];
#pragma unroll
    for (int i = 0; i < kSortWarps; ++i) {
      const int count = of_warps[i][expert];
      of_warps[i][expert] = before;
      before += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPairsOfThread; ++i) {
    if (experts[i] < p.num_experts) p.pairs[of_warps[warp][experts[i]] + places[i]] = first_pair + 32 * i;
  }
  for (int expert = blockIdx.x; expert < p.num_experts; expert += gridDim.x) {
    fill_blocks(p, expert, first_blocks[expert], totals[expert]);
  }
  if (blockIdx.x == gridDim.x - 1) {
    for (int i = num_used + threadIdx.x; i < p.num_blocks; i += kSortThreads) p.block_experts[i] = -1;
  }
}

void enqueue(void (*kernel)(ExpertSortArgs), const ExpertSortArgs& args, int blocks) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kSortThreads);
  config.stream = args.stream;
  config.attrs = &early;
  config.numAttrs = args.dependent ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args);
  if (error != cudaSuccess) throw std::runtime_error(std::string("sort_by_expert: ") + cudaGetErrorString(error));
}

}  // namespace

void sort_by_expert(const ExpertSortArgs& args) {
  if (args.num_experts < 1 || args.num_experts > kMostSortExperts) {
    throw ArgumentError("num_experts", "expected 1 to 512");
  }
  if (args.block_rows < 1) throw ArgumentError("block_rows", "expected 1 or more");
  const int chunks = std::max(1, (args.num_pairs + kSortChunk - 1) / kSortChunk);
  enqueue(count_kernel, args, chunks);
  enqueue(place_kernel, args, chunks);
}

}  // namespace llm_kernels::cuda
