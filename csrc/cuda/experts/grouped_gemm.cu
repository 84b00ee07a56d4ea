// Launches the products with experts' weights: checks what they do not take, tensor maps, grid.

#include "llm_kernels/cuda/grouped_gemm.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/experts/grouped_kernel.cuh"
#include "cuda/tensor_map.h"
#include "llm_kernels/common.h"

namespace llm_kernels::cuda {
namespace {

using experts::GroupedConfig;
using experts::GroupedParams;

void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("grouped_gemm: ") + cudaGetErrorString(error));
}

int num_processors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

CUtensorMap map_of(const GroupedGemmArgs& args, const void* data, std::int64_t rows, std::int64_t stride,
                   std::int64_t matrices, int box_rows) {
  const int size = args.is_float8 ? 1 : 2;
  const MapDimension outer[2] = {{rows, stride * size, box_rows}, {matrices, rows * stride * size, 1}};
  return encode_map(args.is_float8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data,
                    args.in_size, experts::kStepBytes / size, outer, 2);
}

template <class Config>
void launch(const GroupedGemmArgs& args) {
  const int size = args.is_float8 ? 1 : 2;
  GroupedParams params{};
  params.out = static_cast<__nv_bfloat16*>(args.out);
  params.out_stride = args.out_stride;
  params.x = static_cast<const char*>(args.x);
  params.x_stride_bytes = args.x_stride * size;
  params.x_scale = args.x_scale;
  params.weight_scale = args.weight_scale;
  params.pair_weights = args.pair_weights;
  params.pairs = args.pairs;
  params.block_experts = args.block_experts;
  params.num_pairs = args.num_pairs;
  params.num_blocks = args.num_blocks;
  params.top_k = args.top_k;
  params.out_size = Config::kGated ? args.out_size / 2 : args.out_size;
  params.weight_rows = args.out_size;
  params.num_tiles = (params.out_size + Config::kOutColumns - 1) / Config::kOutColumns;
  params.num_steps = (args.in_size + Config::kStepColumns - 1) / Config::kStepColumns;
  params.row_bytes = args.in_size * size;
  const CUtensorMap weight_map =
      map_of(args, args.weight, args.out_size, args.in_size, args.num_experts, experts::kWeightRows / 2);
  const CUtensorMap rows_map = map_of(args, args.x, args.num_x_rows, args.x_stride, 1, experts::kGroupRows);
  const auto kernel = experts::grouped_kernel<Config>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(num_processors(), args.num_blocks * params.num_tiles));
  config.blockDim = dim3(experts::kThreads);
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = args.stream;
  config.attrs = &early;
  config.numAttrs = args.dependent ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params, rows_map, weight_map));
}

template <class Element>
void launch_for(const GroupedGemmArgs& args) {
  switch (args.gate) {
    case GroupedGate::kNone:
      return launch<GroupedConfig<Element, GroupedGate::kNone>>(args);
    case GroupedGate::kSilu:
      return launch<GroupedConfig<Element, GroupedGate::kSilu>>(args);
    case GroupedGate::kGelu:
      return launch<GroupedConfig<Element, GroupedGate::kGelu>>(args);
    case GroupedGate::kGeluTanh:
      return launch<GroupedConfig<Element, GroupedGate::kGeluTanh>>(args);
  }
}

void check(const GroupedGemmArgs& args) {
  const int unit = args.is_float8 ? 16 : 8, columns = args.gate == GroupedGate::kNone ? 8 : 16;
  if (args.in_size < unit || args.in_size % unit != 0) {
    throw ArgumentError("weight", "expected I a multiple of " + std::to_string(unit));
  }
  if (args.out_size < columns || args.out_size % columns != 0) {
    throw ArgumentError("weight", "expected O a multiple of " + std::to_string(columns));
  }
  if (args.top_k < 1) throw ArgumentError("top_k", "expected 1 or more");
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args) {
  check(args);
  if (args.num_blocks == 0) return;
  if (args.is_float8) return launch_for<__nv_fp8_e4m3>(args);
  return launch_for<__nv_bfloat16>(args);
}

}  // namespace llm_kernels::cuda
