// The kernel of up to 16 tokens: weights are read with 16-byte loads straight into the registers that mma takes as its A
// operand, the first of them while earlier kernels still run. Knows nothing of plans and launches.
//
// The eight warps of a block share 8 or 16 rows of W and cut I among themselves. Lane (g, t) of a warp reads 16 bytes at
// byte 16 t of the warp's next 64 of rows g and g + 8. A sum does not mind the order of its terms: which column of I
// stands where in the fragment is chosen so that each lane's 16 bytes are its own part of it, and the tokens are laid
// into shared memory in the same order.
#pragma once

#include <cuda_bf16.h>

#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/row_kernel.cuh"

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

// Tokens one after the other; for float8 times 2^64 and, of each four columns, 0 and 2 before 1 and 3.
template <bool Float8>
struct FragmentPlace {
  uint4* tokens;
  int stride;  // pieces of 16 bytes
  __device__ uint4* at(int token, int piece) const { return tokens + token * stride + piece; }
  __device__ uint4 order(const uint4& v) const {
    if constexpr (!Float8) return v;
    return {times_2_to_64(__byte_perm(v.x, v.y, 0x5410)), times_2_to_64(__byte_perm(v.x, v.y, 0x7632)),
            times_2_to_64(__byte_perm(v.z, v.w, 0x5410)), times_2_to_64(__byte_perm(v.z, v.w, 0x7632))};
  }
  static __device__ unsigned times_2_to_64(unsigned pair) {
    unsigned value;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(value) : "r"(pair), "r"(0x5F805F80u));
    return value;
  }
};

// `Tiles` * 8 tokens at most; `Unroll` units under way in each warp.
template <int Tiles, int Unroll, FragmentRows Rows, LinearWeight Kind, bool BlockScale>
struct FragmentKernel {
  static constexpr bool kFloat8 = Kind == LinearWeight::kFloat8;
  static constexpr bool kBoth = Rows != FragmentRows::kEight;  // rows g + 8 too
  static constexpr int kColumns = kFloat8 ? kUnitBytes : kUnitBytes / 2;  // of a unit
  static constexpr int kLaneColumns = kColumns / 4;
  static constexpr int kOutRows = Rows == FragmentRows::kSixteen ? 16 : 8;  // of the output in a group
  static constexpr int kSums = (kBoth ? 16 : 8) * 8 * Tiles;                // of a warp

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

  static __device__ uint4 read(const std::uint8_t* from) {
    return read_once(reinterpret_cast<const __nv_bfloat16*>(from));
  }

  static __device__ void load(Slot& slot, const FragmentParams& p, const Place& place, int unit) {
    const int lane = threadIdx.x % 32;
    const bool inside = unit * kColumns + lane % 4 * kLaneColumns < p.tokens.in_size;
    slot.low = inside ? read(place.low + unit * kUnitBytes) : uint4{0, 0, 0, 0};
    if constexpr (kBoth) slot.high = inside ? read(place.high + unit * kUnitBytes) : uint4{0, 0, 0, 0};
    if constexpr (BlockScale) {
      const int column = unit * kColumns / 128;
      slot.scale[0] = __ldg(p.scale + place.low_row / 128 * p.scale_stride + column);
      slot.scale[1] = __ldg(p.scale + place.high_row / 128 * p.scale_stride + column);
    }
  }

  static __device__ void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                  unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }

  // Four e4m3 values as two pairs of bfloat16, times 2^-120: bytes 0 and 2, bytes 1 and 3.
  static __device__ uint2 widen(unsigned bytes) {
    const unsigned even = ((bytes << 8) & 0x80008000u) | ((bytes << 4) & 0x07F007F0u);
    const unsigned odd = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07F007F0u);
    return {even, odd};
  }

  // One mma of every tile of tokens: words `low` and `high` of rows g and g + 8 are pairs or, in float8, four values.
  static __device__ void step(float (&sum)[Tiles][4], const uint2& low, const uint2& high,
                              const uint2 (&tokens)[Tiles]) {
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      multiply(sum[tile], low.x, high.x, low.y, high.y, tokens[tile].x, tokens[tile].y);
    }
  }

  // Pieces of 16 bytes between two tokens in shared memory: eight lanes that read at once find eight banks of 16 bytes.
  static __host__ __device__ int token_stride(int in_size) {
    const int pieces = in_size / 8;
    return kFloat8 ? (pieces + 6) / 8 * 8 + 1 : (pieces + 3) / 8 * 8 + 4;
  }

  static __device__ uint4 token_piece(const uint4* tokens, int at, bool real) {
    return real ? tokens[at] : uint4{0, 0, 0, 0};
  }

  // A unit: two mmas in bfloat16, four in float8.
  static __device__ void consume(float (&sum)[Tiles][4], const FragmentParams& p, const Slot& slot,
                                 const uint4* tokens, int row_pieces, int unit) {
    const int lane = threadIdx.x % 32;
    constexpr int pieces = kLaneColumns / 8;  // of 16 bytes, of a lane's columns of a token
    const bool inside = unit * kColumns + lane % 4 * kLaneColumns < p.tokens.in_size;
    uint4 piece[Tiles][pieces];
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const int token = tile * 8 + lane / 4, at = token * row_pieces + (unit * 4 + lane % 4) * pieces;
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
        piece[tile][i] = token_piece(tokens, at + i, inside && token < p.epilogue.num_tokens);
      }
    }
    const unsigned low[4] = {slot.low.x, slot.low.y, slot.low.z, slot.low.w};
    const unsigned high[4] = {slot.high.x, slot.high.y, slot.high.z, slot.high.w};
#pragma unroll
    for (int i = 0; i < 2 * pieces; ++i) {
      uint2 b[Tiles];
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        const uint4& from = piece[tile][i / 2];
        b[tile] = i % 2 == 0 ? uint2{from.x, from.y} : uint2{from.z, from.w};
      }
      if constexpr (kFloat8) {
        step(sum, widen(low[i]), kBoth ? widen(high[i]) : uint2{0, 0}, b);
      } else {
        const uint2 zero{0, 0};
        step(sum, {low[2 * i], low[2 * i + 1]}, kBoth ? uint2{high[2 * i], high[2 * i + 1]} : zero, b);
      }
    }
  }

  // Adds up what the warps found of a group and stores it. `sums`: [warps][tokens][rows].
  static __device__ void finish(const FragmentParams& p, const float* sums, int group) {
    constexpr int rows = kBoth ? 16 : 8;
    for (int i = threadIdx.x; i < kOutRows * p.epilogue.num_tokens; i += kRowWarps * 32) {
      const int token = i / kOutRows, row = i % kOutRows, out_row = group * kOutRows + row;
      if (out_row >= p.epilogue.num_rows) continue;
      const float value = total(sums + token * rows + row);
      if constexpr (Rows == FragmentRows::kGateAndUp) {
        p.epilogue.store_gated_one(token, out_row, value, total(sums + token * rows + row + 8), p.up_row);
      } else {
        p.epilogue.store_one(token, out_row, value);
      }
    }
  }

  static __device__ float total(const float* sums) {
    float value = sums[0];
#pragma unroll
    for (int warp = 1; warp < kRowWarps; ++warp) value += sums[warp * kSums];
    return kFloat8 ? value * 0x1p56f : value;  // 2^120 of the weights less 2^64 of the tokens
  }

  static __device__ void lay_down(const float (&sum)[Tiles][4], float* sums) {
    constexpr int rows = kBoth ? 16 : 8;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* mine = sums + warp * kSums + lane % 4 * 2 * rows + lane / 4;
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      mine[tile * 8 * rows] = sum[tile][0];
      mine[tile * 8 * rows + rows] = sum[tile][1];
      if constexpr (kBoth) {
        mine[tile * 8 * rows + 8] = sum[tile][2];
        mine[tile * 8 * rows + rows + 8] = sum[tile][3];
      }
    }
  }

  static __device__ void run(const FragmentParams& p) {
    extern __shared__ uint4 shared[];
    __shared__ float partial[Tiles * 8 * kRowWarps];
    const int row_pieces = token_stride(p.tokens.in_size);
    float* sums = reinterpret_cast<float*>(shared);  // two, taken in turns
    uint4* tokens = shared + 2 * kRowWarps * kSums / 4;
    float* factors = reinterpret_cast<float*>(tokens + p.tokens.num_tokens * row_pieces);
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
    using Fetch = TokenFetch<FragmentPlace<kFloat8>>;
    Fetch::fetch_norm_weight(p.tokens, factors);
    wait_for_earlier_kernels();
    Fetch::fetch(p.tokens, {tokens, row_pieces}, factors, partial);
    for (int turn = 0; group < p.num_groups; turn ^= 1) {
      const int next_group = group + gridDim.x;
      float sum[Tiles][4] = {};
      for (int base = 0; base < count; base += Unroll) {
        const bool ends = base + Unroll >= count;  // then the loads are of the next group
        const int next_base = ends ? 0 : base + Unroll;
        if (ends && next_group < p.num_groups) place = place_of(p, next_group);
#pragma unroll
        for (int at = 0; at < Unroll; ++at) {
          if (base + at < count) {
            if constexpr (BlockScale) {
              float part[Tiles][4] = {};
              consume(part, p, slots[at], tokens, row_pieces, first + base + at);
#pragma unroll
              for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[tile][e] = fmaf(part[tile][e], slots[at].scale[e / 2], sum[tile][e]);
              }
            } else {
              consume(sum, p, slots[at], tokens, row_pieces, first + base + at);
            }
          }
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

template <int Tiles, int Unroll, FragmentRows Rows, LinearWeight Kind, bool BlockScale>
__global__ void __launch_bounds__(kRowWarps * 32) fragment_kernel(const __grid_constant__ FragmentParams params) {
  FragmentKernel<Tiles, Unroll, Rows, Kind, BlockScale>::run(params);
}

}  // namespace llm_kernels::cuda
