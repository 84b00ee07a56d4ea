// The launcher of panel products: checks what no kernel takes, and picks the family. Knows no kernel and no best plan.

#include "llm_kernels/cuda/fp8_panels.h"

#include "cuda/linear/fp8_panel_families.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

void check(const PanelArgs& args) {
  const bool gated = args.gate != LinearGate::kNone;
  const PanelPlan& plan = args.plan;
  if (args.num_tokens < 1) throw ArgumentError("values_TI", "expected a token at least");
  if (args.in_size < 16 || args.in_size % 16 != 0) throw ArgumentError("weight_OI", "expected I a multiple of 16");
  const int rows = gated ? 16 : 8;
  if (args.out_size < rows || args.out_size % rows != 0) {
    throw ArgumentError("weight_OI", "expected O a multiple of " + std::to_string(rows));
  }
  const bool few = args.token_scale == nullptr;
  if (few && args.num_tokens > 8) throw ArgumentError("x_TI", "expected up to 8 tokens of bfloat16");
  if (!few && gated) throw ArgumentError("kind", "gates go with tokens of bfloat16");
  if (few && (plan.groups != 1 && plan.groups != 2)) throw ArgumentError("groups", "expected 1 or 2");
  if (!few && plan.groups != 2 && plan.groups != 3) throw ArgumentError("groups", "expected 2 or 3");
  const bool is_power = plan.split == 1 || plan.split == 2 || plan.split == 4 || plan.split == 8;
  if (!is_power) throw ArgumentError("split", "expected 1, 2, 4 or 8");
  if (plan.resident < 1 || plan.resident > 6) throw ArgumentError("resident", "expected 1 to 6");
}

}  // namespace

void fp8_panels(const PanelArgs& args) {
  check(args);
  if (args.token_scale == nullptr) return fp8_few(args);
  args.plan.groups == 2 ? fp8_panels_of_two(args) : fp8_panels_of_three(args);
}

}  // namespace llm_kernels::cuda
