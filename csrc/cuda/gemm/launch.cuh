// Host side of the product kernel: tensor maps, grid, launch. Knows nothing of which plan is best.
#pragma once

#include <algorithm>

#include "cuda/gemm/kernel.cuh"
#include "cuda/linear/host.h"
#include "cuda/tensor_map.h"
#include "llm_kernels/common.h"
#include "llm_kernels/cuda/gemm.h"

namespace llm_kernels::cuda::gemm {

constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull, kEvictFirst = 0x12F0000000000000ull,
                        kEvictLast = 0x14F0000000000000ull;
constexpr int kBandTokens = 2048;                // whose tiles are passed over together
constexpr std::int64_t kHeldBytes = 8ll << 20;  // of tokens that the L2 cache shall hold on to

template <class Config>
CUtensorMap weight_map(const LinearArgs& args) {
  constexpr int size = sizeof(typename Config::Element);
  constexpr auto type = size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const std::int64_t row = args.weight_stride * size;
  if constexpr (Config::kGated) {
    const std::int64_t half = args.out_size / 2;
    const MapDimension outer[3] = {{8, row, 8}, {2, half * row, 2}, {half / 8, 8 * row, Config::kRows / 16}};
    return encode_map(type, args.weight, args.in_size, Config::kColumns, outer, 3);
  } else {
    const MapDimension outer{args.out_size, row, Config::kRows};
    return encode_map(type, args.weight, args.in_size, Config::kColumns, &outer, 1);
  }
}

template <class Config>
CUtensorMap token_map(const LinearArgs& args, int pair) {
  constexpr int size = sizeof(typename Config::Element);
  constexpr auto type = size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const MapDimension outer{args.num_tokens, args.x_stride * size, Config::kTokens / pair};
  return encode_map(type, args.x, args.in_size, Config::kColumns, &outer, 1);
}

template <class Config>
CUtensorMap out_map(const LinearArgs& args, int num_rows) {
  const MapDimension outer{args.num_tokens, args.out_stride * 2, Config::kChunk};
  constexpr auto swizzle = Config::kGated ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, args.out, num_rows, Config::kOutWidth, &outer, 1, swizzle);
}

template <class Config>
Params params_of(const LinearArgs& args, const GemmPlan& plan) {
  Params params{};
  params.epilogue = epilogue_of(args);
  params.num_steps = (args.in_size + Config::kColumns - 1) / Config::kColumns;
  params.split = std::min(plan.split, params.num_steps);
  params.pair = plan.pair;
  const int pair_rows = Config::kOutRows * plan.pair;
  params.out_tiles = (params.epilogue.num_rows + pair_rows - 1) / pair_rows;
  params.token_tiles = (args.num_tokens + Config::kTokens - 1) / Config::kTokens;
  params.num_tiles = params.out_tiles * params.token_tiles;
  params.band = std::min(params.token_tiles, kBandTokens / Config::kTokens);
  const std::int64_t token_bytes = std::int64_t{args.num_tokens} * args.in_size * sizeof(typename Config::Element);
  params.weight_policy = params.token_tiles == 1 ? kEvictFirst : kEvictNormal;
  params.token_policy = token_bytes <= kHeldBytes ? kEvictLast : kEvictNormal;
  return params;
}

template <class Config>
void launch(const LinearArgs& args, const GemmPlan& plan) {
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = gemm_kernel<Config>;
  allow_shared(kernel, allowed);
  const Params params = params_of<Config>(args, plan);
  if (params.split > 1 && !Config::kSplits) throw ArgumentError("split", "the sums of such tiles do not fit");
  cudaLaunchConfig_t config{};
  const int clusters = params.split > 1 ? params.num_tiles : std::min(params.num_tiles, kMultiprocessors / plan.pair);
  const int cluster = params.split * plan.pair;
  config.gridDim = dim3(clusters * cluster);
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = args.stream;
  LaunchAttributes attributes(cluster, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  const CUtensorMap weight = weight_map<Config>(args), tokens = token_map<Config>(args, plan.pair),
                    out = out_map<Config>(args, params.epilogue.num_rows);
  check_cuda(cudaLaunchKernelEx(&config, kernel, weight, tokens, out, params), "gemm");
}

// Launches the kernel of this plan, if it is this one.
template <class Element, bool Gated, int Groups, int Blocks, int Tokens>
bool launch_if(const LinearArgs& args, const GemmPlan& plan) {
  if (plan.groups != Groups || plan.blocks != Blocks || plan.tokens != Tokens) return false;
  launch<Config<Element, Groups, Blocks, Tokens, Gated>>(args, plan);
  return true;
}

}  // namespace llm_kernels::cuda::gemm
