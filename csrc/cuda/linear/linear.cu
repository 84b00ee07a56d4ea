// The launcher of products for few tokens: checks what no kernel takes, and picks plan and family. Knows no kernel.

#include <algorithm>

#include "cuda/linear/families.h"
#include "cuda/linear/host.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

void check(const LinearArgs& args) {
  const int unit = args.weight_kind == LinearWeight::kBFloat16 ? 8 : 16;
  if (args.num_tokens < 1 || args.num_tokens > 128) throw ArgumentError("x_TI", "expected 1 to 128 tokens");
  if (args.in_size < unit || args.in_size % unit != 0) {
    throw ArgumentError("weight_OI", "expected I a multiple of " + std::to_string(unit));
  }
  const bool both = args.weight_kind == LinearWeight::kFloat8Both;
  if (both && (args.gate != LinearGate::kNone || args.scale_kind == LinearScale::kBlock || args.plan.rows != 0)) {
    throw ArgumentError("x_TI", "with float8 tokens: no gate, no blocks of scales, no rows");
  }
  const int rows = args.gate == LinearGate::kNone ? 8 : 16;
  if (args.out_size < rows || args.out_size % rows != 0) {
    throw ArgumentError("weight_OI", "expected O a multiple of " + std::to_string(rows));
  }
  if (args.plan.rows >= 8) {
    const bool fits = args.num_tokens <= 8 && args.weight_kind == LinearWeight::kFloat8;
    if (!fits) throw ArgumentError("rows", "expected up to 8 tokens and float8 weights");
    if (args.plan.resident < 1 || args.plan.resident > 8) throw ArgumentError("resident", "expected 1 to 8");
  } else if (args.plan.rows != 0) {
    const bool fits = args.num_tokens == 1 && args.weight_kind == LinearWeight::kBFloat16 && args.in_size <= 24576;
    if (!fits) throw ArgumentError("rows", "expected one token, bfloat16 and I up to 24,576");
  } else if (args.plan.tiles != 0) {
    const int tiles = args.plan.tiles, split = args.plan.split, resident = args.plan.resident;
    if (tiles != 1 && tiles != 2 && tiles != 4) throw ArgumentError("tiles", "expected 1, 2 or 4");
    if (args.gate != LinearGate::kNone && tiles == 1) throw ArgumentError("tiles", "expected 2 or 4");
    if (split < 1 || split > 8) throw ArgumentError("split", "expected 1 to 8");
    if (resident < 1 || resident > 4) throw ArgumentError("resident", "expected 1 to 4");
  }
}

}  // namespace

LinearPlan plan_linear(const LinearArgs& args) {
  const bool gated = args.gate != LinearGate::kNone;
  const int columns = args.weight_kind == LinearWeight::kBFloat16 ? 64 : 128;
  const int tiles = (args.out_size + 63) / 64, steps = (args.in_size + columns - 1) / columns;
  // Measured on an H200 over the products of Qwen3-0.6B and 8B (docs/performance.md).
  if (args.num_tokens == 1 && args.weight_kind == LinearWeight::kBFloat16 && tiles <= 128 && args.in_size <= 3072) {
    if (args.in_size > 2048 && !gated) return {0, 0, 0, 1, 16};
    return {0, 0, 0, 2, args.in_size <= 1024 ? 4 : 8};
  }
  if (args.num_tokens <= 2 && args.weight_kind == LinearWeight::kFloat8 && tiles <= 128) {
    return {0, 0, args.in_size <= 4096 && tiles > 64 ? 3 : 2, 16, args.in_size <= 4096 && tiles > 64 ? 4 : 8};
  }
  if (gated) return {2, tiles > 32 ? std::min(2, steps) : std::min(8, steps), tiles > 128 ? 3 : 1, 0, 0};
  if (tiles > 128) return {1, 1, 3, 0, 0};
  if (tiles > 64) return steps >= 32 ? LinearPlan{1, 2, 2, 0, 0} : LinearPlan{1, 1, 2, 0, 0};
  const bool light = args.weight_kind == LinearWeight::kFloat8Both && steps <= 32;
  if (tiles > 32) return {1, std::min(2, steps), light ? 2 : 1, 0, 0};
  if (tiles > 16) return {1, std::min(4, steps), 1, 0, 0};
  const bool wide = tiles > 8 && !(args.scale_kind == LinearScale::kBlock && args.num_tokens > 64);
  return {wide ? 2 : 1, std::min(8, steps), 1, 0, 0};
}

void linear(const LinearArgs& args) {
  check(args);
  const bool planned = args.plan.tiles != 0 || args.plan.rows != 0;
  const LinearPlan plan = planned ? args.plan : plan_linear(args);
  if (plan.rows >= 8) {
    return args.scale_kind == LinearScale::kBlock ? fragment_fp8_block(args, plan) : fragment_fp8(args, plan);
  }
  if (plan.rows != 0) return linear_row(args, plan);
  if (args.weight_kind == LinearWeight::kBFloat16) {
    return args.gate == LinearGate::kNone ? linear_bf16(args, plan) : gated_linear_bf16(args, plan);
  }
  if (args.weight_kind == LinearWeight::kFloat8Both) return linear_fp8_both(args, plan);
  if (args.gate != LinearGate::kNone) return gated_linear_fp8(args, plan);
  return args.scale_kind == LinearScale::kBlock ? linear_fp8_block(args, plan) : linear_fp8(args, plan);
}

}  // namespace llm_kernels::cuda
