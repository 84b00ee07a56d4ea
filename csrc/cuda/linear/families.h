// The families of kernels, each compiled in a file of its own. Knows no kernel.
#pragma once

#include "llm_kernels/cuda/linear.h"

namespace llm_kernels::cuda {

void linear_row(const LinearArgs& args, const LinearPlan& plan);    // one token
void fragment_fp8(const LinearArgs& args, const LinearPlan& plan);  // up to 8 tokens
void fragment_fp8_block(const LinearArgs& args, const LinearPlan& plan);
void linear_bf16(const LinearArgs& args, const LinearPlan& plan);
void gated_linear_bf16(const LinearArgs& args, const LinearPlan& plan);
void linear_fp8(const LinearArgs& args, const LinearPlan& plan);
void linear_fp8_block(const LinearArgs& args, const LinearPlan& plan);
void linear_fp8_both(const LinearArgs& args, const LinearPlan& plan);
void gated_linear_fp8(const LinearArgs& args, const LinearPlan& plan);

}  // namespace llm_kernels::cuda
