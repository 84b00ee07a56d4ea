// Fetches the tiles of a warp's share to its ring in shared memory, ahead of their use.
#pragma once

#include "cuda/decode/even_work.cuh"

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

// Which tile a warp fetches next, and the block of the cache that holds it. Blocks are looked up a batch of 32 tiles
// ahead: while the device's memory is busy an answer takes as long as several tiles.
class Next {
 public:
  Place place;

  __device__ Next(const DecodeAttentionArgs& args, const Share& share)
      : place(share.first), args_(args), left_(share.end - share.begin), not_seen_(left_) {
    batch_ = Batch{place, min(32, place.tiles - place.tile)};
    not_seen_ -= batch_.size;
    ahead_ = look_up(batch_.begin);
    turn();
  }

  __device__ bool is_there() const { return left_ > 0; }
  // By all lanes of the warp.
  __device__ int block() const { return __shfl_sync(~0u, entry_, at_); }
  __device__ void advance() {
    if (--left_ == 0) return;
    place.advance(args_);
    if (++at_ == size_) turn();
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
    if (not_seen_ <= 0) return;
    Place& begin = batch_.begin;
    begin.tile += size_ - 1;
    begin.advance(args_);
    batch_.size = min(32, begin.tiles - begin.tile);
    not_seen_ -= batch_.size;
    ahead_ = look_up(begin);
  }
  __device__ int look_up(const Place& begin) const {
    const std::int32_t* table = args_.block_tables + begin.row * args_.block_tables_stride;
    const int key = begin.first_key() + threadIdx.x % 32 * kDecodeKeys;
    return key < begin.range.end ? table[key / args_.block_size] : 0;
  }

  const DecodeAttentionArgs& args_;
  int left_, not_seen_;  // tiles to fetch; tiles of no batch yet, 0 or less when there are none
  int size_ = 0, at_ = 0, entry_ = 0, ahead_ = 0;
  Batch batch_;
};

// Has the copy engine fetch tiles to a warp's ring, one after another.
template <class Kernel>
class Copies {
 public:
  __device__ Copies(const EvenDecodeArgs& args, const EvenMaps& maps, const Share& share, std::uint32_t ring,
                    std::uint32_t barriers)
      : block_size_(args.call.block_size), maps_(maps), next_(args.call, share), ring_(ring), barriers_(barriers) {}

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
  // A tile: 16 keys from `offset` on of a block and a KV head. It is read once: it leaves the L2 cache before all else.
  __device__ void copy(std::uint32_t to, const CUtensorMap* map, int offset, int head, int block,
                       std::uint32_t barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %2, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(map), "r"(0), "r"(offset), "r"(head), "r"(block), "r"(barrier), "l"(0x12F0000000000000ull)
        : "memory");
  }

  const int block_size_;
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

}  // namespace llm_kernels::cuda::decode
