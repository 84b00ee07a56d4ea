"""Where the real tokenizers lie, and what a test does when one is not there."""

import os
from pathlib import Path

import pytest

COMMAND = "python scripts/fetch_test_assets.py"
_NAMED = os.environ.get("LLM_STACK_TEST_ASSETS")
FOLDER = Path(_NAMED) if _NAMED else Path.home() / ".cache" / "llm-stack" / "test-assets"


def asset(name):
    """The path of a real tokenizer file; without it the test fails in CI and is skipped elsewhere."""
    path = FOLDER / name
    if path.exists():
        return path
    reason = f"{path} is not there; fetch it with: {COMMAND}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
