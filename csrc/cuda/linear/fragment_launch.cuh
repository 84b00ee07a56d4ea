// Host side of the fragment kernel: grid, shared memory, the launch, and which kernels there are. Knows no best plan.
#pragma once

#include <algorithm>

#include "cuda/linear/fragment_kernel.cuh"
#include "cuda/linear/host.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {

template <int Unroll, FragmentRows Rows, bool BlockScale>
void launch_fragments(const LinearArgs& args, const LinearPlan& plan) {
  using Kernel = FragmentKernel<Unroll, Rows, BlockScale>;
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = fragment_kernel<Unroll, Rows, BlockScale>;
  allow_shared(kernel, allowed);
  FragmentParams params{};
  params.epilogue = epilogue_of(args);
  params.tokens = tokens_of(args);
  params.weight = static_cast<const std::uint8_t*>(args.weight);
  params.row_bytes = args.weight_stride;
  params.scale = BlockScale ? args.scale : nullptr;
  params.scale_stride = args.scale_stride;
  params.up_row = args.out_size / 2;
  params.num_groups = (params.epilogue.num_rows + Kernel::kOutRows - 1) / Kernel::kOutRows;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(params.num_groups, kMultiprocessors * plan.resident));
  config.blockDim = dim3(kRowWarps * 32);
  config.dynamicSmemBytes =
      2 * kRowWarps * Kernel::kSums * 4 + args.num_tokens * Kernel::token_stride(args.in_size) * 16;
  if (config.dynamicSmemBytes > kSharedOfBlock) throw ArgumentError("rows", "the tokens do not fit into shared memory");
  config.stream = args.stream;
  LaunchAttributes attributes(1, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "linear");
}

template <int Unroll, bool BlockScale>
void launch_fragments_of_rows(const LinearArgs& args, const LinearPlan& plan) {
  if (args.gate != LinearGate::kNone) {
    if (plan.rows != 16) throw ArgumentError("rows", "with a gate, expected 16");
    return launch_fragments<Unroll, FragmentRows::kGateAndUp, BlockScale>(args, plan);
  }
  if (plan.rows == 8) return launch_fragments<Unroll, FragmentRows::kEight, BlockScale>(args, plan);
  if (plan.rows != 16) throw ArgumentError("rows", "expected 8 or 16");
  launch_fragments<Unroll, FragmentRows::kSixteen, BlockScale>(args, plan);
}

template <bool BlockScale>
void launch_fragments_of(const LinearArgs& args, const LinearPlan& plan) {
  if (args.num_tokens > 8) throw ArgumentError("rows", "expected up to 8 tokens");
  if (plan.unroll == 4) return launch_fragments_of_rows<4, BlockScale>(args, plan);
  if (plan.unroll != 8) throw ArgumentError("unroll", "expected 4 or 8");
  launch_fragments_of_rows<8, BlockScale>(args, plan);
}

}  // namespace llm_kernels::cuda
