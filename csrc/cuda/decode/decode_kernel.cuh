// The decode kernel: one row and KV head a cluster, whose warps take runs of 16 keys in turn. Knows no host.
//
// Keys and values in e4m3 become halves, exactly, and then so do queries and weights.
//
// A warp has a ring of stages of its own in shared memory and needs no other warp until its keys are done. All query
// heads of the KV head are the rows of one fragment. Scores are kept in powers of two. At the end the warps of a block,
// then the blocks of the cluster put their sums together through shared memory: nothing goes through device memory.
#pragma once

#include <cooperative_groups.h>

#include <type_traits>

#include "cuda/decode/fragments.cuh"
#include "cuda/hopper.cuh"
#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda::decode {

constexpr int kRows = kMaxDecodeGroup;
constexpr float kLog2E = 1.4426950408889634f;

// T: queries and results. C: the cache. Warps: of a block, each with so many stages of 16-bit numbers.
template <class T, class C, int D, int Warps, int Stages>
struct DecodeKernel {
  static constexpr bool kFloat8 = sizeof(C) == 1;
  using Unit = std::conditional_t<kFloat8, __half, T>;  // what the matrix units multiply
  static constexpr int kStages = kFloat8 ? 2 * Stages : Stages;
  static constexpr int kWarps = Warps;
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kKeys = kDecodeKeys;
  static constexpr int kRowBytes = D * sizeof(C);
  static constexpr int kChunks = kRowBytes / 16;  // of 16 bytes in a row
  static constexpr int kTileBytes = kKeys * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSums = kRows * D;  // floats of a sum
  // The sums of the warps and of the block lie over the ring, whose keys are done with by then.
  static constexpr int kSumBytes = (kWarps + 1) * kSums * sizeof(float);
  static constexpr int kLargest = kRingBytes > kSumBytes ? kRingBytes : kSumBytes;
  static constexpr int kStateFloats = 2 * (kWarps + 1) * kRows;  // maximum and weight of the rows of each
  static constexpr int kSharedBytes = kLargest + kStateFloats * sizeof(float);
  static_assert(kChunks == 4 || kChunks % 8 == 0, "the swizzle takes rows of 64 bytes or multiples of 128");

  // Where chunk `c` of row `r` lies in a tile: eight rows of a column are in eight different bank groups.
  static __device__ __forceinline__ std::uint32_t offset(int r, int c) {
    if constexpr (kChunks == 4) {
      return r / 2 * 128 + (((r % 2 * 4 + c) ^ (r / 2 & 7)) << 4);
    } else {
      return r * kRowBytes + ((c ^ (r & 7)) << 4);
    }
  }
};

// The keys of a row that this kernel is to read: [begin, end), and where the first run of 16 starts.
struct KeyRange {
  int begin, end, origin;
};

__device__ __forceinline__ KeyRange key_range(const DecodeAttentionArgs& args, int row) {
  const int context = args.context_lens[row];
  int begin = 0;
  if (args.sliding_window > 0) begin = max(context - args.sliding_window, 0);
  if (args.chunk > 0) begin = max(begin, max(context - 1, 0) / args.chunk * args.chunk);
  if (args.prefix.lens != nullptr) begin = args.prefix.lens[row];
  return {begin, context, begin / kDecodeKeys * kDecodeKeys};
}

// One warp's runs: which they are, and the blocks of the cache that hold them.
template <class Kernel, class C>
class Runs {
 public:
  __device__ Runs(const DecodeAttentionArgs& args, const KeyRange& range, int row, int kv_head, int first, int step,
                  std::uint32_t ring)
      : args_(args), range_(range), lane_(threadIdx.x % 32), first_(first), step_(step), ring_(ring) {
    const int num_runs = (range.end - range.origin + kDecodeKeys - 1) / kDecodeKeys;
    count_ = num_runs > first ? (num_runs - first + step - 1) / step : 0;
    table_ = args.block_tables + row * args.block_tables_stride;
    key_ = static_cast<const C*>(args.key.data) + kv_head * args.key.stride_head;
    value_ = static_cast<const C*>(args.value.data) + kv_head * args.value.stride_head;
  }

  __device__ int count() const { return count_; }
  __device__ int start(int index) const { return range_.origin + (first_ + index * step_) * kDecodeKeys; }

  // Begins to copy a run's keys and values; an empty group past the last run keeps the groups counted.
  __device__ void issue(int index) {
    if (index < count_) {
      if (index % 32 == 0) look_up(index);
      const std::int64_t block = __shfl_sync(~0u, entry_, index % 32);
      const int begin = start(index), offset = begin % args_.block_size;
      const C* key = key_ + block * args_.key.stride_block + offset * args_.key.stride_token;
      const C* value = value_ + block * args_.value.stride_block + offset * args_.value.stride_token;
      const std::uint32_t stage = ring_ + index % Kernel::kStages * Kernel::kStageBytes;
      copy(stage, key, args_.key.stride_token, range_.end - begin);
      copy(stage + Kernel::kTileBytes, value, args_.value.stride_token, range_.end - begin);
    }
    commit_copies();
  }

 private:
  // The next 32 runs' blocks, one a lane.
  __device__ void look_up(int index) {
    const int mine = index + lane_;
    entry_ = mine < count_ ? table_[start(mine) / args_.block_size] : 0;
  }

  __device__ void copy(std::uint32_t to, const C* from, std::int64_t stride, int num_keys) const {
#pragma unroll
    for (int i = lane_; i < Kernel::kKeys * Kernel::kChunks; i += 32) {
      const int r = i / Kernel::kChunks, c = i % Kernel::kChunks;
      const bool valid = r < num_keys;
      copy_16(to + Kernel::offset(r, c), from + (valid ? r * stride : 0) + c * (16 / sizeof(C)), valid);
    }
  }

  const DecodeAttentionArgs& args_;
  const KeyRange range_;
  const int lane_, first_, step_;
  const std::uint32_t ring_;
  int count_ = 0, entry_ = 0;
  const std::int32_t* table_;
  const C *key_, *value_;
};

// The online softmax of a warp: rows lane / 4 and lane / 4 + 8, of the columns those of the fragments.
template <class Kernel, class T, int D, bool Wide>
struct Softmax {
  using Unit = typename Kernel::Unit;
  static constexpr int kHalves = Wide ? 2 : 1;  // without Wide the rows from 8 on are not there
  std::uint32_t query[D / 16][4];
  float sum[D / 8][4];
  float maximum[kHalves], weight[kHalves];

  __device__ void start(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
    const int lane = threadIdx.x % 32;
    const T* from = static_cast<const T*>(args.query) + row * args.query_stride_row +
                    std::int64_t{kv_head} * group * args.query_stride_head;
    // Of a step's 16 columns a lane has two pairs: as fragments have them, or four neighbours, as bytes of e4m3 come.
    const int first = lane % 4 * (Kernel::kFloat8 ? 4 : 2), second = first + (Kernel::kFloat8 ? 2 : 8);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int member = lane / 4 + i % 2 * 8;
        query[k][i] = 0;
        if (member < group) {
          const T* at = from + member * args.query_stride_head + k * 16 + (i < 2 ? first : second);
          query[k][i] = converted<T, Unit>(*reinterpret_cast<const std::uint32_t*>(at));
        }
      }
    }
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] = 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      maximum[h] = -INFINITY;
      weight[h] = 0.0f;
    }
  }

  // Takes in a run of 16 keys, of which those in [begin, end) are seen; both count from the run's first key.
  __device__ void attend(std::uint32_t stage, int begin, int end, float scale, float soft_cap) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
    float score[2][4] = {};
#pragma unroll
    for (int k = 0; k < Kernel::kChunks / 2; ++k) {
      std::uint32_t b[4];
      load_matrices(b, stage + Kernel::offset(matrix / 2 * 8 + r, 2 * k + matrix % 2));
      if constexpr (Kernel::kFloat8) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          multiply<Unit>(score[i / 2], query[2 * k + i % 2], halves_of_low(b[i]), halves_of_high(b[i]));
        }
      } else {
        multiply<Unit>(score[0], query[k], b[0], b[1]);
        multiply<Unit>(score[1], query[k], b[2], b[3]);
      }
    }
    shape(score, begin, end, scale, soft_cap);
    std::uint32_t p[4] = {0, 0, 0, 0};
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float best = fmaxf(fmaxf(score[0][2 * h], score[0][2 * h + 1]), fmaxf(score[1][2 * h], score[1][2 * h + 1]));
      best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
      best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
      best = fmaxf(best, maximum[h]);
      const float shift = best == -INFINITY ? 0.0f : best;
      const float fade = exp2_fast(maximum[h] - shift);
      float p_of[2][2];
      weight[h] *= fade;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p_of[j][i] = exp2_fast(score[j][2 * h + i] - shift);
          weight[h] += p_of[j][i];
        }
        p[2 * j + h] = pack<Unit>(p_of[j][0], p_of[j][1]);
      }
      maximum[h] = best;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        sum[j][2 * h] *= fade;
        sum[j][2 * h + 1] *= fade;
      }
    }
    const std::uint32_t values = stage + Kernel::kTileBytes;
#pragma unroll
    for (int j = 0; j < Kernel::kChunks; j += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, values + Kernel::offset(matrix % 2 * 8 + r, j + matrix / 2));
      if constexpr (Kernel::kFloat8) {
        // Two keys of two columns each: sorted by column, the even ones and the odd ones are two fragments.
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = __byte_perm(b[i], 0, 0x3120);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply<Unit>(sum[2 * (j + i)], p, halves_of_low(b[2 * i]), halves_of_low(b[2 * i + 1]));
          multiply<Unit>(sum[2 * (j + i) + 1], p, halves_of_high(b[2 * i]), halves_of_high(b[2 * i + 1]));
        }
      } else {
        multiply<Unit>(sum[j], p, b[0], b[1]);
        multiply<Unit>(sum[j + 1], p, b[2], b[3]);
      }
    }
  }

  // Leaves sums [16, D], maxima and weights of the warp in shared memory.
  __device__ void leave(float* sums, float* maxima, float* weights) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float total = weight[h];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int r = lane / 4 + 8 * h;
      if (lane % 4 == 0) {
        maxima[r] = maximum[h];
        weights[r] = total;
      }
#pragma unroll
      for (int j = 0; j < D / 8; j += 2) {
        const float *even = sum[j] + 2 * h, *odd = sum[j + 1] + 2 * h;
        float* to = sums + r * D + 8 * j;
        if constexpr (Kernel::kFloat8) {
          reinterpret_cast<float4*>(to)[lane % 4] = make_float4(even[0], odd[0], even[1], odd[1]);
        } else {
          reinterpret_cast<float2*>(to)[lane % 4] = make_float2(even[0], even[1]);
          reinterpret_cast<float2*>(to + 8)[lane % 4] = make_float2(odd[0], odd[1]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void shape(float (&score)[2][4], int begin, int end, float scale, float soft_cap) {
    const bool is_whole = begin <= 0 && end >= kDecodeKeys;
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = score[j][i] * scale;
        if (soft_cap > 0.0f) x = soft_cap * tanhf(x / soft_cap);
        x *= kLog2E;
        const int key = 8 * j + column + i % 2;
        score[j][i] = is_whole || (key >= begin && key < end) ? x : -INFINITY;
      }
    }
  }
};

// Grid (splits, KV heads, rows), clusters of all splits.
template <class T, class C, int D, bool Wide, int Warps, int Stages>
__global__ void __launch_bounds__(32 * Warps) decode_kernel(const __grid_constant__ DecodeAttentionArgs args) {
  using Kernel = DecodeKernel<T, C, D, Warps, Stages>;
  constexpr int kStages = Kernel::kStages, kWarps = Warps, kThreads = Kernel::kThreads;
  namespace cg = cooperative_groups;
  extern __shared__ __align__(128) unsigned char shared[];
  float* warp_sums = reinterpret_cast<float*>(shared);
  float* warp_maxima = reinterpret_cast<float*>(shared + Kernel::kLargest);
  float* warp_weights = warp_maxima + kWarps * kRows;
  float* maxima = warp_weights + kWarps * kRows;
  float* weights = maxima + kRows;
  float* sums = warp_sums + kWarps * Kernel::kSums;

  const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z;
  const int warp = threadIdx.x / 32, group = args.num_heads / args.num_kv_heads;
  const int splits = gridDim.x;

  let_next_kernel_start();
  wait_for_earlier_kernels();
  const KeyRange range = key_range(args, row);
  const std::uint32_t ring = shared_address(shared) + warp * kStages * Kernel::kStageBytes;
  // Neighbouring runs go to different blocks, so that short rows are shared out as well.
  Runs<Kernel, C> runs(args, range, row, kv_head, warp * splits + split, kWarps * splits, ring);
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) runs.issue(i);
  Softmax<Kernel, T, D, Wide> softmax;
  softmax.start(args, row, kv_head, group);
  const float scale = args.key.scale == nullptr ? args.scale : args.scale * args.key.scale[kv_head];
  for (int i = 0; i < runs.count(); ++i) {
    wait_copies<kStages - 2>();
    __syncwarp();  // all lanes are done with the stage of the run before, too
    runs.issue(i + kStages - 1);
    const int begin = runs.start(i);
    softmax.attend(ring + i % kStages * Kernel::kStageBytes, range.begin - begin, range.end - begin, scale,
                   args.soft_cap);
  }
  wait_copies<0>();
  __syncthreads();  // the sums lie where other warps' stages were
  softmax.leave(warp_sums + warp * Kernel::kSums, warp_maxima + warp * kRows, warp_weights + warp * kRows);
  __syncthreads();

  for (int i = threadIdx.x; i < group * D; i += kThreads) {
    const int r = i / D;
    float best = warp_maxima[r];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) best = fmaxf(best, warp_maxima[w * kRows + r]);
    const float shift = best == -INFINITY ? 0.0f : best;
    float total = 0.0f, weight = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = exp2_fast(warp_maxima[w * kRows + r] - shift);
      total += warp_sums[w * Kernel::kSums + i] * share;
      weight += warp_weights[w * kRows + r] * share;
    }
    sums[i] = total;
    if (i % D == 0) {
      maxima[r] = best;
      weights[r] = weight;
    }
  }
  cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();

  const int num_parts = range.begin > 0 && args.prefix.lens != nullptr ? args.prefix.num_parts : 0;
  const float value_scale = args.value.scale == nullptr ? 1.0f : args.value.scale[kv_head];
  for (int i = split * kThreads + threadIdx.x; i < group * D; i += splits * kThreads) {
    const int r = i / D, head = kv_head * group + r;
    const std::int64_t first_part = (static_cast<std::int64_t>(row) * args.num_heads + head) * args.prefix.num_parts;
    float best = args.sinks == nullptr ? -INFINITY : args.sinks[head] * kLog2E;
    const float sink = best;
    for (int s = 0; s < splits; ++s) best = fmaxf(best, *cluster.map_shared_rank(maxima + r, s));
    for (int p = 0; p < num_parts; ++p) best = fmaxf(best, args.prefix.states[first_part + p]);
    const float shift = best == -INFINITY ? 0.0f : best;
    float total = 0.0f, weight = exp2_fast(sink - shift);
    for (int s = 0; s < splits; ++s) {
      const float share = exp2_fast(*cluster.map_shared_rank(maxima + r, s) - shift);
      total += *cluster.map_shared_rank(sums + i, s) * share;
      weight += *cluster.map_shared_rank(weights + r, s) * share;
    }
    total *= value_scale;
    for (int p = 0; p < num_parts; ++p) {
      const float share = exp2_fast(args.prefix.states[first_part + p] - shift);
      total += args.prefix.sums[(first_part + p) * D + i % D] * share;
      weight += share;
    }
    T* to = static_cast<T*>(args.out) + row * args.out_stride_row + head * args.out_stride_head + i % D;
    *to = rounded<T>(weight == 0.0f ? 0.0f : total / weight);
  }
  cluster.sync();  // others read this block's sums
}

}  // namespace llm_kernels::cuda::decode
