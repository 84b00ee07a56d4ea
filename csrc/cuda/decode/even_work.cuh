// The work of decode attention in even shares: a KV head's tiles of 16 keys in one line, and a warp's share of them.
//
// The line goes through the rows, and is the same for every head. Warps that take the same share of neighbouring heads lie
// side by side, so that what lies together in memory is read together.
#pragma once

#include "cuda/decode/decode_kernel.cuh"

namespace llm_kernels::cuda::decode {

// Tiles of a row and KV head; a row without keys has one, so that its zeros are written.
__device__ __forceinline__ int tiles_of(const KeyRange& range) {
  return max((range.end - range.origin + kDecodeKeys - 1) / kDecodeKeys, 1);
}
__device__ __forceinline__ int tiles_of(const DecodeAttentionArgs& args, int row) {
  return row < args.num_rows ? tiles_of(key_range(args, row)) : 0;
}

__device__ __forceinline__ int inclusive_sum(int x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// A tile of the line.
struct Place {
  int row, tile, tiles;
  KeyRange range;

  __device__ void enter(const DecodeAttentionArgs& args, int new_row) {
    row = new_row;
    tile = 0;
    range = key_range(args, row);
    tiles = tiles_of(range);
  }
  // The first tile of the next row; after the last one, of this.
  __device__ void enter_next(const DecodeAttentionArgs& args) { enter(args, min(row + 1, args.num_rows - 1)); }
  __device__ int first_key() const { return range.origin + tile * kDecodeKeys; }
};

// A warp's share of the work.
struct Share {
  int count;  // of its tiles
  int size;   // of all shares but the last ones
  Place first;
};

// Memory that a block of so many threads needs to find its shares.
template <int Threads>
struct ShareMemory {
  int upto[Threads], warps[Threads / 32];
};

// All threads of a block: each adds up the tiles of a run of rows; then every warp looks for its share.
template <int Threads>
__device__ __forceinline__ Share find_share(const DecodeAttentionArgs& call, ShareMemory<Threads>& memory, int index,
                                            int num_shares, int least) {
  const int lane = threadIdx.x % 32, run = (call.num_rows + Threads - 1) / Threads;
  int mine = 0;
  for (int i = 0; i < run; ++i) mine += tiles_of(call, threadIdx.x * run + i);
  int upto = inclusive_sum(mine, lane);
  if (lane == 31) memory.warps[threadIdx.x / 32] = upto;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < Threads / 32; ++w) upto += w < threadIdx.x / 32 ? memory.warps[w] : 0;
  memory.upto[threadIdx.x] = upto;
  __syncthreads();
  const int total = memory.upto[Threads - 1];
  Share share{};
  share.size = max((total + num_shares - 1) / num_shares, least);
  const int begin = min(index * share.size, total);
  share.count = min(share.size, total - begin);
  if (share.count == 0) return share;
  int at = 0;  // the first run that reaches beyond `begin`
#pragma unroll
  for (int step = Threads / 2; step > 0; step /= 2) at += memory.upto[at + step - 1] <= begin ? step : 0;
  int before = at > 0 ? memory.upto[at - 1] : 0;
  share.first.enter(call, at * run);
  while (before + share.first.tiles <= begin) {
    before += share.first.tiles;
    share.first.enter_next(call);
  }
  share.first.tile = begin - before;
  return share;
}

}  // namespace llm_kernels::cuda::decode
