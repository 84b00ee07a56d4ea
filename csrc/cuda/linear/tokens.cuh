// How tokens come into the shared memory of a block that multiplies all of them. Knows nothing of the product.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace llm_kernels::cuda {

constexpr int kRowWarps = 8;  // of a block
constexpr int kPiece = 8;     // columns of a 16-byte access

struct TokenParams {
  const __nv_bfloat16* x;
  std::int64_t x_stride;
  int in_size, num_tokens;
};

// Call once earlier kernels have ended; synchronise afterwards. `Place::at(token, piece)`: where 8 columns of a token
// go; `Place::order(v)`: the order they take there.
template <class Place>
__device__ void fetch_tokens(const TokenParams& p, Place place) {
  for (int token = 0; token < p.num_tokens; ++token) {
    const auto* from = reinterpret_cast<const uint4*>(p.x + token * p.x_stride);
    for (int i = threadIdx.x; i < p.in_size / kPiece; i += kRowWarps * 32) {
      *place.at(token, i) = place.order(__ldcg(from + i));
    }
  }
}

// 16 bytes of W, which are read once.
__device__ __forceinline__ uint4 read_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

}  // namespace llm_kernels::cuda
