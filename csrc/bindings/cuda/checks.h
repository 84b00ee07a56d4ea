// Checks every CUDA binding makes of its tensors, and what it takes from them. Knows no kernel.
#pragma once

#include <cuda_runtime_api.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <initializer_list>
#include <string>

#include "llm_kernels/common.h"

namespace llm_kernels::bindings::cuda {

using tvm::ffi::TensorView;

inline std::string extent_text(std::int64_t extent) { return extent == -1 ? "*" : std::to_string(extent); }

// -1 stands for any extent.
inline void check_shape(const char* field, const TensorView& x, std::initializer_list<std::int64_t> wanted) {
  if (x.device().device_type != kDLCUDA) throw ArgumentError(field, "expected a CUDA tensor");
  bool fits = x.ndim() == static_cast<int>(wanted.size());
  std::string wanted_text, got_text;
  int i = 0;
  for (const std::int64_t extent : wanted) {
    fits = fits && (extent == -1 || x.size(i) == extent);
    wanted_text += (i > 0 ? ", " : "") + extent_text(extent);
    ++i;
  }
  if (fits) return;
  for (int j = 0; j < x.ndim(); ++j) got_text += (j > 0 ? ", " : "") + std::to_string(x.size(j));
  throw ArgumentError(field, "expected shape [" + wanted_text + "], got [" + got_text + "]");
}

inline void check_inner_contiguous(const char* field, const TensorView& x) {
  const int last = x.ndim() - 1;
  if (x.size(last) > 1 && x.stride(last) != 1) throw ArgumentError(field, "the last dimension must be contiguous");
}

inline bool is_dtype(const TensorView& x, DLDataTypeCode code, int bits) {
  const DLDataType dtype = x.dtype();
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

inline void check_dtype(const char* field, const TensorView& x, DLDataTypeCode code, int bits, const char* name) {
  if (!is_dtype(x, code, bits)) throw ArgumentError(field, std::string("expected ") + name);
}

inline char* data_of(const TensorView& x) { return static_cast<char*>(x.data_ptr()) + x.byte_offset(); }

template <class T>
T* data_as(const TensorView& x) {
  return reinterpret_cast<T*>(data_of(x));
}

// The caller's current stream on the tensor's device; TVM-FFI takes it from the framework of the arguments.
inline cudaStream_t stream_of(const TensorView& x) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
}

// Makes the tensor's device current for as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(const TensorView& x) {
    cudaGetDevice(&before_);
    if (x.device().device_id != before_) cudaSetDevice(x.device().device_id);
  }
  ~DeviceGuard() { cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Runs `body`; ArgumentError becomes the ValueError that Python sees.
template <class Body>
void guarded(const Body& body) {
  try {
    body();
  } catch (const ArgumentError& error) {
    TVM_FFI_THROW(ValueError) << error.what();
  }
}

inline void check_status(const char* what, cudaError_t status) {
  if (status != cudaSuccess) TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
}

}  // namespace llm_kernels::bindings::cuda
