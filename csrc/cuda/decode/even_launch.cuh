// Launches one instance of the kernel of even shares: tensor maps, shared memory, early start. Knows no framework.
#pragma once

#include "cuda/decode/even_kernel.cuh"
#include "cuda/decode/instances.h"
#include "cuda/decode/launch.cuh"
#include "cuda/tensor_map.h"

namespace llm_kernels::cuda::decode {

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

template <class T, class C, int D, int Octets, int Warps, int Stages>
cudaError_t launch_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  static std::atomic<std::uint64_t> raised{0};
  auto* kernel = even_kernel<T, C, D, Octets, Warps, Stages>;
  constexpr int shared_bytes = EvenKernel<T, C, D, Octets, Warps, Stages>::kSharedBytes;
  const cudaError_t status = raise_limits(kernel, shared_bytes, raised);
  if (status != cudaSuccess) return status;
  const EvenMaps maps{encode_tile_map<C, D>(args, args.call.key), encode_tile_map<C, D>(args, args.call.value)};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(args.num_blocks);
  config.blockDim = dim3(32 * Warps);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args, maps);
}

// A block has as many warps as four fit the larger tiles of 16-bit numbers, or eight.
template <class C, int D>
constexpr int kEvenWarps = EvenTile<C, D>::kStageBytes > 8192 ? 4 : 8;

template <class T, class C, int D>
cudaError_t launch_even_octets(const EvenDecodeArgs& args, cudaStream_t stream) {
  constexpr int warps = kEvenWarps<C, D>;
  if (args.call.warps != warps || args.stages != 3) return cudaErrorInvalidValue;
  if (even_octets(args.call.num_heads / args.call.num_kv_heads) == 1) {
    return launch_even<T, C, D, 1, warps, 3>(args, stream);
  }
  if constexpr (D <= 128) {
    return launch_even<T, C, D, 2, warps, 3>(args, stream);
  } else {
    return cudaErrorInvalidValue;
  }
}

template <class T, int D>
cudaError_t launch_even_cache(const EvenDecodeArgs& args, cudaStream_t stream) {
  return args.call.is_float8_cache ? launch_even_octets<T, __nv_fp8_e4m3, D>(args, stream)
                                   : launch_even_octets<T, T, D>(args, stream);
}

template <int D>
cudaError_t launch_even_size(const EvenDecodeArgs& args, cudaStream_t stream) {
  return args.call.is_half ? launch_even_cache<__half, D>(args, stream)
                           : launch_even_cache<__nv_bfloat16, D>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
