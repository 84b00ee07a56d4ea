// The panel kernels of 96 rows of the gate's half and the 96 that go with them.

#include "cuda/linear/fp8_panel_families.h"
#include "cuda/linear/fp8_panel_launch.cuh"

namespace llm_kernels::cuda {

void fp8_gated_panels_of_three(const PanelArgs& args) { launch_panels_of<3, true>(args); }

}  // namespace llm_kernels::cuda
