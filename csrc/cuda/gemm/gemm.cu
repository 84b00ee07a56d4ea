// The launcher of products of many tokens: checks what no kernel takes, picks the family. Knows no kernel.

#include "cuda/gemm/families.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {

void tiled_linear(const LinearArgs& args, const GemmPlan& plan) {
  const bool gated = args.gate != LinearGate::kNone;
  if (args.weight_kind != LinearWeight::kBFloat16) throw ArgumentError("weight_OI", "expected bfloat16");
  if (args.num_tokens < 1) throw ArgumentError("x_TI", "expected tokens");
  if (args.in_size < 8 || args.in_size % 8 != 0) throw ArgumentError("weight_OI", "expected I a multiple of 8");
  const int unit = gated ? 16 : 8;
  if (args.out_size < unit || args.out_size % unit != 0) {
    throw ArgumentError("weight_OI", "expected O a multiple of " + std::to_string(unit));
  }
  if (plan.pair != 1 && plan.pair != 2) throw ArgumentError("pair", "expected 1 or 2");
  if (plan.split < 1 || plan.split * plan.pair > 8) throw ArgumentError("split", "expected clusters of 1 to 8");
  const bool few = plan.tokens <= 128;
  const bool known = gated ? (few ? gemm::gated_gemm_bf16_few(args, plan) : gemm::gated_gemm_bf16_many(args, plan))
                           : (few ? gemm::gemm_bf16_few(args, plan) : gemm::gemm_bf16_many(args, plan));
  if (!known) throw ArgumentError("plan", "no kernel of such tiles");
}

}  // namespace llm_kernels::cuda
