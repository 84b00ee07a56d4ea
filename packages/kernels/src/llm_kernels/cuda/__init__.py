"""Launchers of the CUDA kernels in `csrc/cuda`, for Hopper GPUs (compute capability 9.0)."""
