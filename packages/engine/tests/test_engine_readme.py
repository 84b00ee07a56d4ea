"""The README's Python examples run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block):
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_there_are_examples():
    assert BLOCKS


def test_the_front_end_imports_no_torch():
    """Its process waits for no torch; the core's does that."""
    code = "import sys, llm_engine.async_llm; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
