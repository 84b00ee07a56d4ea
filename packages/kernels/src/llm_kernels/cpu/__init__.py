"""Wrappers of the C++ CPU kernels of csrc, one module an op family."""
