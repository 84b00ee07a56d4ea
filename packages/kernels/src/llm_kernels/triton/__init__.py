"""Triton kernels for the GPU, one module an op family; imported only when triton is installed."""
