// Work items over OpenMP threads. OpenMP, because torch is loaded with it: the two then share one set of threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace llm_kernels {

// Calls body(item) for every item, in rising order within a thread; items of unequal cost are balanced.
template <class Body>
void parallel_items(std::int64_t num_items, int num_threads, const Body& body) {
  if (num_threads <= 1 || num_items <= 1) {
    for (std::int64_t item = 0; item < num_items; ++item) body(item);
    return;
  }
  const int team = num_items < num_threads ? static_cast<int>(num_items) : num_threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (std::int64_t item = 0; item < num_items; ++item) body(item);
}

// Calls body(begin, end) over equal shares of [0, size), no share costing less than `min_share`.
template <class Body>
void parallel_shares(std::int64_t size, std::int64_t min_share, int num_threads, const Body& body) {
  std::int64_t shares = min_share > 0 ? size / min_share : size;
  if (shares > num_threads) shares = num_threads;
  if (shares <= 1) {
    if (size > 0) body(std::int64_t{0}, size);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(shares))
  for (std::int64_t share = 0; share < shares; ++share) {
    body(size * share / shares, size * (share + 1) / shares);
  }
}

}  // namespace llm_kernels
