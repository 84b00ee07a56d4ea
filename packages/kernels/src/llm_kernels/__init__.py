"""Inference ops with one signature and several back ends; `llm_kernels.ops` is the public surface."""

from importlib.metadata import version

__version__ = version("llm-stack-kernels")
