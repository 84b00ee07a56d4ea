// Launches the mixtures of experts for a few tokens: checks what they do not take, the rows of a block.

#include "llm_kernels/cuda/token_experts.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/experts/token_kernels.cuh"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

// Shared memory of a block of the down kernel, of which a multiprocessor shall hold two, and the most there is.
constexpr int kDownShared = 112 * 1024, kMostShared = 226 * 1024;

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("token_experts: ") + cudaGetErrorString(error));
}

template <class Kernel>
void launch(Kernel* kernel, const experts::TokenParams& params, dim3 grid, int threads, int shared, bool dependent,
            cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = dependent ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace

void token_experts(const TokenExpertsArgs& args) {
  if (args.gate == GroupedGate::kNone) throw ArgumentError("gate", "expected one");
  if (args.size < 8 || args.size % 8 != 0) throw ArgumentError("x_TE", "expected E a multiple of 8");
  if (args.inner_size < 8 || args.inner_size % 8 != 0) throw ArgumentError("down", "expected I a multiple of 8");
  if (args.top_k < 1 || args.top_k > kMostTokenChoices) throw ArgumentError("ids_TK", "expected 1 to 32 choices");
  if (args.num_tokens == 0) return;
  const int row_bytes = args.top_k * args.inner_size * 2;
  const int rows = std::clamp(kDownShared / row_bytes - 1, 1, experts::kDownWarps);
  const int shared = (rows + 1) * row_bytes;
  if (shared > kMostShared) throw ArgumentError("down", "expected choices and I that fit into shared memory");
  experts::TokenParams params{};
  params.out = static_cast<__nv_bfloat16*>(args.out);
  params.out_stride = args.out_stride;
  params.inner = static_cast<__nv_bfloat16*>(args.inner);
  params.x = static_cast<const __nv_bfloat16*>(args.x);
  params.x_stride = args.x_stride;
  params.up = static_cast<const __nv_bfloat16*>(args.up);
  params.down = static_cast<const __nv_bfloat16*>(args.down);
  params.pair_weights = args.pair_weights;
  params.ids = args.ids;
  params.top_k = args.top_k;
  params.num_experts = args.num_experts;
  params.size = args.size;
  params.inner_size = args.inner_size;
  params.rows = rows;
  params.gate = args.gate;
  const int up_blocks = (args.inner_size + experts::kUpWarps - 1) / experts::kUpWarps;
  launch(experts::token_up_kernel, params, dim3(up_blocks, args.num_tokens * args.top_k), experts::kUpWarps * 32, 0,
         args.dependent, args.stream);
  check_cuda(cudaFuncSetAttribute(experts::token_down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
  const int down_blocks = (args.size + rows - 1) / rows;
  launch(experts::token_down_kernel, params, dim3(down_blocks, args.num_tokens), experts::kDownWarps * 32, shared,
         args.dependent, args.stream);
}

}  // namespace llm_kernels::cuda
