// The kernels by what they compute, each compiled in a file of its own: false where they have no such plan.
#pragma once

#include "llm_kernels/cuda/gemm.h"

namespace llm_kernels::cuda::gemm {

bool gemm_bf16_few(const LinearArgs& args, const GemmPlan& plan);  // tiles of up to 128 tokens
bool gemm_bf16_many(const LinearArgs& args, const GemmPlan& plan);
bool gated_gemm_bf16_few(const LinearArgs& args, const GemmPlan& plan);
bool gated_gemm_bf16_many(const LinearArgs& args, const GemmPlan& plan);

}  // namespace llm_kernels::cuda::gemm
