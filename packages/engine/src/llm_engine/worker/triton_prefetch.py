"""Prepares Triton while the weights are read: knows nothing of which kernels will be asked for.

Before Triton looks for its first kernel it is imported and hashes its own files, some hundred megabytes of
them. Both take about a second, in which reading weights leaves the interpreter free.
"""

from __future__ import annotations

import importlib.util
import threading


def start_prefetch() -> threading.Thread | None:
    """Begins in a thread of its own; None where there is no Triton. Nobody has to wait for the thread."""
    if importlib.util.find_spec("triton") is None:
        return None
    thread = threading.Thread(target=_prefetch, name="triton-prefetch", daemon=True)
    thread.start()
    return thread


def _prefetch() -> None:
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return  # a broken installation, or a version that keeps the hash elsewhere: found at first use
    triton_key()  # remembered for the life of the process
