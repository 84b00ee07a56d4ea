"""The README's Python examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block):
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_there_are_examples():
    assert BLOCKS
