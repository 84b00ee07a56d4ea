// What the blocks of a cluster do for each other beside adding up: copies for several, letting go of what others copied.
// Knows nothing of products.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace llm_kernels::cuda {

// At the barrier in the same place of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_in_cluster(std::uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Copies the box at (column, row) of a map to the same place in each block of the cluster that `mask` names, whose
// barriers there count it; kept in the L2 cache.
__device__ __forceinline__ void copy_box_to_cluster(std::uint32_t to, const CUtensorMap* map, int column, int row,
                                                    std::uint32_t barrier, int mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<short>(mask)), "l"(0x14F0000000000000ull)
      : "memory");
}

}  // namespace llm_kernels::cuda
