// The kernel of up to 8 tokens and float8 weights: these are read with 16-byte loads straight into the registers that
// are widened to the A operand of mma, the first of them while earlier kernels still run. Knows nothing of plans and
// launches.
//
// The eight warps of a block share 8 or 16 rows of W and cut I among themselves. Lane (g, t) of a warp reads 16 bytes
// at byte 16 t of the warp's next 64 of rows g and g + 8. A sum does not mind the order of its terms: which column of I
// stands where in the fragment is chosen so that each lane's 16 bytes are its own part of it, and the tokens are laid
// into shared memory in the same order.
#pragma once

#include <cuda_bf16.h>

#include "cuda/hopper.cuh"
#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/tokens.cuh"

namespace llm_kernels::cuda {

constexpr int kUnitBytes = 64;  // of a row, read by a warp at once

struct FragmentParams {
  Epilogue epilogue;
  TokenParams tokens;
  const std::uint8_t* weight;
  std::int64_t row_bytes;  // between rows of W
  const float* scale;      // of 128 x 128 blocks, else null
  std::int64_t scale_stride;
  int up_row;      // with a gate: first row of the up half
  int num_groups;  // of rows
};

enum class FragmentRows { kEight, kSixteen, kGateAndUp };  // of W in a group; with a gate eight of each half

// Tokens one after the other, times 2^64 and, of each four columns, 0 and 2 before 1 and 3.
struct FragmentPlace {
  uint4* tokens;
  int stride;  // pieces of 16 bytes
  __device__ uint4* at(int token, int piece) const { return tokens + token * stride + piece; }
  __device__ uint4 order(const uint4& v) const {
    return {times_2_to_64(__byte_perm(v.x, v.y, 0x5410)), times_2_to_64(__byte_perm(v.x, v.y, 0x7632)),
            times_2_to_64(__byte_perm(v.z, v.w, 0x5410)), times_2_to_64(__byte_perm(v.z, v.w, 0x7632))};
  }
  static __device__ unsigned times_2_to_64(unsigned pair) {
    unsigned value;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(value) : "r"(pair), "r"(0x5F805F80u));
    return value;
  }
};

// `Unroll` units are under way in each warp.
template <int Unroll, FragmentRows Rows, bool BlockScale>
struct FragmentKernel {
  static constexpr bool kBoth = Rows != FragmentRows::kEight;  // rows g + 8 too
  static constexpr int kColumns = kUnitBytes;                  // of a unit
  static constexpr int kLaneColumns = kColumns / 4;
  static constexpr int kRows = kBoth ? 16 : 8;
  static constexpr int kOutRows = Rows == FragmentRows::kSixteen ? 16 : 8;  // of the output in a group
  static constexpr int kSums = kRows * 8;                                   // of a warp

  struct Slot {
    uint4 low, high;  // rows g and g + 8
    float scale[2];
  };

  // Where a warp is: a group of rows, and its units there.
  struct Place {
    const std::uint8_t *low, *high;  // this lane's bytes of unit 0
    int low_row, high_row;
  };

  static __device__ Place place_of(const FragmentParams& p, int group) {
    const int lane = threadIdx.x % 32, last = p.epilogue.num_rows - 1, row = group * kOutRows + lane / 4;
    Place place;
    place.low_row = min(row, last);  // rows beyond the end: read something, keep nothing
    place.high_row = Rows == FragmentRows::kGateAndUp ? place.low_row + p.up_row : min(row + 8, last);
    place.low = p.weight + place.low_row * p.row_bytes + lane % 4 * 16;
    place.high = p.weight + place.high_row * p.row_bytes + lane % 4 * 16;
    return place;
  }

  // Whether this lane's columns of a unit are there.
  static __device__ bool inside(const FragmentParams& p, int unit) {
    return unit * kColumns + threadIdx.x % 4 * kLaneColumns < p.tokens.in_size;
  }

  static __device__ void load(Slot& slot, const FragmentParams& p, const Place& place, int unit) {
    const bool there = inside(p, unit);
    slot.low = there ? read_once(place.low + unit * kUnitBytes) : uint4{0, 0, 0, 0};
    if constexpr (kBoth) slot.high = there ? read_once(place.high + unit * kUnitBytes) : uint4{0, 0, 0, 0};
    if constexpr (BlockScale) {
      const int column = unit * kColumns / 128;
      slot.scale[0] = __ldg(p.scale + place.low_row / 128 * p.scale_stride + column);
      slot.scale[1] = __ldg(p.scale + place.high_row / 128 * p.scale_stride + column);
    }
  }

  // Four e4m3 values as two pairs of bfloat16, times 2^-120: bytes 0 and 2, bytes 1 and 3.
  static __device__ uint2 widen(unsigned bytes) {
    const unsigned even = ((bytes << 8) & 0x80008000u) | ((bytes << 4) & 0x07F007F0u);
    const unsigned odd = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07F007F0u);
    return {even, odd};
  }

  // 16 columns: four bytes of rows g and g + 8 each, and a token's pairs that go with them.
  static __device__ void multiply(float (&sum)[4], unsigned low, unsigned high, unsigned first, unsigned second) {
    const uint2 a = widen(low), b = kBoth ? widen(high) : uint2{0, 0};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(first), "r"(second));
  }

  // Pieces of 16 bytes between two tokens in shared memory: eight lanes that read at once find eight banks of 16 bytes.
  static __host__ __device__ int token_stride(int in_size) { return (in_size / 8 + 6) / 8 * 8 + 1; }

  static __device__ void consume(float (&sum)[4], const FragmentParams& p, const Slot& slot, const uint4* tokens,
                                 int stride, int unit) {
    const int lane = threadIdx.x % 32, token = lane / 4, at = token * stride + (unit * 4 + lane % 4) * 2;
    const bool real = token < p.tokens.num_tokens && inside(p, unit);
    const uint4 first = real ? tokens[at] : uint4{0, 0, 0, 0}, second = real ? tokens[at + 1] : uint4{0, 0, 0, 0};
    multiply(sum, slot.low.x, slot.high.x, first.x, first.y);
    multiply(sum, slot.low.y, slot.high.y, first.z, first.w);
    multiply(sum, slot.low.z, slot.high.z, second.x, second.y);
    multiply(sum, slot.low.w, slot.high.w, second.z, second.w);
  }

  // Adds up what the warps found of a group and stores it. `sums`: [warps][tokens][rows].
  static __device__ void finish(const FragmentParams& p, const float* sums, int group) {
    for (int i = threadIdx.x; i < kOutRows * p.tokens.num_tokens; i += kRowWarps * 32) {
      const int token = i / kOutRows, row = i % kOutRows, out_row = group * kOutRows + row;
      if (out_row >= p.epilogue.num_rows) continue;
      const float value = total(sums + token * kRows + row);
      if constexpr (Rows == FragmentRows::kGateAndUp) {
        p.epilogue.store_gated_one(token, out_row, value, total(sums + token * kRows + row + 8), p.up_row);
      } else {
        p.epilogue.store_one(token, out_row, value);
      }
    }
  }

  static __device__ float total(const float* sums) {
    float value = sums[0];
#pragma unroll
    for (int warp = 1; warp < kRowWarps; ++warp) value += sums[warp * kSums];
    return value * 0x1p56f;  // 2^120 of the weights less 2^64 of the tokens
  }

  static __device__ void lay_down(const float (&sum)[4], float* sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* mine = sums + warp * kSums + lane % 4 * 2 * kRows + lane / 4;
    mine[0] = sum[0];
    mine[kRows] = sum[1];
    if constexpr (kBoth) {
      mine[8] = sum[2];
      mine[kRows + 8] = sum[3];
    }
  }

  // A unit, with the scale of its blocks where there are such.
  static __device__ void add_unit(float (&sum)[4], const FragmentParams& p, const Slot& slot, const uint4* tokens,
                                  int stride, int unit) {
    if constexpr (BlockScale) {
      float part[4] = {};
      consume(part, p, slot, tokens, stride, unit);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] = fmaf(part[e], slot.scale[e / 2], sum[e]);
    } else {
      consume(sum, p, slot, tokens, stride, unit);
    }
  }

  static __device__ void run(const FragmentParams& p) {
    extern __shared__ uint4 shared[];
    const int stride = token_stride(p.tokens.in_size);
    float* sums = reinterpret_cast<float*>(shared);  // two, taken in turns
    uint4* tokens = shared + 2 * kRowWarps * kSums / 4;
    const int warp = threadIdx.x / 32, units = (p.tokens.in_size + kColumns - 1) / kColumns;
    const int first = units * warp / kRowWarps, count = units * (warp + 1) / kRowWarps - first;
    Slot slots[Unroll];
    int group = blockIdx.x;
    Place place = place_of(p, group);
#pragma unroll
    for (int at = 0; at < Unroll; ++at) {
      if (at < count) load(slots[at], p, place, first + at);
    }
    let_next_kernel_start();
    wait_for_earlier_kernels();
    fetch_tokens(p.tokens, FragmentPlace{tokens, stride});
    __syncthreads();
    for (int turn = 0; group < p.num_groups; turn ^= 1) {
      const int next_group = group + gridDim.x;
      float sum[4] = {};
      for (int base = 0; base < count; base += Unroll) {
        const bool ends = base + Unroll >= count;  // then the loads are of the next group
        const int next_base = ends ? 0 : base + Unroll;
        if (ends && next_group < p.num_groups) place = place_of(p, next_group);
#pragma unroll
        for (int at = 0; at < Unroll; ++at) {
          if (base + at < count) add_unit(sum, p, slots[at], tokens, stride, first + base + at);
          if (next_base + at < count && (!ends || next_group < p.num_groups)) {
            load(slots[at], p, place, first + next_base + at);
          }
        }
      }
      float* turn_sums = sums + turn * kRowWarps * kSums;
      lay_down(sum, turn_sums);
      __syncthreads();
      finish(p, turn_sums, group);
      group = next_group;
    }
  }
};

template <int Unroll, FragmentRows Rows, bool BlockScale>
__global__ void __launch_bounds__(kRowWarps * 32) fragment_kernel(const __grid_constant__ FragmentParams params) {
  FragmentKernel<Unroll, Rows, BlockScale>::run(params);
}

}  // namespace llm_kernels::cuda
