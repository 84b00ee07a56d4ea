"""The README's Python examples run as they stand."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_are_examples():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block, capsys):
    exec(compile(block, str(README), "exec"), {})
    assert "next token:" in capsys.readouterr().out
