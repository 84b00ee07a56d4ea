// Host side of the weight-streaming kernel: tensor maps, shared memory, the launch. Knows nothing of which plan is
// best.
#pragma once

#include <algorithm>

#include "cuda/linear/host.h"
#include "cuda/linear/stream_kernel.cuh"
#include "cuda/tensor_map.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {

constexpr int kMostStages = 16;

// A matrix in rows, `stride` elements apart: float8 (as bytes) or bfloat16.
inline CUtensorMap matrix_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                              bool is_float8, int box_rows, int box_columns) {
  const MapDimension outer{rows, stride * (is_float8 ? 1 : 2), box_rows};
  return encode_map(is_float8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, columns,
                    box_columns, &outer, 1);
}

template <int N, int Tiles, bool Gated, LinearWeight Kind, bool BlockScale>
void launch_stream(const LinearArgs& args, const LinearPlan& plan) {
  using Kernel = StreamKernel<N, Tiles, Gated, Kind, BlockScale>;
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = stream_kernel<N, Tiles, Gated, Kind, BlockScale>;
  allow_shared(kernel, allowed);

  constexpr int rows = Gated ? Kernel::kRows / 2 : Kernel::kRows;
  StreamParams params{};
  params.epilogue = epilogue_of(args);
  params.scale = BlockScale ? args.scale : nullptr;
  params.scale_stride = args.scale_stride;
  params.num_steps = (args.in_size + Kernel::kColumns - 1) / Kernel::kColumns;
  params.split = std::min(plan.split, params.num_steps);
  params.up_row = args.out_size / 2;
  const int quads = (rows / 4 + params.split - 1) / params.split;
  while ((1 << params.quad_shift) < quads) ++params.quad_shift;
  const int spare = 1024 + 16 * kMostStages;
  const int budget = std::min(kSharedOfSM / plan.resident - 1024, kSharedOfBlock) - spare;
  const int steps_of_block = (params.num_steps + params.split - 1) / params.split;
  // The consumers let go of a stage when they have begun the next one: with a single stage they would wait for ever.
  params.stages = std::min({std::max(2, budget / Kernel::kStageBytes), steps_of_block, kMostStages});

  const CUtensorMap weight_map =
      matrix_map(args.weight, args.out_size, args.in_size, args.weight_stride, Kernel::kFloat8, rows, Kernel::kColumns);
  const CUtensorMap token_map = matrix_map(args.x, args.num_tokens, args.in_size, args.x_stride,
                                           Kind == LinearWeight::kFloat8Both, N, Kernel::kTokenColumns);

  const int num_tiles = (params.epilogue.num_rows + rows - 1) / rows;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_tiles * params.split);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = spare + std::max(params.stages * Kernel::kStageBytes, Kernel::kSumBytes);
  config.stream = args.stream;
  LaunchAttributes attributes(params.split, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, weight_map, token_map, params), "linear");
}

template <int Tiles, bool Gated, LinearWeight Kind, bool BlockScale>
void launch_for_tokens(const LinearArgs& args, const LinearPlan& plan) {
  if (args.num_tokens <= 8) return launch_stream<8, Tiles, Gated, Kind, BlockScale>(args, plan);
  if (args.num_tokens <= 16) return launch_stream<16, Tiles, Gated, Kind, BlockScale>(args, plan);
  if (args.num_tokens <= 32) return launch_stream<32, Tiles, Gated, Kind, BlockScale>(args, plan);
  // Sums of float8 blocks are held twice: more would not fit into registers.
  if constexpr (!BlockScale || Tiles <= 2) {
    if (args.num_tokens <= 64) return launch_stream<64, Tiles, Gated, Kind, BlockScale>(args, plan);
  }
  if constexpr ((!BlockScale && Tiles <= 2) || Tiles == 1) {
    if (args.num_tokens <= 128) return launch_stream<128, Tiles, Gated, Kind, BlockScale>(args, plan);
  }
  throw ArgumentError("tiles", "too many for the tokens");
}

}  // namespace llm_kernels::cuda
