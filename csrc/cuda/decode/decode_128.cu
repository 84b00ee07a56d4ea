// Decode attention at head size 128.
#include "cuda/decode/launch.cuh"

namespace llm_kernels::cuda::decode {
namespace {

// Blocks of another number of warps: more where rows are few, fewer where they are many.
template <class C>
cudaError_t launch_warps(const DecodeAttentionArgs& args, cudaStream_t stream) {
  using T = __nv_bfloat16;
  switch (args.warps) {
    case 1:
      return launch<T, C, 128, false, 1, 2>(args, stream);
    case 2:
      return launch<T, C, 128, false, 2, 3>(args, stream);
    case 8:
      return launch<T, C, 128, false, 8, 3>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_128(const DecodeAttentionArgs& args, cudaStream_t stream) {
  if (args.warps != 4 && !args.is_half && args.num_heads / args.num_kv_heads <= 8) {
    return args.is_float8_cache ? launch_warps<__nv_fp8_e4m3>(args, stream) : launch_warps<__nv_bfloat16>(args, stream);
  }
  return launch_for_size<128>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
