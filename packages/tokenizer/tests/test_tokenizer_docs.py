"""The tokenizer's page under docs/: its Python runs as one program, without torch and without the library."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "tokenizer.md"

REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "transformers", "tokenizers"}:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.skipif(not PAGE.exists(), reason="the package stands without the repository's docs")
def test_the_python_of_the_page_runs_without_torch():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    subprocess.run([sys.executable, "-c", REFUSE + "".join(blocks)], check=True, timeout=60)
