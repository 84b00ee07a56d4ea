// The kernels of one token: their launch, and which there are.

#include "cuda/linear/families.h"
#include "cuda/linear/host.h"
#include "cuda/linear/row_kernel.cuh"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

template <int Rows, int Unroll, bool Gated>
void launch_rows(const LinearArgs& args) {
  RowParams params{};
  params.epilogue = epilogue_of(args);
  params.tokens = tokens_of(args);
  params.weight = static_cast<const __nv_bfloat16*>(args.weight);
  params.weight_stride = args.weight_stride;
  params.up_row = args.out_size / 2;
  constexpr int rows = RowKernel<Rows, Unroll, Gated>::kOutRows * kRowWarps;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((params.epilogue.num_rows + rows - 1) / rows);
  config.blockDim = dim3(kRowWarps * 32);
  config.dynamicSmemBytes = args.in_size * sizeof(__nv_bfloat16);
  config.stream = args.stream;
  LaunchAttributes attributes(1, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, row_kernel<Rows, Unroll, Gated>, params), "linear");
}

template <int Rows, int Unroll>
void launch_gated_or_not(const LinearArgs& args) {
  if (args.gate == LinearGate::kNone) return launch_rows<Rows, Unroll, false>(args);
  if constexpr (Rows % 2 == 0) return launch_rows<Rows, Unroll, true>(args);
  throw ArgumentError("rows", "with a gate, expected an even number");
}

}  // namespace

void linear_row(const LinearArgs& args, const LinearPlan& plan) {
  switch (plan.rows * 100 + plan.unroll) {
    case 108:
      return launch_gated_or_not<1, 8>(args);
    case 116:
      return launch_gated_or_not<1, 16>(args);
    case 204:
      return launch_gated_or_not<2, 4>(args);
    case 208:
      return launch_gated_or_not<2, 8>(args);
    default:
      throw ArgumentError("rows", "no kernel with these rows and loads");
  }
}

}  // namespace llm_kernels::cuda
