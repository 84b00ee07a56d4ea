// The families of panel kernels, each compiled in a file of its own. Knows no kernel.
#pragma once

#include "llm_kernels/cuda/fp8_panels.h"

namespace llm_kernels::cuda {

void fp8_few(const PanelArgs& args);            // up to 8 tokens of bfloat16
void fp8_panels_of_two(const PanelArgs& args);  // warpgroups
void fp8_panels_of_three(const PanelArgs& args);

}  // namespace llm_kernels::cuda
