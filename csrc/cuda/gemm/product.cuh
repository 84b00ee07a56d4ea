// wgmma of bfloat16 or e4m3 into float32 over 64 rows of A and N rows of B, both K-major in shared memory, 32 bytes of
// each row at a time. Knows nothing about tiles. One macro line per width.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace llm_kernels::cuda::gemm {

// sum += A B^T, by the descriptors of both.
template <class Element, int N>
struct Product;

// clang-format off
#define LLM_TEN(T) "%" #T "0, %" #T "1, %" #T "2, %" #T "3, %" #T "4, "                                              \
  "%" #T "5, %" #T "6, %" #T "7, %" #T "8, %" #T "9, "
#define LLM_REGISTERS_32 LLM_TEN() LLM_TEN(1) LLM_TEN(2) "%30, %31"
#define LLM_REGISTERS_48 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define LLM_REGISTERS_64 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) LLM_TEN(4) LLM_TEN(5) "%60, %61, %62, %63"
#define LLM_REGISTERS_80 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) LLM_TEN(4) LLM_TEN(5) LLM_TEN(6)                 \
  "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define LLM_REGISTERS_96 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) LLM_TEN(4) LLM_TEN(5) LLM_TEN(6) LLM_TEN(7)      \
  LLM_TEN(8) "%90, %91, %92, %93, %94, %95"
#define LLM_REGISTERS_112 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) LLM_TEN(4) LLM_TEN(5) LLM_TEN(6) LLM_TEN(7)     \
  LLM_TEN(8) LLM_TEN(9) LLM_TEN(10) "%110, %111"
#define LLM_REGISTERS_128 LLM_TEN() LLM_TEN(1) LLM_TEN(2) LLM_TEN(3) LLM_TEN(4) LLM_TEN(5) LLM_TEN(6) LLM_TEN(7)     \
  LLM_TEN(8) LLM_TEN(9) LLM_TEN(10) LLM_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define LLM_F4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define LLM_F16(I) LLM_F4(I), LLM_F4(I + 4), LLM_F4(I + 8), LLM_F4(I + 12)
#define LLM_F32(I) LLM_F16(I), LLM_F16(I + 16)
#define LLM_PRODUCT(TYPE, NAME, STEP, TAIL, N, REGISTERS, A, B, ...)                                                  \
  template <>                                                                                                        \
  struct Product<TYPE, N> {                                                                                          \
    static __device__ __forceinline__ void run(float (&d)[N / 2], std::uint64_t a, std::uint64_t b) {                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N STEP ".f32." NAME "." NAME " {" REGISTERS "}, " A ", " B   \
                   ", p, 1, 1" TAIL ";\n}\n"                                                                         \
                   : __VA_ARGS__                                                                                     \
                   : "l"(a), "l"(b));                                                                                \
    }                                                                                                                \
  };
#define LLM_PRODUCTS(TYPE, NAME, STEP, TAIL)                                                                         \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 64, LLM_REGISTERS_32, "%32", "%33", LLM_F32(0))                                \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 96, LLM_REGISTERS_48, "%48", "%49", LLM_F32(0), LLM_F16(32))                   \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 128, LLM_REGISTERS_64, "%64", "%65", LLM_F32(0), LLM_F32(32))                  \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 160, LLM_REGISTERS_80, "%80", "%81", LLM_F32(0), LLM_F32(32), LLM_F16(64))     \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 192, LLM_REGISTERS_96, "%96", "%97", LLM_F32(0), LLM_F32(32), LLM_F32(64))     \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 224, LLM_REGISTERS_112, "%112", "%113", LLM_F32(0), LLM_F32(32), LLM_F32(64),  \
              LLM_F16(96))                                                                                           \
  LLM_PRODUCT(TYPE, NAME, STEP, TAIL, 256, LLM_REGISTERS_128, "%128", "%129", LLM_F32(0), LLM_F32(32), LLM_F32(64),  \
              LLM_F32(96))

LLM_PRODUCTS(__nv_bfloat16, "bf16", "k16", ", 0, 0")
LLM_PRODUCTS(__nv_fp8_e4m3, "e4m3", "k32", "")

#undef LLM_PRODUCTS
#undef LLM_PRODUCT
#undef LLM_F32
#undef LLM_F16
#undef LLM_F4
#undef LLM_REGISTERS_128
#undef LLM_REGISTERS_112
#undef LLM_REGISTERS_96
#undef LLM_REGISTERS_80
#undef LLM_REGISTERS_64
#undef LLM_REGISTERS_48
#undef LLM_REGISTERS_32
#undef LLM_TEN
// clang-format on

// The descriptor of a tile whose rows are 128 bytes, swizzled, eight rows 1,024 bytes apart.
__device__ __forceinline__ std::uint64_t tile_descriptor(std::uint32_t address) {
  constexpr std::uint64_t layout = (1ull << 62) | (64ull << 32) | (1ull << 16);
  return layout | ((address & 0x3FFFF) >> 4);
}

}  // namespace llm_kernels::cuda::gemm
