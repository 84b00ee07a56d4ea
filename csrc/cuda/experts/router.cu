// The kernel that chooses by given logits, its launch and that of the router's kernel: checks what they do not take.

#include "llm_kernels/cuda/router.h"

#include <stdexcept>
#include <string>

#include "cuda/experts/router_kernel.cuh"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

constexpr int kChoiceWarps = 8;

struct LogitsParams {
  experts::ChoiceParams choice;
  const void* logits;
  std::int64_t stride;
  std::int32_t num_tokens;
};

template <int Experts, class Element>
__global__ void __launch_bounds__(kChoiceWarps * 32) choice_kernel(const __grid_constant__ LogitsParams p) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int token = blockIdx.x * kChoiceWarps + threadIdx.x / 32;
  if (token >= p.num_tokens) return;
  const Element* own = static_cast<const Element*>(p.logits) + token * p.stride;
  experts::choose<Experts>(p.choice, token, [own](int expert) { return static_cast<float>(own[expert]); });
}

experts::ChoiceParams choice_of(const Choice& given) {
  experts::ChoiceParams choice{};
  choice.weights = given.weights;
  choice.ids = given.ids;
  choice.correction = given.correction;
  choice.top_k = given.top_k;
  choice.scoring = given.scoring;
  choice.renormalize = given.renormalize;
  choice.renormalize_eps = given.renormalize_eps;
  choice.scale = given.scale;
  return choice;
}

template <class Params>
void enqueue(void (*kernel)(Params), const Params& params, int blocks, int threads, bool dependent,
             cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = dependent ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params);
  if (error != cudaSuccess) throw std::runtime_error(std::string("route: ") + cudaGetErrorString(error));
}

template <int Tiles>
void launch(const RouterArgs& args) {
  experts::RouterParams params{};
  params.choice = choice_of(args.choice);
  params.x = static_cast<const __nv_bfloat16*>(args.x);
  params.x_stride = args.x_stride;
  params.weight = static_cast<const __nv_bfloat16*>(args.weight);
  params.bias = static_cast<const __nv_bfloat16*>(args.bias);
  params.num_tokens = args.num_tokens;
  params.in_size = args.in_size;
  const int clusters = (args.num_tokens + experts::kRouterTokens - 1) / experts::kRouterTokens;
  enqueue(experts::router_kernel<Tiles>, params, clusters * experts::kRouterBlocks, experts::kRouterThreads,
          args.dependent, args.stream);
}

template <class Element>
void choose_by(const ChoiceArgs& args) {
  const LogitsParams params{choice_of(args.choice), args.logits, args.logits_stride, args.num_tokens};
  const int blocks = (args.num_tokens + kChoiceWarps - 1) / kChoiceWarps;
  const auto run = [&](auto* kernel) {
    enqueue<LogitsParams>(kernel, params, blocks, kChoiceWarps * 32, args.dependent, args.stream);
  };
  switch (args.num_experts) {
    case 64:
      return run(choice_kernel<64, Element>);
    case 128:
      return run(choice_kernel<128, Element>);
    case 256:
      return run(choice_kernel<256, Element>);
    case 512:
      return run(choice_kernel<512, Element>);
    default:
      throw ArgumentError("logits_TN", "expected 64, 128, 256 or 512 experts");
  }
}

void check(const Choice& choice, int num_experts) {
  if (choice.top_k < 1 || choice.top_k > kMostRouterChoices || choice.top_k > num_experts) {
    throw ArgumentError("top_k", "expected 1 to 32, and no more than experts");
  }
}

}  // namespace

void route(const RouterArgs& args) {
  if (args.in_size < experts::kUnit || args.in_size % experts::kUnit != 0) {
    throw ArgumentError("x_TE", "expected E a multiple of 32");
  }
  check(args.choice, args.num_experts);
  if (args.num_tokens == 0) return;
  switch (args.num_experts) {
    case 64:
      return launch<1>(args);
    case 128:
      return launch<2>(args);
    case 256:
      return launch<4>(args);
    case 512:
      return launch<8>(args);
    default:
      throw ArgumentError("router_NE", "expected 64, 128, 256 or 512 experts");
  }
}

void choose_experts(const ChoiceArgs& args) {
  check(args.choice, args.num_experts);
  if (args.num_tokens == 0) return;
  if (args.is_float32) return choose_by<float>(args);
  return choose_by<__nv_bfloat16>(args);
}

}  // namespace llm_kernels::cuda
