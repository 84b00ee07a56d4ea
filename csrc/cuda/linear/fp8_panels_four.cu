// The panel kernels of 256 rows.

#include "cuda/linear/fp8_panel_families.h"
#include "cuda/linear/fp8_panel_launch.cuh"

namespace llm_kernels::cuda {

void fp8_panels_of_four(const PanelArgs& args) { launch_panels_of<4>(args); }

}  // namespace llm_kernels::cuda
