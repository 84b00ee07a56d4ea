// Launches the products of few pairs an expert: checks what they do not take, the tensor map, the grid.

#include "llm_kernels/cuda/pairs_gemm.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/experts/pairs_kernel.cuh"
#include "cuda/tensor_map.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("pairs_gemm: ") + cudaGetErrorString(error));
}

template <class Config>
void launch(const PairsGemmArgs& args) {
  experts::PairsParams params{};
  params.out = static_cast<__nv_bfloat16*>(args.out);
  params.out_stride = args.out_stride;
  params.x = static_cast<const char*>(args.x);
  params.x_stride_bytes = args.x_stride * 2;
  params.pair_weights = args.pair_weights;
  params.ids = args.ids;
  params.num_pairs = args.num_pairs;
  params.num_experts = args.num_experts;
  params.pairs_of_row = Config::kGated ? args.top_k : 1;
  params.out_size = Config::kGated ? args.out_size / 2 : args.out_size;
  params.num_tiles = (params.out_size + Config::kOutColumns - 1) / Config::kOutColumns;
  params.num_steps = (args.in_size * 2 + Config::kStep - 1) / Config::kStep;
  params.row_bytes = args.in_size * 2;
  params.gate = args.gate;
  params.guesses = args.num_pairs >= 2 * args.num_experts;
  const MapDimension outer[2] = {{args.out_size, args.in_size * 2, 64},
                                 {args.num_experts, static_cast<std::int64_t>(args.out_size) * args.in_size * 2, 1}};
  const CUtensorMap weight_map = encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, args.weight, args.in_size,
                                            Config::kStep / 2, outer, 2);
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto kernel = experts::pairs_kernel<Config>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Config::shared_bytes(kMostPairs, kMostPairsExperts)));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(processors, args.num_experts * params.num_tiles));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = Config::shared_bytes(args.num_pairs, args.num_experts);
  config.stream = args.stream;
  config.attrs = &early;
  config.numAttrs = args.dependent ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params, weight_map));
}

}  // namespace

void pairs_gemm(const PairsGemmArgs& args) {
  if (args.in_size < 8 || args.in_size % 8 != 0) throw ArgumentError("weight_NOI", "expected I a multiple of 8");
  const int columns = args.gate == GroupedGate::kNone ? 8 : 16;
  if (args.out_size < columns || args.out_size % columns != 0) {
    throw ArgumentError("weight_NOI", "expected O a multiple of " + std::to_string(columns));
  }
  if (args.num_pairs > kMostPairs) throw ArgumentError("ids", "expected up to 4096 pairs");
  if (args.num_experts < 1 || args.num_experts > kMostPairsExperts) {
    throw ArgumentError("weight_NOI", "expected 1 to 512 experts");
  }
  if (args.top_k < 1) throw ArgumentError("top_k", "expected 1 or more");
  if (args.num_pairs == 0) return;
  if (args.gate != GroupedGate::kNone) return launch<experts::PairsConfig<true>>(args);
  return launch<experts::PairsConfig<false>>(args);
}

}  // namespace llm_kernels::cuda
