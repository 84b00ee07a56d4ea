// Host side of the panel kernel: tensor maps, shared memory, the launch. Knows nothing of which plan is best.
#pragma once

#include <algorithm>

#include "cuda/linear/fp8_panel_kernel.cuh"
#include "cuda/linear/host.h"
#include "cuda/tensor_map.h"
#include "llm_kernels/common.h"
#include "llm_kernels/cuda/fp8_panels.h"

namespace llm_kernels::cuda {

inline CUtensorMap bytes_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                             int box_rows) {
  const MapDimension outer{rows, stride, box_rows};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, data, columns, kPanelStep, &outer, 1);
}

inline Epilogue panel_epilogue(const PanelArgs& args) {
  Epilogue epilogue{};
  epilogue.out = static_cast<__nv_bfloat16*>(args.out);
  epilogue.out_stride = args.out_stride;
  epilogue.bias = static_cast<const __nv_bfloat16*>(args.bias);
  epilogue.scale = args.scale;
  epilogue.scale_stride = args.scale_of_rows;
  epilogue.token_scale = args.token_scale;
  epilogue.token_scale_stride = args.token_scale_stride;
  epilogue.num_tokens = args.num_tokens;
  epilogue.num_rows = args.gate == LinearGate::kNone ? args.out_size : args.out_size / 2;
  epilogue.gate = args.gate;
  return epilogue;
}

template <int OutRows>
int num_panels(const PanelArgs& args) {
  const int rows = args.gate == LinearGate::kNone ? args.out_size : args.out_size / 2;
  return (rows + OutRows - 1) / OutRows;
}

// All but the stages.
template <int N>
PanelParams panel_params(const PanelArgs& args) {
  PanelParams params{};
  params.epilogue = panel_epilogue(args);
  params.num_steps = (args.in_size + kPanelStep - 1) / kPanelStep;
  params.num_token_tiles = (args.num_tokens + N - 1) / N;
  params.split = args.plan.split;
  params.up_row = args.out_size / 2;
  if (params.split > params.num_steps) throw ArgumentError("split", "more parts than steps of 128 columns");
  return params;
}

template <int N, int Groups>
void launch_panels(const PanelArgs& args) {
  using Kernel = PanelKernel<N, Groups, false>;
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = panel_kernel<N, Groups>;
  allow_shared(kernel, allowed);

  PanelParams params = panel_params<N>(args);
  constexpr int most_stages = 16, spare = 1024 + 16 * most_stages;
  const int budget = std::min(kSharedOfSM / args.plan.resident - 1024, kSharedOfBlock) - spare;
  const int steps_of_block = (params.num_steps + params.split - 1) / params.split;
  // The consumers let go of a stage when they have begun the next one: with a single stage they would wait for ever.
  params.stages = std::min({std::max(2, budget / Kernel::kStageBytes), std::max(2, steps_of_block), most_stages});

  const CUtensorMap weight_map =
      bytes_map(args.weight, args.out_size, args.in_size, args.weight_stride, Kernel::kOutRows);
  const CUtensorMap token_map = bytes_map(args.x, args.num_tokens, args.in_size, args.x_stride, N);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_panels<Kernel::kOutRows>(args) * params.num_token_tiles * params.split);
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = spare + std::max(params.stages * Kernel::kStageBytes, Kernel::kSumBytes);
  config.stream = args.stream;
  LaunchAttributes attributes(params.split, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, weight_map, token_map, params), "fp8_panels");
}

template <int Groups>
void launch_panels_of(const PanelArgs& args) {
  switch (args.plan.tile) {
    case 64: return launch_panels<64, Groups>(args);
    case 96: return launch_panels<96, Groups>(args);
    case 128: return launch_panels<128, Groups>(args);
    case 160: return launch_panels<160, Groups>(args);
    case 192: return launch_panels<192, Groups>(args);
    default: throw ArgumentError("tile", "expected 64 to 192 tokens in steps of 32");
  }
}

}  // namespace llm_kernels::cuda
