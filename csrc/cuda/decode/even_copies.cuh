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
  static constexpr int kBarrierBytes = Warps * Stages * 8;
  static constexpr int kSharedBytes = kRingBytes + kBarrierBytes + sizeof(ShareMemory<32 * Warps>);
  static constexpr int kPartFloats = even_part_floats(D, Octets);
  // Blocks side by side on a processor: as many as shared memory holds, and at most 16 warps.
  static constexpr int kMostWarps = 16 / Octets;
  static constexpr int kHeld = 233472 / (kSharedBytes + 1024);
  static constexpr int kBlocks = kHeld * Warps < kMostWarps ? kHeld : kMostWarps / Warps;
  static_assert(kBlocks >= 1, "a block does not fit");
};

// Boxes of one tile: [panel][key][bytes of a panel].
struct EvenMaps {
  CUtensorMap key, value;
};

// Which tile a warp fetches next, and the block of the cache that holds it. Blocks are looked up a batch of 32 tiles ahead:
// while the device's memory is busy an answer takes as long as several tiles.
class Next {
 public:
  __device__ Next(const DecodeAttentionArgs& args, const Share& share)
      : args_(args), place_(share.first), ahead_(share.first), left_(share.count) {
    entry_ = look_up(ahead_);
    size_ = min(32, ahead_.tiles - ahead_.tile);
    look_ahead();
  }

  __device__ bool is_there() const { return left_ > 0; }
  __device__ int first_key() const { return place_.first_key(); }
  // By all lanes of the warp.
  __device__ int block() const { return __shfl_sync(~0u, entry_, at_); }
  __device__ void advance() {
    --left_;
    ++place_.tile;
    if (++at_ < size_ || left_ == 0) return;
    place_ = ahead_;
    entry_ = entry_ahead_;
    size_ = min(32, ahead_.tiles - ahead_.tile);
    at_ = 0;
    look_ahead();
  }

 private:
  // Asks for the batch after the present one, which begins at `ahead_`.
  __device__ void look_ahead() {
    ahead_.tile += size_;
    if (ahead_.tile == ahead_.tiles) ahead_.enter_next(args_);
    entry_ahead_ = look_up(ahead_);
  }
  // The blocks of 32 tiles of a row, one a lane.
  __device__ int look_up(const Place& begin) const {
    const std::int32_t* table = args_.block_tables + begin.row * args_.block_tables_stride;
    const int key = begin.first_key() + threadIdx.x % 32 * kDecodeKeys;
    return key < begin.range.end ? table[key / args_.block_size] : 0;
  }

  const DecodeAttentionArgs& args_;
  Place place_, ahead_;
  int left_, size_, at_ = 0, entry_, entry_ahead_;
};

// Has the copy engine fetch tiles of a KV head to a warp's ring, one after another.
template <class Kernel>
class Copies {
 public:
  __device__ Copies(const DecodeAttentionArgs& args, const EvenMaps& maps, const Share& share, int kv_head,
                    std::uint32_t ring, std::uint32_t barriers)
      : block_size_(args.block_size), kv_head_(kv_head), maps_(maps), next_(args, share), ring_(ring),
        barriers_(barriers) {}

  // By all lanes of the warp, which are done with the stage that comes next.
  __device__ void issue() {
    if (!next_.is_there()) return;
    const int block = next_.block();
    if (threadIdx.x % 32 == 0) {
      const std::uint32_t stage = ring_ + stage_ * Kernel::kStageBytes, barrier = barriers_ + 8 * stage_;
      const int offset = next_.first_key() % block_size_;
      barrier_expect(barrier, Kernel::kStageBytes);
      copy(stage, &maps_.key, offset, block, barrier);
      copy(stage + Kernel::kTileBytes, &maps_.value, offset, block, barrier);
    }
    stage_ = stage_ + 1 == Kernel::kStages ? 0 : stage_ + 1;
    next_.advance();
  }

 private:
  // A tile: 16 keys from `offset` on of a block. It is read once, so it leaves the L2 cache before all else.
  __device__ void copy(std::uint32_t to, const CUtensorMap* map, int offset, int block, std::uint32_t barrier) const {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %2, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(map), "r"(0), "r"(offset), "r"(kv_head_), "r"(block), "r"(barrier), "l"(0x12F0000000000000ull)
        : "memory");
  }

  const int block_size_, kv_head_;
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
