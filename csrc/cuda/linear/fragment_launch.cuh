// Host side of the fragment kernel: grid, shared memory, the launch, and which kernels there are. Knows no best plan.
#pragma once

#include <algorithm>

#include "cuda/linear/fragment_kernel.cuh"
#include "cuda/linear/host.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {

template <int Tiles, int Unroll, FragmentRows Rows, LinearWeight Kind, bool BlockScale>
void launch_fragments(const LinearArgs& args, const LinearPlan& plan) {
  using Kernel = FragmentKernel<Tiles, Unroll, Rows, Kind, BlockScale>;
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = fragment_kernel<Tiles, Unroll, Rows, Kind, BlockScale>;
  allow_shared(kernel, allowed, kTokenShared);
  FragmentParams params{};
  params.epilogue = epilogue_of(args);
  params.tokens = tokens_of(args);
  params.weight = static_cast<const std::uint8_t*>(args.weight);
  params.row_bytes = args.weight_stride * (Kernel::kFloat8 ? 1 : 2);
  params.scale = BlockScale ? args.scale : nullptr;
  params.scale_stride = args.scale_stride;
  params.up_row = args.out_size / 2;
  params.num_groups = (params.epilogue.num_rows + Kernel::kOutRows - 1) / Kernel::kOutRows;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(params.num_groups, kMultiprocessors * plan.resident));
  config.blockDim = dim3(kRowWarps * 32);
  config.dynamicSmemBytes =
      2 * kRowWarps * Kernel::kSums * 4 + args.num_tokens * Kernel::token_stride(args.in_size) * 16 + norm_bytes(args);
  if (config.dynamicSmemBytes > kTokenShared) throw ArgumentError("rows", "the tokens do not fit into shared memory");
  config.stream = args.stream;
  LaunchAttributes attributes(1, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "linear");
}

template <int Tiles, int Unroll, LinearWeight Kind, bool BlockScale>
void launch_fragments_of_rows(const LinearArgs& args, const LinearPlan& plan) {
  if (args.gate != LinearGate::kNone) {
    if (plan.rows != 16) throw ArgumentError("rows", "with a gate, expected 16");
    return launch_fragments<Tiles, Unroll, FragmentRows::kGateAndUp, Kind, BlockScale>(args, plan);
  }
  if (plan.rows == 8) return launch_fragments<Tiles, Unroll, FragmentRows::kEight, Kind, BlockScale>(args, plan);
  if (plan.rows != 16) throw ArgumentError("rows", "expected 8 or 16");
  launch_fragments<Tiles, Unroll, FragmentRows::kSixteen, Kind, BlockScale>(args, plan);
}

template <LinearWeight Kind, bool BlockScale>
void launch_fragments_of(const LinearArgs& args, const LinearPlan& plan) {
  if (args.num_tokens > 16) throw ArgumentError("rows", "expected up to 16 tokens");
  const bool one = args.num_tokens <= 8;
  if (plan.unroll == 4) {
    return one ? launch_fragments_of_rows<1, 4, Kind, BlockScale>(args, plan)
               : launch_fragments_of_rows<2, 4, Kind, BlockScale>(args, plan);
  }
  if (plan.unroll != 8) throw ArgumentError("unroll", "expected 4 or 8");
  return one ? launch_fragments_of_rows<1, 8, Kind, BlockScale>(args, plan)
             : launch_fragments_of_rows<2, 8, Kind, BlockScale>(args, plan);
}

}  // namespace llm_kernels::cuda
