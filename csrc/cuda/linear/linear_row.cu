// The kernels of one to four tokens: their launch, and which there are.

#include "cuda/linear/families.h"
#include "cuda/linear/host.h"
#include "cuda/linear/row_kernel.cuh"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

template <int Tokens, int Rows, int Unroll, bool Gated>
void launch_rows(const LinearArgs& args) {
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = row_kernel<Tokens, Rows, Unroll, Gated>;
  allow_shared(kernel, allowed, kTokenShared);
  RowParams params{};
  params.epilogue = epilogue_of(args);
  params.tokens = tokens_of(args);
  params.weight = static_cast<const __nv_bfloat16*>(args.weight);
  params.weight_stride = args.weight_stride;
  params.up_row = args.out_size / 2;
  constexpr int rows = RowKernel<Tokens, Rows, Unroll, Gated>::kOutRows * kRowWarps;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((params.epilogue.num_rows + rows - 1) / rows);
  config.blockDim = dim3(kRowWarps * 32);
  config.dynamicSmemBytes = Tokens * args.in_size * sizeof(__nv_bfloat16) + norm_bytes(args);
  config.stream = args.stream;
  LaunchAttributes attributes(1, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "linear");
}

template <int Tokens, int Rows, int Unroll>
void launch_gated_or_not(const LinearArgs& args) {
  if (args.gate == LinearGate::kNone) return launch_rows<Tokens, Rows, Unroll, false>(args);
  if constexpr (Rows % 2 == 0) return launch_rows<Tokens, Rows, Unroll, true>(args);
  throw ArgumentError("rows", "with a gate, expected an even number");
}

template <int Rows, int Unroll>
void launch_for_tokens(const LinearArgs& args) {
  if (args.num_tokens == 1) return launch_gated_or_not<1, Rows, Unroll>(args);
  if constexpr (Rows == 2 || Rows == 4) {
    if (args.num_tokens == 2) return launch_gated_or_not<2, Rows, Unroll>(args);
    if (args.num_tokens <= 4) return launch_gated_or_not<4, Rows, Unroll>(args);
  }
  throw ArgumentError("rows", "no kernel with these rows for so many tokens");
}

}  // namespace

void linear_row(const LinearArgs& args, const LinearPlan& plan) {
  switch (plan.rows * 100 + plan.unroll) {
    case 104: return launch_for_tokens<1, 4>(args);
    case 108: return launch_for_tokens<1, 8>(args);
    case 116: return launch_for_tokens<1, 16>(args);
    case 204: return launch_for_tokens<2, 4>(args);
    case 208: return launch_for_tokens<2, 8>(args);
    case 404: return launch_for_tokens<4, 4>(args);
    case 604: return launch_for_tokens<6, 4>(args);
    default: throw ArgumentError("rows", "no kernel with these rows and loads");
  }
}

}  // namespace llm_kernels::cuda
