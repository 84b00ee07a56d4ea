// Launches decode attention in even shares: chooses the instances of both kernels. Knows no framework.
#include "cuda/decode/even_kernel.cuh"
#include "cuda/decode/launch.cuh"

namespace llm_kernels::cuda {
namespace decode {
namespace {

template <class T, class C, int D, int Octets, int Warps, int Stages>
cudaError_t launch_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  static std::atomic<std::uint64_t> raised{0};
  auto* kernel = even_kernel<T, C, D, Octets, Warps, Stages>;
  constexpr int shared_bytes = EvenKernel<T, C, D, Octets, Warps, Stages>::kSharedBytes;
  cudaError_t status = raise_limits(kernel, shared_bytes, raised);
  if (status != cudaSuccess) return status;
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
  status = cudaLaunchKernelEx(&config, kernel, args);
  if (status != cudaSuccess) return status;
  const int num_warps = args.num_blocks * Warps;
  config.gridDim = dim3((num_warps + 3) / 4);
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = 0;
  return cudaLaunchKernelEx(&config, combine_even_kernel<T, C, D, Octets>, args, num_warps);
}

template <class T, class C, int Octets>
cudaError_t launch_config(const EvenDecodeArgs& args, cudaStream_t stream) {
  if (args.call.warps == 1 && args.stages == 3) return launch_even<T, C, 128, Octets, 1, 3>(args, stream);
  if (args.call.warps == 1 && args.stages == 4) return launch_even<T, C, 128, Octets, 1, 4>(args, stream);
  if (args.call.warps == 1 && args.stages == 6) return launch_even<T, C, 128, Octets, 1, 6>(args, stream);
  if (args.call.warps == 4 && args.stages == 3) return launch_even<T, C, 128, Octets, 4, 3>(args, stream);
  if (args.call.warps == 4 && args.stages == 6) return launch_even<T, C, 128, Octets, 4, 6>(args, stream);
  if (args.call.warps == 8 && args.stages == 3) return launch_even<T, C, 128, Octets, 8, 3>(args, stream);
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace decode

cudaError_t decode_attention_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  using bf16 = __nv_bfloat16;
  using e4m3 = __nv_fp8_e4m3;
  if (args.call.head_size != 128 || args.call.is_half) return cudaErrorInvalidValue;
  const bool one = even_octets(args.call.num_heads / args.call.num_kv_heads) == 1;
  if (args.call.is_float8_cache) {
    return one ? decode::launch_config<bf16, e4m3, 1>(args, stream) : decode::launch_config<bf16, e4m3, 2>(args, stream);
  }
  return one ? decode::launch_config<bf16, bf16, 1>(args, stream) : decode::launch_config<bf16, bf16, 2>(args, stream);
}

}  // namespace llm_kernels::cuda
