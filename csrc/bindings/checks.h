// Checks every binding makes of its tensors, in one line each. The only place where TensorView meets our types.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <initializer_list>
#include <string>

#include "llm_kernels/common.h"

namespace llm_kernels::bindings {

using tvm::ffi::TensorView;

inline std::string shape_text(const TensorView& x) {
  std::string text = "[";
  for (int i = 0; i < x.ndim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(x.size(i));
  return text + "]";
}

inline void check_device(const char* field, const TensorView& x) {
  if (x.device().device_type != kDLCPU) throw ArgumentError(field, "expected a CPU tensor");
}

// -1 stands for any extent.
inline void check_shape(const char* field, const TensorView& x, std::initializer_list<std::int64_t> wanted) {
  check_device(field, x);
  bool fits = x.ndim() == static_cast<int>(wanted.size());
  int i = 0;
  for (const std::int64_t extent : wanted) {
    fits = fits && (extent == -1 || x.size(i) == extent);
    ++i;
  }
  if (fits) return;
  std::string text = "[";
  for (const std::int64_t extent : wanted) {
    text += (text.size() > 1 ? ", " : "") + (extent == -1 ? std::string("*") : std::to_string(extent));
  }
  throw ArgumentError(field, "expected shape " + text + "], got " + shape_text(x));
}

inline void check_inner_contiguous(const char* field, const TensorView& x) {
  const int last = x.ndim() - 1;
  if (x.size(last) > 1 && x.stride(last) != 1) throw ArgumentError(field, "the last dimension must be contiguous");
}

inline DType float_dtype(const char* field, const TensorView& x) {
  const DLDataType dtype = x.dtype();
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 32) return DType::kFloat32;
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return DType::kBFloat16;
  throw ArgumentError(field, "expected float32 or bfloat16");
}

inline void check_dtype(const char* field, const TensorView& x, DType wanted) {
  if (float_dtype(field, x) != wanted) {
    throw ArgumentError(field, wanted == DType::kFloat32 ? "expected float32" : "expected bfloat16");
  }
}

inline void check_int(const char* field, const TensorView& x, int bits) {
  const DLDataType dtype = x.dtype();
  if (dtype.code != kDLInt || dtype.bits != bits || dtype.lanes != 1) {
    throw ArgumentError(field, "expected int" + std::to_string(bits));
  }
  check_inner_contiguous(field, x);
}

inline char* data_of(const TensorView& x) { return static_cast<char*>(x.data_ptr()) + x.byte_offset(); }

template <class T>
T* data_as(const TensorView& x) {
  return reinterpret_cast<T*>(data_of(x));
}

inline GateKind gate_kind(const tvm::ffi::String& kind) {
  if (kind == "silu") return GateKind::kSilu;
  if (kind == "gelu") return GateKind::kGelu;
  if (kind == "gelu_tanh") return GateKind::kGeluTanh;
  throw ArgumentError("kind", "expected silu, gelu or gelu_tanh, got '" + std::string(kind) + "'");
}

// Runs `body` and turns ArgumentError into the ValueError that Python sees.
template <class Body>
void guarded(const Body& body) {
  try {
    body();
  } catch (const ArgumentError& error) {
    TVM_FFI_THROW(ValueError) << error.what();
  }
}

}  // namespace llm_kernels::bindings
