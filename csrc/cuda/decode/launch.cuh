// Launches one instance of the decode kernel: clusters, shared memory, early start. Knows no framework.
#pragma once

#include <atomic>

#include "cuda/decode/decode_kernel.cuh"
#include "cuda/decode/instances.h"

namespace llm_kernels::cuda::decode {

// Raises the kernel's limits once a device: shared memory, clusters of more than eight blocks.
template <class Kernel>
cudaError_t raise_limits(Kernel* kernel, int shared_bytes, std::atomic<std::uint64_t>& done) {
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  const std::uint64_t bit = 1ull << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (status == cudaSuccess) done.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

template <class T, class C, int D, bool Wide, int Warps, int Stages>
cudaError_t launch(const DecodeAttentionArgs& args, cudaStream_t stream) {
  static std::atomic<std::uint64_t> raised{0};
  auto* kernel = decode_kernel<T, C, D, Wide, Warps, Stages>;
  constexpr int shared_bytes = DecodeKernel<T, C, D, Warps, Stages>::kSharedBytes;
  const cudaError_t status = raise_limits(kernel, shared_bytes, raised);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = args.splits;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(args.splits, args.num_kv_heads, args.num_rows);
  config.blockDim = dim3(32 * Warps);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <class T, class C, int D>
cudaError_t launch_for_group(const DecodeAttentionArgs& args, cudaStream_t stream) {
  const bool is_wide = args.num_heads / args.num_kv_heads > 8;
  return is_wide ? launch<T, C, D, true, 4, 3>(args, stream) : launch<T, C, D, false, 4, 3>(args, stream);
}

template <class T, int D>
cudaError_t launch_for_cache(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return args.is_float8_cache ? launch_for_group<T, __nv_fp8_e4m3, D>(args, stream)
                              : launch_for_group<T, T, D>(args, stream);
}

template <int D>
cudaError_t launch_for_size(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return args.is_half ? launch_for_cache<__half, D>(args, stream) : launch_for_cache<__nv_bfloat16, D>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
