// What the launchers of both kinds of kernel share: the epilogue of the arguments, errors, launch attributes.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/tokens.cuh"

namespace llm_kernels::cuda {

constexpr int kMultiprocessors = 132;
constexpr int kSharedOfSM = 228 * 1024;
constexpr int kSharedOfBlock = 227 * 1024;

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Raises the limit of dynamic shared memory once a device.
template <class Kernel>
void allow_shared(Kernel* kernel, std::atomic<std::uint64_t>& done) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::uint64_t bit = 1ull << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedOfBlock),
             "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

inline Epilogue epilogue_of(const LinearArgs& args) {
  Epilogue epilogue{};
  epilogue.out = static_cast<__nv_bfloat16*>(args.out);
  epilogue.out_stride = args.out_stride;
  epilogue.bias = static_cast<const __nv_bfloat16*>(args.bias);
  const bool whole_rows = args.scale_kind == LinearScale::kTensor || args.scale_kind == LinearScale::kChannel;
  epilogue.scale = whole_rows ? args.scale : nullptr;
  epilogue.scale_stride = args.scale_kind == LinearScale::kChannel;
  epilogue.token_scale = args.token_scale;
  epilogue.token_scale_stride = args.token_scale_stride;
  epilogue.num_tokens = args.num_tokens;
  epilogue.num_rows = args.gate == LinearGate::kNone ? args.out_size : args.out_size / 2;
  epilogue.gate = args.gate;
  return epilogue;
}

inline TokenParams tokens_of(const LinearArgs& args) {
  TokenParams tokens{};
  tokens.x = static_cast<const __nv_bfloat16*>(args.x);
  tokens.x_stride = args.x_stride;
  tokens.in_size = args.in_size;
  tokens.num_tokens = args.num_tokens;
  return tokens;
}

// Attributes of a launch; keep it where the launch can see it.
struct LaunchAttributes {
  cudaLaunchAttribute values[2];
  unsigned count = 0;

  LaunchAttributes(int cluster, bool dependent) {
    if (cluster > 1) {
      values[count].id = cudaLaunchAttributeClusterDimension;
      values[count].val.clusterDim.x = cluster;
      values[count].val.clusterDim.y = values[count].val.clusterDim.z = 1;
      ++count;
    }
    if (dependent) {
      values[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      values[count].val.programmaticStreamSerializationAllowed = 1;
      ++count;
    }
  }
};

}  // namespace llm_kernels::cuda
