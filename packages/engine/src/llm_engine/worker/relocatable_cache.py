"""Triton's file cache, but found again after its folder was moved; imported by Triton alone.

Triton writes down the absolute paths of the files that make up a kernel, and compiles anew where they do not
exist any more. They always lie beside the list itself, so only their names count here.
"""

from __future__ import annotations

import json
from pathlib import Path

from triton.runtime.cache import FileCacheManager


class RelocatableCache(FileCacheManager):  # type: ignore[misc]
    """Reads what `FileCacheManager` wrote, wherever it lies now."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a kernel by name; None where there is no such kernel, or not all of it."""
        path = self.get_file(f"__grp__{filename}")
        if path is None:
            return None
        try:
            names = json.loads(Path(path).read_text(encoding="utf-8"))["child_paths"]
        except (OSError, ValueError, KeyError):
            return None  # half written or from another version: Triton compiles and writes it anew
        files = {name: self.get_file(name) for name in names}
        return None if None in files.values() else files
