// The online softmax of a warp in decode attention in even shares, and how parts of a head are put together.
//
// Keys are the rows of a matrix fragment and query heads its eight columns; values are taken the same way, so that a
// lane holds sums of two heads. Keys and values in e4m3 become halves, exactly, and then so do queries and weights.
#pragma once

#include "cuda/decode/decode_kernel.cuh"

namespace llm_kernels::cuda::decode {

// The online softmax of a warp over the keys of one row and KV head. A lane has the heads `head(o, i)`: of the scores keys
// lane / 4 and lane / 4 + 8, of the sums the columns `column(j, i)`.
template <class Kernel, class T, int D>
struct EvenSoftmax {
  using Unit = typename Kernel::Unit;
  static constexpr int kOctets = Kernel::kOctets;
  std::uint32_t query[kOctets][D / 16][2], next_query[kOctets][D / 16][2];
  float sum[kOctets][D / 16][4];
  float maximum[kOctets][2], weight[kOctets][2];

  static __device__ __forceinline__ int head(int octet, int i) { return 8 * octet + threadIdx.x % 4 * 2 + i % 2; }
  static __device__ __forceinline__ int column(int j, int i) {
    const int r = threadIdx.x % 32 / 4;
    return 16 * j + (Kernel::kFloat8 ? 2 * r + i / 2 : r + i / 2 * 8);
  }

  __device__ void clear() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum[o][i] = -INFINITY;
        weight[o][i] = 0.0f;
      }
    }
  }

  // Asks for the queries of the row and KV head that comes next.
  __device__ void ask(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
    const int lane = threadIdx.x % 32;
    const T* from = static_cast<const T*>(args.query) + row * args.query_stride_row +
                    std::int64_t{kv_head} * group * args.query_stride_head;
    // Of a step's 16 columns a lane has two pairs: as fragments have them, or four neighbours, as bytes of e4m3 come.
    const int first = lane % 4 * (Kernel::kFloat8 ? 4 : 2), second = first + (Kernel::kFloat8 ? 2 : 8);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int member = 8 * o + lane / 4;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const T* at = from + member * args.query_stride_head + k * 16 + (i == 0 ? first : second);
          next_query[o][k][i] = member < group ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
        }
      }
    }
  }

  // Begins with the queries asked for.
  __device__ void start() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) query[o][k][i] = converted<T, Unit>(next_query[o][k][i]);
      }
    }
    clear();
  }

  // Takes in a tile, of whose keys those in [begin, end) are seen; both count from the tile's first key.
  __device__ void attend(std::uint32_t stage, int begin, int end, float scale, float soft_cap) {
    float score[kOctets][4] = {};
    multiply_keys(stage, score);
    const bool is_whole = begin <= 0 && end >= kDecodeKeys;
    const int key = threadIdx.x % 32 / 4;
    std::uint32_t p[kOctets][2];
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      float best[2], fade[2], shift[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = score[o][i] * scale;
        if (soft_cap > 0.0f) x = soft_cap * tanhf(x / soft_cap);
        const int at = key + i / 2 * 8;
        score[o][i] = is_whole || (at >= begin && at < end) ? x * kLog2E : -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        best[i] = fmaxf(score[o][i], score[o][i + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) best[i] = fmaxf(best[i], __shfl_xor_sync(~0u, best[i], step));
        best[i] = fmaxf(best[i], maximum[o][i]);
        shift[i] = best[i] == -INFINITY ? 0.0f : best[i];
        fade[i] = exp2_fast(maximum[o][i] - shift[i]);
        maximum[o][i] = best[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) score[o][i] = exp2_fast(score[o][i] - shift[i % 2]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight[o][i] = weight[o][i] * fade[i] + score[o][i] + score[o][i + 2];
        p[o][i] = transposed(pack<Unit>(score[o][2 * i], score[o][2 * i + 1]));
      }
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] *= fade[i % 2];
      }
    }
    multiply_values(stage + Kernel::kTileBytes, p);
  }

  // The weights of all keys: until here each lane has those of its own.
  __device__ void gather_weights() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) weight[o][i] += __shfl_xor_sync(~0u, weight[o][i], step);
      }
    }
  }

  // Puts a part away, its weights gathered; only the lanes that have heads write.
  __device__ void leave(float* part, int group) const {
    const int lane = threadIdx.x % 32, slot = lane % 4 * 8 + lane / 4;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (head(o, 0) >= group) continue;
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        const float(&x)[4] = sum[o][j];
        reinterpret_cast<float4*>(part)[(o * (D / 16) + j) * 32 + slot] = make_float4(x[0], x[1], x[2], x[3]);
      }
      if (lane < 4) {
        reinterpret_cast<float4*>(part + kOctets * D * 8)[o * 4 + lane] =
            make_float4(maximum[o][0], maximum[o][1], weight[o][0], weight[o][1]);
      }
    }
  }

  // Adds a part to the sums.
  __device__ void add(const float* part, int group) {
    const int lane = threadIdx.x % 32, slot = lane % 4 * 8 + lane / 4;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (head(o, 0) >= group) continue;
      // Past the first level of cache, which does not know what other processors wrote.
      const float4 state = __ldcg(reinterpret_cast<const float4*>(part + kOctets * D * 8) + o * 4 + lane % 4);
      const float maxima[2] = {state.x, state.y}, weights[2] = {state.z, state.w};
      float fade[2], share[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float best = fmaxf(maximum[o][i], maxima[i]), shift = best == -INFINITY ? 0.0f : best;
        fade[i] = exp2_fast(maximum[o][i] - shift);
        share[i] = exp2_fast(maxima[i] - shift);
        maximum[o][i] = best;
        weight[o][i] = weight[o][i] * fade[i] + weights[i] * share[i];
      }
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(part) + (o * (D / 16) + j) * 32 + slot);
        const float others[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] = sum[o][j][i] * fade[i % 2] + others[i] * share[i % 2];
      }
    }
  }

  // Writes the results of a row and KV head, its weights gathered: sinks and the parts of a shared prefix come in here.
  __device__ void finish(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
    const float value_scale = args.value.scale == nullptr ? 1.0f : args.value.scale[kv_head];
    const bool has_prefix = args.prefix.lens != nullptr && args.prefix.lens[row] > 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (head(o, i) >= group) continue;
        const int at = kv_head * group + head(o, i);
        fade(o, i, value_scale);
        if (has_prefix) add_prefix(args.prefix, std::int64_t{row} * args.num_heads + at, o, i);
        const float factor = one_over_weight(args, at, maximum[o][i], weight[o][i]);
        T* to = static_cast<T*>(args.out) + row * args.out_stride_row + at * args.out_stride_head;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          to[column(j, i)] = rounded<T>(sum[o][j][i] * factor);
          to[column(j, i + 2)] = rounded<T>(sum[o][j][i + 2] * factor);
        }
      }
    }
  }

 private:
  __device__ void fade(int o, int i, float factor) {
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      sum[o][j][i] *= factor;
      sum[o][j][i + 2] *= factor;
    }
  }

  // Adds the parts of a shared prefix to one head's sums.
  __device__ void add_prefix(const PrefixParts& prefix, std::int64_t row_and_head, int o, int i) {
    for (int part = 0; part < prefix.num_parts; ++part) {
      const std::int64_t at = row_and_head * prefix.num_parts + part;
      const float state = prefix.states[at], best = fmaxf(maximum[o][i], state), shift = best == -INFINITY ? 0.0f : best;
      const float share = exp2_fast(state - shift), keep = exp2_fast(maximum[o][i] - shift);
      fade(o, i, keep);
      weight[o][i] = weight[o][i] * keep + share;
      maximum[o][i] = best;
      const float* from = prefix.sums + at * D;
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        sum[o][j][i] += from[column(j, i)] * share;
        sum[o][j][i + 2] += from[column(j, i + 2)] * share;
      }
    }
  }

  // What the sums of a head are multiplied by, a sink counted in; 0 where nothing has any weight.
  static __device__ float one_over_weight(const DecodeAttentionArgs& args, int head, float best, float total) {
    float keep = 1.0f;
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head] * kLog2E, most = fmaxf(best, sink), shift = most == -INFINITY ? 0.0f : most;
      keep = exp2_fast(best - shift);
      total = total * keep + exp2_fast(sink - shift);
    }
    return total == 0.0f ? 0.0f : keep / total;
  }

  // Eight rows of eight 16-bit numbers, a pair a lane, with rows and columns exchanged.
  static __device__ __forceinline__ std::uint32_t transposed(std::uint32_t pair) {
    std::uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
  }

  __device__ __forceinline__ void multiply_keys(std::uint32_t stage, float (&score)[kOctets][4]) const {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < Kernel::kChunks / 2; ++k) {
      std::uint32_t a[4];
      load_matrices(a, stage + Kernel::offset(matrix % 2 * 8 + r, 2 * k + matrix / 2));
      if constexpr (Kernel::kFloat8) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t keys[4] = {halves_of_low(a[2 * i]), halves_of_low(a[2 * i + 1]),
                                         halves_of_high(a[2 * i]), halves_of_high(a[2 * i + 1])};
#pragma unroll
          for (int o = 0; o < kOctets; ++o) {
            multiply<Unit>(score[o], keys, query[o][2 * k + i][0], query[o][2 * k + i][1]);
          }
        }
      } else {
#pragma unroll
        for (int o = 0; o < kOctets; ++o) multiply<Unit>(score[o], a, query[o][k][0], query[o][k][1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_values(std::uint32_t values, const std::uint32_t (&p)[kOctets][2]) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
#pragma unroll
    for (int j = 0; j < Kernel::kChunks / 2; ++j) {
      std::uint32_t a[4];
      if constexpr (Kernel::kFloat8) {
        load_matrices_transposed(a, values + Kernel::offset(matrix % 2 * 8 + r, 2 * j + matrix / 2));
        // Two keys of two columns each: sorted by column, the even ones and the odd ones are rows 0 to 7 and 8 to 15.
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = __byte_perm(a[i], 0, 0x3120);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t columns[4] = {halves_of_low(a[2 * i]), halves_of_high(a[2 * i]),
                                            halves_of_low(a[2 * i + 1]), halves_of_high(a[2 * i + 1])};
#pragma unroll
          for (int o = 0; o < kOctets; ++o) multiply<Unit>(sum[o][2 * j + i], columns, p[o][0], p[o][1]);
        }
      } else {
        load_matrices_transposed(a, values + Kernel::offset(matrix / 2 * 8 + r, 2 * j + matrix % 2));
#pragma unroll
        for (int o = 0; o < kOctets; ++o) multiply<Unit>(sum[o][j], a, p[o][0], p[o][1]);
      }
    }
  }
};

}  // namespace llm_kernels::cuda::decode
