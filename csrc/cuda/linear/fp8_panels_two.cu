// The panel kernels of 128 rows.

#include "cuda/linear/fp8_panel_families.h"
#include "cuda/linear/fp8_panel_launch.cuh"

namespace llm_kernels::cuda {

void fp8_panels_of_two(const PanelArgs& args) { launch_panels_of<2>(args); }

}  // namespace llm_kernels::cuda
