"""Measurements behind ``llm-stack bench``: workloads, an offline engine, a cold start, a running server."""
