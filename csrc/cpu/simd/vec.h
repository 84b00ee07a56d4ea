// Vectors of float32 in the width of the instruction set this file is compiled for, on GCC's vector extensions.
// Included only by *.isa.cc files, each compiled once per instruction set with LLM_ISA naming its namespace.
// Such files use no inline function of the standard library: the linker could pick the copy that was compiled for
// an instruction set the processor lacks.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef LLM_ISA
#error "compile *.isa.cc files through CMake, which defines LLM_ISA"
#endif

namespace llm_kernels {
namespace LLM_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t VecH __attribute__((vector_size(kLanes * 2)));

struct bf16 {
  std::uint16_t bits;
};

#define LLM_INLINE static inline __attribute__((always_inline))

LLM_INLINE VecF splat(float value) { return value - VecF{}; }

LLM_INLINE VecF load(const float* from) {
  VecF value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

LLM_INLINE VecF load(const bf16* from) {
  VecH half;
  std::memcpy(&half, from, sizeof(half));
  const VecU wide = __builtin_convertvector(half, VecU) << 16;
  return (VecF)wide;
}

LLM_INLINE void store(float* to, VecF value) { std::memcpy(to, &value, sizeof(value)); }

// Rounds to nearest even; a NaN stays one.
LLM_INLINE void store(bf16* to, VecF value) {
  const VecU bits = (VecU)value;
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecU nan = (bits >> 16) | 0x40u;
  const VecU chosen = (VecU)(value == value) & rounded | ~(VecU)(value == value) & nan;
  const VecH half = __builtin_convertvector(chosen, VecH);
  std::memcpy(to, &half, sizeof(half));
}

LLM_INLINE float to_float(float value) { return value; }
LLM_INLINE float to_float(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

LLM_INLINE void from_float(float* to, float value) { *to = value; }
LLM_INLINE void from_float(bf16* to, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  to->bits = static_cast<std::uint16_t>(value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16
                                                       : (bits >> 16) | 0x40u);
}

// Fewer values than a vector has, and zeros.
template <class T>
LLM_INLINE VecF load_rest(const T* from, std::int64_t count) {
  float values[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) values[i] = to_float(from[i]);
  return load(values);
}

LLM_INLINE VecF select(VecI mask, VecF yes, VecF no) { return (VecF)((mask & (VecI)yes) | (~mask & (VecI)no)); }
LLM_INLINE VecF max(VecF a, VecF b) { return select(a > b, a, b); }
LLM_INLINE VecF min(VecF a, VecF b) { return select(a < b, a, b); }

typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec8 __attribute__((vector_size(32)));

// The sums of every fourth lane.
LLM_INLINE Vec4 fold(VecF value) {
#if defined(__AVX512F__)
  const Vec8 half = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif defined(__AVX2__)
  return __builtin_shufflevector(value, value, 0, 1, 2, 3) + __builtin_shufflevector(value, value, 4, 5, 6, 7);
#else
  return value;
#endif
}

LLM_INLINE float horizontal_sum(VecF value) {
  const Vec4 sums = fold(value);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The horizontal sums of four vectors, side by side.
LLM_INLINE Vec4 horizontal_sums(VecF a, VecF b, VecF c, VecF d) {
  const Vec4 fa = fold(a), fb = fold(b), fc = fold(c), fd = fold(d);
  const Vec4 ab = __builtin_shufflevector(fa, fb, 0, 4, 1, 5) + __builtin_shufflevector(fa, fb, 2, 6, 3, 7);
  const Vec4 cd = __builtin_shufflevector(fc, fd, 0, 4, 1, 5) + __builtin_shufflevector(fc, fd, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

LLM_INLINE float horizontal_max(VecF value) {
  float best = value[0];
  for (int i = 1; i < kLanes; ++i) best = value[i] > best ? value[i] : best;
  return best;
}

// exp with a relative error near 1e-7; 0 below -87.3 (so that exp(-inf) is 0), finite above 88; NaN stays NaN.
LLM_INLINE VecF exp(VecF x) {
  const VecI underflow = x < splat(-87.33f);
  const VecF clamped = min(max(x, splat(-87.33f)), splat(88.02f));
  const VecF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF shifted = clamped * 1.44269504088896341f + magic;
  const VecF n = shifted - magic;
  const VecF r = (clamped - n * 0.693145751953125f) - n * 1.42860682030941723212e-6f;
  VecF p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const VecI exponent = (((VecI)shifted - (VecI)magic) + 127) << 23;
  return select(x == x, select(underflow, VecF{}, p * (VecF)exponent), x);
}

// tanh with an absolute error near 1e-7.
LLM_INLINE VecF tanh(VecF x) {
  const VecF bounded = select(x == x, min(max(x, splat(-20.0f)), splat(20.0f)), x);
  return 1.0f - 2.0f / (exp(bounded * 2.0f) + 1.0f);
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
