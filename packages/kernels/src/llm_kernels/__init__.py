"""Inference ops with one signature and several back ends: torch, CPU C++, Triton."""
