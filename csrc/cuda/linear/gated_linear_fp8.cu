// The weight-streaming kernels of float8 weights with a gated activation; x stays bfloat16.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void gated_linear_fp8(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kFloat8;
  if (plan.tiles != 2) throw ArgumentError("tiles", "expected 2 for float8 weights with a gate");
  if (args.scale_kind != LinearScale::kBlock) return launch_for_tokens<2, true, kind, false>(args, plan);
  if (args.out_size % 128 != 0) throw ArgumentError("weight_OI", "expected halves of a multiple of 64 rows");
  launch_for_tokens<2, true, kind, true>(args, plan);
}

}  // namespace llm_kernels::cuda
