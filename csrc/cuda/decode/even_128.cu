// Decode attention in even shares at head size 128.
#include "cuda/decode/even_launch.cuh"

namespace llm_kernels::cuda::decode {

cudaError_t launch_even_128(const EvenDecodeArgs& args, cudaStream_t stream) {
  using bf16 = __nv_bfloat16;
  using e4m3 = __nv_fp8_e4m3;
  if (!args.call.is_half && args.call.num_heads / args.call.num_kv_heads <= 8) {
    const bool small = args.call.is_float8_cache;
    if (args.call.warps == 4 && args.stages == 3) {
      return small ? launch_even<bf16, e4m3, 128, 1, 4, 3>(args, stream) : launch_even<bf16, bf16, 128, 1, 4, 3>(args, stream);
    }
    if (args.call.warps == 8 && args.stages == 2) {
      return small ? launch_even<bf16, e4m3, 128, 1, 8, 2>(args, stream) : launch_even<bf16, bf16, 128, 1, 8, 2>(args, stream);
    }
  }
  return launch_even_size<128>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
