"""Where compiled Triton kernels are kept from one start to the next; knows nothing of which kernels.

The folder is `kernel_cache` of the options, else what TRITON_CACHE_DIR names, else
`$XDG_CACHE_HOME/llm-stack/triton` (`~/.cache/llm-stack/triton`). Entries are found by Triton's own keys: a
hash of the kernel's source, its constants, the device's architecture and the versions of Triton and ptxas.
Nothing else is in the key, so a filled folder may be copied to another place or machine.
"""

from __future__ import annotations

import os
from pathlib import Path

_MANAGER = "llm_engine.worker.relocatable_cache:RelocatableCache"


def use_kernel_cache(folder: str | None) -> Path:
    """Has Triton keep its kernels in a folder, in this process and in those that it starts.

    Args:
        folder: The option's value; None: the environment's, else the default.

    Returns:
        The folder. It need not exist yet.
    """
    path = Path(folder).expanduser().absolute() if folder is not None else default_kernel_cache()
    # Triton reads both when it looks for a kernel, so it does not matter whether it was imported before.
    os.environ["TRITON_CACHE_DIR"] = str(path)
    os.environ.setdefault("TRITON_CACHE_MANAGER", _MANAGER)
    return path


def default_kernel_cache() -> Path:
    """The folder where no option names one."""
    named = os.environ.get("TRITON_CACHE_DIR")
    if named:
        return Path(named)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "llm-stack" / "triton"
