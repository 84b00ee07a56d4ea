// What the launchers of both kinds of kernel share: the epilogue of the arguments, errors, launch attributes.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/prologue.cuh"

namespace llm_kernels::cuda {

constexpr int kMultiprocessors = 132;
constexpr int kSharedOfSM = 228 * 1024;
constexpr int kSharedOfBlock = 227 * 1024;
constexpr int kTokenShared = kSharedOfBlock - 1024;  // of kernels that have shared memory beside the dynamic

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Raises the limit of dynamic shared memory to `bytes` once a device.
template <class Kernel>
void allow_shared(Kernel* kernel, std::atomic<std::uint64_t>& done, int bytes = kSharedOfBlock) {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::uint64_t bit = 1ull << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
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
  tokens.norm = args.norm.on;
  tokens.eps = args.norm.eps;
  tokens.norm_weight = args.norm.weight;
  tokens.norm_weight_is_float = args.norm.weight_is_float;
  tokens.residual = static_cast<const __nv_bfloat16*>(args.norm.residual);
  tokens.residual_stride = args.norm.residual_stride;
  tokens.new_residual = static_cast<__nv_bfloat16*>(args.norm.new_residual);
  return tokens;
}

// Bytes of shared memory for the weight of the norm.
inline int norm_bytes(const LinearArgs& args) { return args.norm.on ? args.in_size * 4 : 0; }

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
