// Matrix products of many tokens on Hopper: y[T, O] = x[T, I] W[O, I]^T by tiles of W's rows and tokens. Knows no
// framework.
#pragma once

#include "llm_kernels/cuda/linear.h"

namespace llm_kernels::cuda {

// How a product is cut: tiles of 64 * groups * blocks rows of W by `tokens` tokens, and `split` parts of I, which the
// blocks of a cluster add up in a fixed order. With `pair` 2 two blocks of a cluster, with neighbouring rows of W, copy
// half of each tile of tokens for both. split * pair <= 8.
struct GemmPlan {
  std::int32_t groups, blocks, tokens, split, pair;
};

// As `linear`, for any number of tokens; bfloat16 only. With a gate O is a multiple of 16. `args.plan` is not read.
// Throws ArgumentError for what no kernel takes, std::runtime_error where CUDA refuses.
void tiled_linear(const LinearArgs& args, const GemmPlan& plan);

}  // namespace llm_kernels::cuda
