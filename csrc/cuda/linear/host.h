// What the launchers of both kinds of kernel share: the epilogue of the arguments, errors, launch attributes.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/linear/epilogue.cuh"

namespace llm_kernels::cuda {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

inline Epilogue epilogue_of(const LinearArgs& args) {
  Epilogue epilogue{};
  epilogue.out = static_cast<__nv_bfloat16*>(args.out);
  epilogue.out_stride = args.out_stride;
  epilogue.bias = static_cast<const __nv_bfloat16*>(args.bias);
  const bool whole_rows = args.scale_kind == LinearScale::kTensor || args.scale_kind == LinearScale::kChannel;
  epilogue.scale = whole_rows ? args.scale : nullptr;
  epilogue.scale_stride = args.scale_kind == LinearScale::kChannel;
  epilogue.num_tokens = args.num_tokens;
  epilogue.num_rows = args.gate == LinearGate::kNone ? args.out_size : args.out_size / 2;
  epilogue.gate = args.gate;
  return epilogue;
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
