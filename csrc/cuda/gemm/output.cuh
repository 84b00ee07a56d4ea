// What becomes of a tile's sums: scale, bias or gate, bfloat16, and through shared memory to the output, or, where the
// blocks of a cluster hold parts of them, added up through each other's shared memory. Knows nothing of products.
#pragma once

#include "cuda/gemm/config.cuh"

namespace llm_kernels::cuda::gemm {

template <int Pending>
__device__ __forceinline__ void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void store_box(const CUtensorMap* map, int column, int row, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Four 8 x 8 matrices of bfloat16 fragments, each transposed; lanes 8 m to 8 m + 7 give the rows of matrix m.
__device__ __forceinline__ void store_transposed(std::uint32_t row, const std::uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The scale and bias of one row of W; a row outside gets any.
struct RowTerms {
  float scale = 1.0f, bias = 0.0f;
  __device__ __forceinline__ RowTerms(const Epilogue& epilogue, int row, int num_rows) {
    if (row >= num_rows) return;
    if (epilogue.scale != nullptr) scale = epilogue.scale[row * epilogue.scale_stride];
    if (epilogue.bias != nullptr) bias = __bfloat162float(epilogue.bias[row]);
  }
};

// The gate most models have, by an approximate division; the others one by one.
__device__ __forceinline__ float activated(const Epilogue& epilogue, bool is_silu, float gate) {
  return is_silu ? __fdividef(gate, 1.0f + __expf(-gate)) : epilogue.activated(gate);
}

// Packs the outputs of 16 tokens, with a gate 32, from group `first_eight` of eight tokens on, and stores them.
template <class Config>
__device__ __forceinline__ void store_unit(const Epilogue& epilogue, bool is_silu, std::uint32_t buffer,
                                           const float (&sum)[Config::kTokens / 2], int first_token, int first_eight,
                                           int at, const RowTerms& first, const RowTerms& second) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, matrix = lane / 8;
  std::uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int eight = first_eight + (Config::kGated ? i : i / 2);
    float low[2], high[2];  // of the first and the second row; `low`: the even token
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowTerms& terms = half == 0 ? first : second;
      low[half] = sum[4 * eight + 2 * half];
      high[half] = sum[4 * eight + 2 * half + 1];
      if constexpr (Config::kScaled) {
        const int even = min(first_token + 8 * eight + lane % 4 * 2, epilogue.num_tokens - 1);
        const int odd = min(even + 1, epilogue.num_tokens - 1);
        low[half] *= terms.scale * epilogue.token_scale[even * epilogue.token_scale_stride];
        high[half] *= terms.scale * epilogue.token_scale[odd * epilogue.token_scale_stride];
      }
      low[half] += terms.bias;
      high[half] += terms.bias;
    }
    if constexpr (Config::kGated) {
      x[i] = packed(activated(epilogue, is_silu, low[0]) * low[1], activated(epilogue, is_silu, high[0]) * high[1]);
    } else {
      x[i] = i % 2 == 0 ? packed(low[0], high[0]) : packed(low[1], high[1]);
    }
  }
  if constexpr (Config::kGated) {  // rows of 64 bytes, swizzled in fours of two
    const int inside = at + matrix * 8 + lane % 8;
    store_transposed(buffer + inside * 64 + ((warp ^ (inside / 2 % 4)) << 4), x);
  } else {
    const int inside = at + matrix / 2 * 8 + lane % 8;
    store_transposed(buffer + inside * 128 + (((warp * 2 + matrix % 2) ^ (lane % 8)) << 4), x);
  }
}

// Writes a tile of whole sums. `num_stores` counts the stores of this warpgroup, which take its two buffers in turns.
template <class Config>
__device__ __forceinline__ void store_tile(const Params& params, const CUtensorMap* out_map, std::uint32_t buffers,
                                           const float (&sum)[Config::kBlocks][Config::kTokens / 2], Tile tile,
                                           int group, int& num_stores) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const Epilogue& epilogue = params.epilogue;
  const int first_token = tile.token * Config::kTokens;
  constexpr int unit = Config::kGated ? 32 : 16;  // tokens of one store_transposed
#pragma unroll
  for (int block = 0; block < Config::kBlocks; ++block) {
    const int column = tile.out * Config::kOutRows + (group * Config::kBlocks + block) * Config::kOutWidth;
    if (column >= epilogue.num_rows) break;
    const int row = column + warp * (Config::kGated ? 8 : 16) + lane / 4;
    // The two rows of the thread: gate and up, or eight apart.
    const RowTerms first(epilogue, row, epilogue.num_rows);
    const RowTerms second(epilogue, Config::kGated ? row + epilogue.num_rows : row + 8,
                          (Config::kGated && row < epilogue.num_rows ? 2 : 1) * epilogue.num_rows);
#pragma unroll
    for (int chunk = 0; chunk < Config::kTokens / Config::kChunk; ++chunk) {
      const int token = first_token + chunk * Config::kChunk;
      if (token >= epilogue.num_tokens) break;
      const std::uint32_t buffer = buffers + num_stores % 2 * Config::kChunkBytes;
      if (thread == 0) wait_for_stores_to_read<1>();
      named_sync(1 + group, 128);
      const auto store_units = [&](bool is_silu) {
#pragma unroll
        for (int at = 0; at < Config::kChunk; at += unit) {
          store_unit<Config>(epilogue, is_silu, buffer, sum[block], first_token, (chunk * Config::kChunk + at) / 8, at,
                             first, second);
        }
      };
      if (!Config::kGated || epilogue.gate == LinearGate::kSilu) {
        store_units(true);
      } else {
        store_units(false);
      }
      fence_async_proxy();
      named_sync(1 + group, 128);
      if (thread == 0) store_box(out_map, column, token, buffer);
      ++num_stores;
    }
  }
}

// Lays this block's sums into shared memory, token after token; with a gate the gate's rows first.
template <class Config>
__device__ __forceinline__ void lay_down(const float (&sum)[Config::kBlocks][Config::kTokens / 2], float* sums,
                                         int group) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, token = lane % 4 * 2;
#pragma unroll
  for (int block = 0; block < Config::kBlocks; ++block) {
    const int position = group * Config::kBlocks + block;
    const int row = Config::kGated ? position * 32 + warp * 8 + lane / 4 : position * 64 + warp * 16 + lane / 4;
    constexpr int second = Config::kGated ? Config::kOutRows : 8;
#pragma unroll
    for (int j = 0; j < Config::kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[(8 * j + token + e % 2) * Config::kSumStride + row + e / 2 * second] = sum[block][4 * j + e];
      }
    }
  }
}

// Four neighbouring rows of one token, added over the parts of I in their order: blocks `first`, `first + pair`, ...
__device__ __forceinline__ float4 total(const Params& params, const float* mine, int first) {
  const std::uint32_t at = shared_address(mine);
  float4 value = read_cluster(at, first);
#pragma unroll 4
  for (int part = 1; part < params.split; ++part) {
    const float4 more = read_cluster(at, first + part * params.pair);
    value.x += more.x;
    value.y += more.y;
    value.z += more.z;
    value.w += more.w;
  }
  return value;
}

// Finishes this block's share of the tile's tokens, from the sums of all blocks of the cluster.
template <class Config>
__device__ __forceinline__ void finish_share(const Params& params, const float* sums, Tile tile, int rank) {
  constexpr int quads = Config::kOutRows / 4;
  const Epilogue& epilogue = params.epilogue;
  const int first_token = tile.token * Config::kTokens, first_row = tile.out * Config::kOutRows;
  const int num_tokens = min(Config::kTokens, epilogue.num_tokens - first_token);
  const int share = (num_tokens + params.split - 1) / params.split, begin = rank / params.pair * share;
  const int items = (min(num_tokens, begin + share) - begin) * quads;
#pragma unroll 4
  for (int i = threadIdx.x; i < items; i += Config::kConsumers) {
    const int token = begin + i / quads, row = i % quads * 4;
    if (first_row + row >= epilogue.num_rows) continue;
    const float* mine = sums + token * Config::kSumStride + row;
    const float4 value = total(params, mine, rank % params.pair);
    if constexpr (Config::kGated) {
      epilogue.store_gated(first_token + token, first_row + row, value, total(params, mine + Config::kOutRows, rank % params.pair),
                           epilogue.num_rows);
    } else {
      epilogue.store(first_token + token, first_row + row, value);
    }
  }
}

}  // namespace llm_kernels::cuda::gemm
