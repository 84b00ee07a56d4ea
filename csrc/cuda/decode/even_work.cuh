// The work of decode attention in even shares: all tiles of 16 keys in one line, and a warp's share of them.
//
// The line goes through the rows, in a row through its KV heads, in a head through its tiles. Padding rows, those
// without a context, are not in it: a warp that had to pass their heads one by one would end long after the others.
#pragma once

#include "cuda/decode/decode_kernel.cuh"

namespace llm_kernels::cuda::decode {

// Tiles of a row and KV head: none of padding. A row whose keys are all in a shared prefix has one, which finishes it.
__device__ __forceinline__ int tiles_of(const KeyRange& range) {
  return range.end == 0 ? 0 : max((range.end - range.origin + kDecodeKeys - 1) / kDecodeKeys, 1);
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

// A tile in the line of all work.
struct Place {
  int row, kv_head, tile, tiles;
  KeyRange range;

  __device__ void enter(const DecodeAttentionArgs& args, int new_row) {
    row = new_row;
    range = key_range(args, row);
    tiles = tiles_of(range);
  }
  // The next tile. True where it is another head's or row's.
  __device__ bool advance(const DecodeAttentionArgs& args) {
    if (++tile < tiles) return false;
    tile = 0;
    if (++kv_head < args.num_kv_heads) return true;
    kv_head = 0;
    for (int next = row + 1; next < args.num_rows; ++next) {
      enter(args, next);
      if (tiles > 0) break;
    }
    return true;
  }
  __device__ int first_key() const { return range.origin + tile * kDecodeKeys; }
};

// A warp's share of the work.
struct Share {
  int begin, end;  // of its tiles
  int size;        // of every share but the last ones
  Place first;
};

// All lanes of a warp find its share: they add up the tiles of the rows, a run of rows each.
__device__ inline Share find_share(const EvenDecodeArgs& args, int warp, int num_warps) {
  const DecodeAttentionArgs& call = args.call;
  const int lane = threadIdx.x % 32, run = (call.num_rows + 31) / 32;
  int mine = 0;
  for (int i = 0; i < run; ++i) mine += tiles_of(call, lane * run + i);
  const int upto = inclusive_sum(mine, lane);
  const int total = __shfl_sync(~0u, upto, 31) * call.num_kv_heads;
  const int size = max((total + num_warps - 1) / num_warps, args.least_tiles);
  Share share{};
  share.size = size;
  share.begin = min(warp * size, total);
  share.end = min(share.begin + size, total);
  if (share.begin >= share.end) return share;
  // The run of rows that holds the first tile, then the row in it. Both in tiles of one head.
  const int want = share.begin / call.num_kv_heads;
  const int at_lane = __ffs(__ballot_sync(~0u, upto > want)) - 1;
  int before = __shfl_sync(~0u, upto - mine, at_lane);
  int row = at_lane * run;
  for (int i = 0; i < run; i += 32, row += 32) {
    const int tiles = i + lane < run ? tiles_of(call, row + lane) : 0;
    const int sum = inclusive_sum(tiles, lane);
    const unsigned found = __ballot_sync(~0u, before + sum > want);
    if (found != 0) {
      const int at = __ffs(found) - 1;
      before += __shfl_sync(~0u, sum - tiles, at);
      row += at;
      break;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  share.first.enter(call, row);
  const int inside = share.begin - before * call.num_kv_heads;
  share.first.kv_head = inside / share.first.tiles;
  share.first.tile = inside % share.first.tiles;
  return share;
}

}  // namespace llm_kernels::cuda::decode
