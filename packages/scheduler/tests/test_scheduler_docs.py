"""The scheduler's page under docs/: its Python runs as one program."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "scheduler.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the package stands without the repository's docs")
def test_the_python_of_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
