// Launches the decode kernel: which instance, clusters, shared memory. Knows no framework.
#include <atomic>

#include "cuda/decode/decode_kernel.cuh"
#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda {
namespace {

using decode::decode_kernel;
using decode::DecodeKernel;

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

template <class T, class C, int D, bool Wide>
cudaError_t launch(const DecodeAttentionArgs& args, cudaStream_t stream) {
  static std::atomic<std::uint64_t> raised{0};
  constexpr int shared_bytes = DecodeKernel<T, C, D>::kSharedBytes;
  const cudaError_t status = raise_limits(decode_kernel<T, C, D, Wide>, shared_bytes, raised);
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
  config.blockDim = dim3(decode::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, decode_kernel<T, C, D, Wide>, args);
}

template <class T, class C, int D>
cudaError_t launch_for_group(const DecodeAttentionArgs& args, cudaStream_t stream) {
  if (args.num_heads / args.num_kv_heads <= 8) return launch<T, C, D, false>(args, stream);
  return launch<T, C, D, true>(args, stream);
}

template <class T, class C>
cudaError_t launch_for_size(const DecodeAttentionArgs& args, cudaStream_t stream) {
  switch (args.head_size) {
    case 64:
      return launch_for_group<T, C, 64>(args, stream);
    case 128:
      return launch_for_group<T, C, 128>(args, stream);
    case 256:
      return launch_for_group<T, C, 256>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template <class T>
cudaError_t launch_for_cache(const DecodeAttentionArgs& args, cudaStream_t stream) {
  if (args.is_float8_cache) return launch_for_size<T, __nv_fp8_e4m3>(args, stream);
  return launch_for_size<T, T>(args, stream);
}

}  // namespace

bool has_decode_attention(int head_size) { return head_size == 64 || head_size == 128 || head_size == 256; }

cudaError_t decode_attention(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return args.is_half ? launch_for_cache<__half>(args, stream) : launch_for_cache<__nv_bfloat16>(args, stream);
}

}  // namespace llm_kernels::cuda
