// Launches decode attention in even shares: chooses the instance of the kernel. Knows no framework.
#include "cuda/decode/even_kernel.cuh"
#include "cuda/decode/launch.cuh"
#include "cuda/tensor_map.h"

namespace llm_kernels::cuda {
namespace decode {
namespace {

template <class C, int D>
CUtensorMap encode_tile_map(const EvenDecodeArgs& args, const DecodeCache& cache) {
  using Tile = EvenTile<C, D>;
  const std::int64_t bytes = sizeof(C);
  const MapDimension outer[] = {{args.call.block_size, cache.stride_token * bytes, kDecodeKeys},
                                {Tile::kPanels, Tile::kPanelBytes, Tile::kPanels},
                                {args.call.num_kv_heads, cache.stride_head * bytes, 1},
                                {args.num_cache_blocks, cache.stride_block * bytes, 1}};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, cache.data, Tile::kPanelBytes, Tile::kPanelBytes, outer, 4,
                    Tile::kPanelBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

constexpr int kStages = 3;

template <class T, class C, int D, int Octets>
cudaError_t launch_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  static std::atomic<std::uint64_t> raised{0};
  auto* kernel = even_kernel<T, C, D, Octets, kEvenWarps, kStages>;
  constexpr int shared_bytes = EvenKernel<T, C, D, Octets, kEvenWarps, kStages>::kSharedBytes;
  const cudaError_t status = raise_limits(kernel, shared_bytes, raised);
  if (status != cudaSuccess) return status;
  const EvenMaps maps{encode_tile_map<C, D>(args, args.call.key), encode_tile_map<C, D>(args, args.call.value)};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(args.num_blocks);
  config.blockDim = dim3(32 * kEvenWarps);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args, maps);
}

template <class T, class C>
cudaError_t launch_octets(const EvenDecodeArgs& args, cudaStream_t stream) {
  return even_octets(args.call.num_heads / args.call.num_kv_heads) == 1 ? launch_even<T, C, 128, 1>(args, stream)
                                                                        : launch_even<T, C, 128, 2>(args, stream);
}

}  // namespace
}  // namespace decode

cudaError_t decode_attention_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  using bf16 = __nv_bfloat16;
  using e4m3 = __nv_fp8_e4m3;
  if (args.call.head_size != 128 || args.call.is_half) return cudaErrorInvalidValue;
  return args.call.is_float8_cache ? decode::launch_octets<bf16, e4m3>(args, stream)
                                   : decode::launch_octets<bf16, bf16>(args, stream);
}

}  // namespace llm_kernels::cuda
