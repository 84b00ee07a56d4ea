// Host side and instances of the kernel that quantizes few tokens itself.

#include <algorithm>

#include "cuda/linear/fp8_few_kernel.cuh"
#include "cuda/linear/fp8_panel_families.h"
#include "cuda/linear/fp8_panel_launch.cuh"

namespace llm_kernels::cuda {
namespace {

template <int Groups, bool Gated>
void launch_few(const PanelArgs& args) {
  using Kernel = FewKernel<Groups, Gated>;
  static std::atomic<std::uint64_t> allowed{0};
  auto* kernel = few_kernel<Groups, Gated>;
  allow_shared(kernel, allowed);

  FewParams params{};
  PanelParams& panel = params.panel;
  panel = panel_params<Kernel::kTokens>(args);
  params.tokens.x = static_cast<const __nv_bfloat16*>(args.x);
  params.tokens.x_stride = args.x_stride;
  params.tokens.in_size = args.in_size;
  params.tokens.num_tokens = args.num_tokens;
  params.most_steps = (panel.num_steps + panel.split - 1) / panel.split;
  constexpr int most_stages = 16;
  const int spare = 1024 + 16 * most_stages + params.most_steps * (Kernel::kTileBytesOfStep + Kernel::kTokens * 4);
  const int budget = std::min(kSharedOfSM / args.plan.resident - 1024, kSharedOfBlock) - spare;
  panel.stages = std::min({std::max(2, budget / Kernel::kStageBytes), params.most_steps, most_stages});

  const CUtensorMap weight_map =
      bytes_map(args.weight, args.out_size, args.in_size, args.weight_stride, Kernel::Panel::kOutRows);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_panels<Kernel::Panel::kOutRows>(args) * panel.split);
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = spare + std::max(panel.stages * Kernel::kStageBytes, Kernel::Panel::kSumBytes);
  if (config.dynamicSmemBytes > kSharedOfBlock) throw ArgumentError("split", "the tokens do not fit into shared memory");
  config.stream = args.stream;
  LaunchAttributes attributes(panel.split, args.dependent);
  config.attrs = attributes.values;
  config.numAttrs = attributes.count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, weight_map, params), "fp8_panels");
}

}  // namespace

void fp8_few(const PanelArgs& args) {
  const bool gated = args.gate != LinearGate::kNone;
  if (args.plan.groups == 1) return gated ? launch_few<1, true>(args) : launch_few<1, false>(args);
  gated ? launch_few<2, true>(args) : launch_few<2, false>(args);
}

}  // namespace llm_kernels::cuda
