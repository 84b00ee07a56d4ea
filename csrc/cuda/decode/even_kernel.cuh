// Decode attention whose warps take even shares of all keys, whatever the rows' lengths. Knows no host.
//
// The work is all tiles of 16 keys in one line: rows, in a row its KV heads, in a head its tiles. Warp w takes those from
// w * share on and finds them by itself: it adds up the lengths. Copies run ahead over the borders of heads and rows. What
// it covers whole goes to the output; of a head that it shares with its neighbours it leaves a part (at most two: the
// first and the last), which combine_kernel puts together.
//
// Keys are the rows of a matrix fragment and query heads its eight columns; values are taken the same way, so that a
// lane holds sums of two heads. Keys and values in e4m3 become halves, exactly, and then so do queries and weights.
#pragma once

#include "cuda/decode/decode_kernel.cuh"

#ifdef LLM_DECODE_TIMES
#define TIME(i)                                                                                            \
  do {                                                                                                     \
    unsigned long long t;                                                                                  \
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");                                         \
    if (threadIdx.x % 32 == 0) args.times[8 * warp + i] = t;                                               \
  } while (0)
#else
#define TIME(i)
#endif

namespace llm_kernels::cuda::decode {

// How tiles of one head size and format lie in a warp's ring: in panels of 128 bytes, [panel][key][128], as the copy
// engine puts them; eight rows of a column are in eight different bank groups.
template <class C, int D>
struct EvenTile {
  static constexpr bool kFloat8 = sizeof(C) == 1;
  static constexpr int kRowBytes = D * sizeof(C);
  static constexpr int kPanelBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kPanels = kRowBytes / kPanelBytes;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kTileBytes = kDecodeKeys * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static_assert(kRowBytes == 64 || kRowBytes % 128 == 0, "the swizzle takes rows of 64 bytes or multiples of 128");

  static __device__ __forceinline__ std::uint32_t offset(int r, int c) {
    constexpr int kPerPanel = kPanelBytes / 16;
    const int turn = kPanelBytes == 128 ? r & 7 : r / 2 & 3;
    return c / kPerPanel * (kDecodeKeys * kPanelBytes) + r * kPanelBytes + ((c % kPerPanel ^ turn) << 4);
  }
};

// Octets: groups of eight query heads, 1 or 2.
template <class T, class C, int D, int Octets, int Warps, int Stages>
struct EvenKernel : EvenTile<C, D> {
  using Unit = std::conditional_t<sizeof(C) == 1, __half, T>;
  static constexpr int kOctets = Octets, kStages = Stages;
  static constexpr int kRingBytes = Warps * Stages * EvenTile<C, D>::kStageBytes;
  static constexpr int kSharedBytes = kRingBytes + Warps * Stages * 8;
  static constexpr int kPartFloats = even_part_floats(D, Octets);
};

// Boxes of one tile: [panel][key][bytes of a panel].
struct EvenMaps {
  CUtensorMap key, value;
};

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
    if (row + 1 < args.num_rows) enter(args, row + 1);
    return true;
  }
  __device__ int first_key() const { return range.origin + tile * kDecodeKeys; }
};

// A warp's share of the work.
struct Share {
  int begin, end;
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
  share.begin = min(warp * size, total);
  share.end = min(share.begin + size, total);
  if (warp == 0 && lane == 0) args.plan[num_warps] = make_int4(total, size, 0, 0);
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

// Which tile a warp fetches next, and the block of the cache that holds it. Blocks are looked up a batch of 32 tiles ahead:
// while the device's memory is busy an answer takes as long as several tiles.
class Next {
 public:
  Place place;

  __device__ Next(const DecodeAttentionArgs& args, const Share& share)
      : place(share.first), args_(args), left_(share.end - share.begin) {
    batch_ = Batch{place, min(32, place.tiles - place.tile)};
    ahead_ = look_up(batch_.begin);
    turn();
  }

  __device__ bool is_there() const { return left_ > 0; }
  // By all lanes of the warp.
  __device__ int block() const { return __shfl_sync(~0u, entry_, at_); }
  __device__ void advance() {
    --left_;
    place.advance(args_);
    if (++at_ == size_ && left_ > 0) turn();
  }

 private:
  // Tiles of one head whose blocks are looked up together.
  struct Batch {
    Place begin;
    int size;
  };

  // The batch ahead becomes the present one, and the next one is asked for.
  __device__ void turn() {
    entry_ = ahead_;
    size_ = batch_.size;
    at_ = 0;
    Place& begin = batch_.begin;
    begin.tile += size_ - 1;
    begin.advance(args_);
    batch_.size = min(32, begin.tiles - begin.tile);
    ahead_ = look_up(begin);
  }
  __device__ int look_up(const Place& begin) const {
    const std::int32_t* table = args_.block_tables + begin.row * args_.block_tables_stride;
    const int key = begin.first_key() + threadIdx.x % 32 * kDecodeKeys;
    return key < begin.range.end ? table[key / args_.block_size] : 0;
  }

  const DecodeAttentionArgs& args_;
  int left_, size_ = 0, at_ = 0, entry_ = 0, ahead_ = 0;
  Batch batch_;
};

// Has the copy engine fetch tiles to a warp's ring, one after another.
template <class Kernel>
class Copies {
 public:
  __device__ Copies(const EvenDecodeArgs& args, const EvenMaps& maps, const Share& share, std::uint32_t ring,
                    std::uint32_t barriers)
      : block_size_(args.call.block_size),
        policy_(args.evict_first ? 0x12F0000000000000ull : 0x1000000000000000ull),
        maps_(maps),
        next_(args.call, share),
        ring_(ring),
        barriers_(barriers) {}

  // By all lanes of the warp, which are done with the stage that comes next.
  __device__ void issue() {
    if (!next_.is_there()) return;
    const int block = next_.block();
    if (threadIdx.x % 32 == 0) {
      const std::uint32_t stage = ring_ + stage_ * Kernel::kStageBytes, barrier = barriers_ + 8 * stage_;
      const int offset = next_.place.first_key() % block_size_, head = next_.place.kv_head;
      barrier_expect(barrier, Kernel::kStageBytes);
      copy(stage, &maps_.key, offset, head, block, barrier);
      copy(stage + Kernel::kTileBytes, &maps_.value, offset, head, block, barrier);
    }
    stage_ = stage_ + 1 == Kernel::kStages ? 0 : stage_ + 1;
    next_.advance();
  }

 private:
  // A tile: 16 keys from `offset` on of a block and a KV head.
  __device__ void copy(std::uint32_t to, const CUtensorMap* map, int offset, int head, int block,
                       std::uint32_t barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %2, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(map), "r"(0), "r"(offset), "r"(head), "r"(block), "r"(barrier), "l"(policy_)
        : "memory");
  }

  const int block_size_;
  const std::uint64_t policy_;
  const EvenMaps& maps_;
  Next next_;
  const std::uint32_t ring_, barriers_;
  int stage_ = 0;
};

// Zeros for the values of a tile's keys from `end` on: what lies past the context may be anything.
template <class Kernel>
__device__ void clear_values(std::uint32_t stage, int end) {
  if (end >= kDecodeKeys) return;
  for (int i = max(end, 0) * Kernel::kChunks + threadIdx.x % 32; i < kDecodeKeys * Kernel::kChunks; i += 32) {
    const std::uint32_t to = stage + Kernel::kTileBytes + Kernel::offset(i / Kernel::kChunks, i % Kernel::kChunks);
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
  }
  fence_async_proxy();
  __syncwarp();
}

// The online softmax of a warp over the keys of one row and KV head. A lane has the heads `head(o, i)`: of the scores keys
// lane / 4 and lane / 4 + 8, of the sums the columns `column(j, i)`.
template <class Kernel, class T, int D>
struct EvenSoftmax {
  using Unit = typename Kernel::Unit;
  static constexpr int kOctets = Kernel::kOctets;
  std::uint32_t query[kOctets][D / 16][2], next_query[kOctets][D / 16][2];
  float sum[kOctets][D / 16][4];
  float maximum[kOctets][2], weight[kOctets][2];

  static __device__ __forceinline__ int head(int octet, int i) { return 8 * octet + threadIdx.x % 4 * 2 + i % 2; }
  static __device__ __forceinline__ int column(int j, int i) {
    const int r = threadIdx.x % 32 / 4;
    return 16 * j + (Kernel::kFloat8 ? 2 * r + i / 2 : r + i / 2 * 8);
  }

  __device__ void clear() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum[o][i] = -INFINITY;
        weight[o][i] = 0.0f;
      }
    }
  }

  // Asks for the queries of the row and KV head that comes next.
  __device__ void ask(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
    const int lane = threadIdx.x % 32;
    const T* from = static_cast<const T*>(args.query) + row * args.query_stride_row +
                    std::int64_t{kv_head} * group * args.query_stride_head;
    // Of a step's 16 columns a lane has two pairs: as fragments have them, or four neighbours, as bytes of e4m3 come.
    const int first = lane % 4 * (Kernel::kFloat8 ? 4 : 2), second = first + (Kernel::kFloat8 ? 2 : 8);
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int member = 8 * o + lane / 4;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const T* at = from + member * args.query_stride_head + k * 16 + (i == 0 ? first : second);
          next_query[o][k][i] = member < group ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
        }
      }
    }
  }

  // Begins with the queries asked for.
  __device__ void start() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) query[o][k][i] = converted<T, Unit>(next_query[o][k][i]);
      }
    }
    clear();
  }

  // Takes in a tile, of whose keys those in [begin, end) are seen; both count from the tile's first key.
  __device__ void attend(std::uint32_t stage, int begin, int end, float scale, float soft_cap) {
    float score[kOctets][4] = {};
    multiply_keys(stage, score);
    const bool is_whole = begin <= 0 && end >= kDecodeKeys;
    const int key = threadIdx.x % 32 / 4;
    std::uint32_t p[kOctets][2];
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      float best[2], fade[2], shift[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = score[o][i] * scale;
        if (soft_cap > 0.0f) x = soft_cap * tanhf(x / soft_cap);
        const int at = key + i / 2 * 8;
        score[o][i] = is_whole || (at >= begin && at < end) ? x * kLog2E : -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        best[i] = fmaxf(score[o][i], score[o][i + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) best[i] = fmaxf(best[i], __shfl_xor_sync(~0u, best[i], step));
        best[i] = fmaxf(best[i], maximum[o][i]);
        shift[i] = best[i] == -INFINITY ? 0.0f : best[i];
        fade[i] = exp2_fast(maximum[o][i] - shift[i]);
        maximum[o][i] = best[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) score[o][i] = exp2_fast(score[o][i] - shift[i % 2]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight[o][i] = weight[o][i] * fade[i] + score[o][i] + score[o][i + 2];
        p[o][i] = transposed(pack<Unit>(score[o][2 * i], score[o][2 * i + 1]));
      }
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] *= fade[i % 2];
      }
    }
    multiply_values(stage + Kernel::kTileBytes, p);
  }

  // The weights of all keys: until here each lane has those of its own.
  __device__ void gather_weights() {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) weight[o][i] += __shfl_xor_sync(~0u, weight[o][i], step);
      }
    }
  }

  // Puts a part away, its weights gathered; only the lanes that have heads write.
  __device__ void leave(float* part, int group) const {
    const int lane = threadIdx.x % 32, slot = lane % 4 * 8 + lane / 4;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (head(o, 0) >= group) continue;
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        const float(&x)[4] = sum[o][j];
        reinterpret_cast<float4*>(part)[(o * (D / 16) + j) * 32 + slot] = make_float4(x[0], x[1], x[2], x[3]);
      }
      if (lane < 4) {
        reinterpret_cast<float4*>(part + kOctets * D * 8)[o * 4 + lane] =
            make_float4(maximum[o][0], maximum[o][1], weight[o][0], weight[o][1]);
      }
    }
  }

  // Adds a part to the sums.
  __device__ void add(const float* part, int group) {
    const int lane = threadIdx.x % 32, slot = lane % 4 * 8 + lane / 4;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (head(o, 0) >= group) continue;
      const float4 state = reinterpret_cast<const float4*>(part + kOctets * D * 8)[o * 4 + lane % 4];
      const float maxima[2] = {state.x, state.y}, weights[2] = {state.z, state.w};
      float fade[2], share[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float best = fmaxf(maximum[o][i], maxima[i]), shift = best == -INFINITY ? 0.0f : best;
        fade[i] = exp2_fast(maximum[o][i] - shift);
        share[i] = exp2_fast(maxima[i] - shift);
        maximum[o][i] = best;
        weight[o][i] = weight[o][i] * fade[i] + weights[i] * share[i];
      }
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        const float4 x = reinterpret_cast<const float4*>(part)[(o * (D / 16) + j) * 32 + slot];
        const float others[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[o][j][i] = sum[o][j][i] * fade[i % 2] + others[i] * share[i % 2];
      }
    }
  }

  // Writes the results of a row and KV head, its weights gathered: sinks and the parts of a shared prefix come in here.
  __device__ void finish(const DecodeAttentionArgs& args, int row, int kv_head, int group) {
    const float value_scale = args.value.scale == nullptr ? 1.0f : args.value.scale[kv_head];
    const bool has_prefix = args.prefix.lens != nullptr && args.prefix.lens[row] > 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (head(o, i) >= group) continue;
        const int at = kv_head * group + head(o, i);
        fade(o, i, value_scale);
        if (has_prefix) add_prefix(args.prefix, std::int64_t{row} * args.num_heads + at, o, i);
        const float factor = one_over_weight(args, at, maximum[o][i], weight[o][i]);
        T* to = static_cast<T*>(args.out) + row * args.out_stride_row + at * args.out_stride_head;
#pragma unroll
        for (int j = 0; j < D / 16; ++j) {
          to[column(j, i)] = rounded<T>(sum[o][j][i] * factor);
          to[column(j, i + 2)] = rounded<T>(sum[o][j][i + 2] * factor);
        }
      }
    }
  }

 private:
  __device__ void fade(int o, int i, float factor) {
#pragma unroll
    for (int j = 0; j < D / 16; ++j) {
      sum[o][j][i] *= factor;
      sum[o][j][i + 2] *= factor;
    }
  }

  // Adds the parts of a shared prefix to one head's sums.
  __device__ void add_prefix(const PrefixParts& prefix, std::int64_t row_and_head, int o, int i) {
    for (int part = 0; part < prefix.num_parts; ++part) {
      const std::int64_t at = row_and_head * prefix.num_parts + part;
      const float state = prefix.states[at], best = fmaxf(maximum[o][i], state), shift = best == -INFINITY ? 0.0f : best;
      const float share = exp2_fast(state - shift), keep = exp2_fast(maximum[o][i] - shift);
      fade(o, i, keep);
      weight[o][i] = weight[o][i] * keep + share;
      maximum[o][i] = best;
      const float* from = prefix.sums + at * D;
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        sum[o][j][i] += from[column(j, i)] * share;
        sum[o][j][i + 2] += from[column(j, i + 2)] * share;
      }
    }
  }

  // What the sums of a head are multiplied by, a sink counted in; 0 where nothing has any weight.
  static __device__ float one_over_weight(const DecodeAttentionArgs& args, int head, float best, float total) {
    float keep = 1.0f;
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head] * kLog2E, most = fmaxf(best, sink), shift = most == -INFINITY ? 0.0f : most;
      keep = exp2_fast(best - shift);
      total = total * keep + exp2_fast(sink - shift);
    }
    return total == 0.0f ? 0.0f : keep / total;
  }

  // Eight rows of eight 16-bit numbers, a pair a lane, with rows and columns exchanged.
  static __device__ __forceinline__ std::uint32_t transposed(std::uint32_t pair) {
    std::uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
  }

  __device__ __forceinline__ void multiply_keys(std::uint32_t stage, float (&score)[kOctets][4]) const {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < Kernel::kChunks / 2; ++k) {
      std::uint32_t a[4];
      load_matrices(a, stage + Kernel::offset(matrix % 2 * 8 + r, 2 * k + matrix / 2));
      if constexpr (Kernel::kFloat8) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t keys[4] = {halves_of_low(a[2 * i]), halves_of_low(a[2 * i + 1]),
                                         halves_of_high(a[2 * i]), halves_of_high(a[2 * i + 1])};
#pragma unroll
          for (int o = 0; o < kOctets; ++o) {
            multiply<Unit>(score[o], keys, query[o][2 * k + i][0], query[o][2 * k + i][1]);
          }
        }
      } else {
#pragma unroll
        for (int o = 0; o < kOctets; ++o) multiply<Unit>(score[o], a, query[o][k][0], query[o][k][1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_values(std::uint32_t values, const std::uint32_t (&p)[kOctets][2]) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
#pragma unroll
    for (int j = 0; j < Kernel::kChunks / 2; ++j) {
      std::uint32_t a[4];
      if constexpr (Kernel::kFloat8) {
        load_matrices_transposed(a, values + Kernel::offset(matrix % 2 * 8 + r, 2 * j + matrix / 2));
        // Two keys of two columns each: sorted by column, the even ones and the odd ones are rows 0 to 7 and 8 to 15.
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = __byte_perm(a[i], 0, 0x3120);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t columns[4] = {halves_of_low(a[2 * i]), halves_of_high(a[2 * i]),
                                            halves_of_low(a[2 * i + 1]), halves_of_high(a[2 * i + 1])};
#pragma unroll
          for (int o = 0; o < kOctets; ++o) multiply<Unit>(sum[o][2 * j + i], columns, p[o][0], p[o][1]);
        }
      } else {
        load_matrices_transposed(a, values + Kernel::offset(matrix / 2 * 8 + r, 2 * j + matrix % 2));
#pragma unroll
        for (int o = 0; o < kOctets; ++o) multiply<Unit>(sum[o][j], a, p[o][0], p[o][1]);
      }
    }
  }
};

// Part 2 w: the head that warp w found begun; 2 w + 1: the one that it began and did not end.
template <class T, class C, int D, int Octets, int Warps, int Stages>
__global__ void __launch_bounds__(32 * Warps) even_kernel(const __grid_constant__ EvenDecodeArgs args,
                                                          const __grid_constant__ EvenMaps maps) {
  using Kernel = EvenKernel<T, C, D, Octets, Warps, Stages>;
  extern __shared__ __align__(1024) unsigned char even_shared[];
  const DecodeAttentionArgs& call = args.call;
  const int warp = blockIdx.x * Warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = call.num_heads / call.num_kv_heads, place_of_warp = threadIdx.x / 32 * Stages;
  const std::uint32_t base = shared_address(even_shared), ring = base + place_of_warp * Kernel::kStageBytes;
  const std::uint32_t barriers = base + Kernel::kRingBytes + 8 * place_of_warp;
  TIME(0);
  if (base % 1024 != 0) __trap();  // the copy engine's swizzle would be another
  if (lane == 0) {
    prefetch_map(&maps.key);
    prefetch_map(&maps.value);
    for (int i = 0; i < Stages; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_fence();
  }
  __syncwarp();

  let_next_kernel_start();
  wait_for_earlier_kernels();
  TIME(1);
  const Share share = find_share(args, warp, gridDim.x * Warps);
  const int count = share.end - share.begin;
  if (count == 0) return;
  TIME(2);
  Place place = share.first;
  EvenSoftmax<Kernel, T, D> softmax;
  softmax.ask(call, place.row, place.kv_head, group);
  if (lane == 0) args.plan[warp] = make_int4(place.tile, place.tiles, place.row, place.kv_head);
  Copies<Kernel> copies(args, maps, share, ring, barriers);
#pragma unroll
  for (int i = 0; i + 1 < Stages; ++i) copies.issue();
  int stage = 0, first_tile = place.tile;
  unsigned parity = 0;
  TIME(3);
  for (int left = count; left > 0;) {
    const int tiles = min(place.tiles - place.tile, left), tile_end = place.tile + tiles;
    left -= tiles;
    softmax.start();
    if (left > 0) {
      Place next = place;
      next.tile = next.tiles - 1;
      next.advance(call);
      softmax.ask(call, next.row, next.kv_head, group);
    }
    const float scale = call.key.scale == nullptr ? call.scale : call.scale * call.key.scale[place.kv_head];
    for (; place.tile < tile_end; ++place.tile) {
      barrier_wait(barriers + 8 * stage, parity);
      __syncwarp();  // all lanes are done with the stage of the tile before
      copies.issue();
      const int begin = place.first_key();
      const std::uint32_t tile = ring + stage * Kernel::kStageBytes;
      clear_values<Kernel>(tile, place.range.end - begin);
      softmax.attend(tile, place.range.begin - begin, place.range.end - begin, scale, call.soft_cap);
      if (++stage == Stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    softmax.gather_weights();
    if (first_tile == 0 && tile_end == place.tiles) {
      softmax.finish(call, place.row, place.kv_head, group);
    } else {
      softmax.leave(args.parts + (2 * std::int64_t{warp} + (first_tile == 0)) * Kernel::kPartFloats, group);
    }
    if (left == 0) break;
    --place.tile;
    place.advance(call);
    first_tile = 0;
  }
  TIME(4);
}

// Puts together the heads that warps share. One warp a warp of even_kernel; that works whose share begins within a head
// and is the first to do so.
template <class T, class C, int D, int Octets>
__global__ void __launch_bounds__(128) combine_even_kernel(const __grid_constant__ EvenDecodeArgs args, int num_warps) {
  using Kernel = EvenKernel<T, C, D, Octets, 1, 2>;
  const int warp = blockIdx.x * 4 + threadIdx.x / 32;
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (warp >= num_warps) return;
  TIME(5);
  const int4 all = args.plan[num_warps];
  const int total = all.x, size = all.y;
  if (std::int64_t{warp} * size >= total) return;
  const int4 own = args.plan[warp];
  const int tile = own.x, tiles = own.y;
  if (tile == 0 || tile > size) return;
  const int group = args.call.num_heads / args.call.num_kv_heads;
  EvenSoftmax<Kernel, T, D> softmax;
  softmax.clear();
  softmax.add(args.parts + (2 * std::int64_t{warp} - 1) * Kernel::kPartFloats, group);
  const int end = warp * size - tile + tiles;
  for (std::int64_t w = warp; w * size < end; ++w) softmax.add(args.parts + 2 * w * Kernel::kPartFloats, group);
  softmax.finish(args.call, own.z, own.w, group);
  TIME(6);
}

}  // namespace llm_kernels::cuda::decode
