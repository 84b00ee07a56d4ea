"""Runs scenarios of the JavaScript libraries, installed from npm at the versions of tests/e2e/javascript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).parents[3] / "tests" / "e2e" / "javascript"
_FILES = ("package.json", "package-lock.json", "sdk.mjs")
_INSTALL_S = 180
_RUN_S = 60


@cache
def _installed() -> tuple[Path | None, str]:
    """The folder, which outlives the run and is used again; or why there is none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None, "node and npm are not installed"
    major = int(
        subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
        .stdout[1:]
        .split(".")[0]
    )
    if major < 20:
        return None, f"node {major} is older than 20"
    lock = (_SOURCE / "package-lock.json").read_bytes()
    folder = Path(tempfile.gettempdir()) / f"llm-stack-javascript-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    marker = folder / "installed"
    for name in _FILES:
        shutil.copy(_SOURCE / name, folder / name)
    if not marker.exists() or marker.read_bytes() != lock:
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            run = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_S
            )
        except subprocess.TimeoutExpired:
            return None, "the npm registry does not answer"
        if run.returncode:
            return None, f"npm ci failed: {run.stderr[-300:]}"
        marker.write_bytes(lock)
    return folder, ""


def run_scenario(scenario: str, url: str, key: str, model: str) -> Any:
    """What `sdk.mjs` saw; skips where it cannot run."""
    folder, reason = _installed()
    if folder is None:
        pytest.skip(reason)
    run = subprocess.run(
        ["node", "sdk.mjs", scenario, url, key, model],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)
