"""The workloads of the performance notebook, for the scripts here; `llm_stack_server.bench` owns them."""

from llm_stack_server.bench.workloads import Workload, make_workloads

__all__ = ["Workload", "make_workloads"]
