"""The package as a stranger meets it: README, import without torch, stubs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llm_kvcache import KVCache, _native

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)

NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "transformers"}:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
"""


def test_readme_runs_without_torch():
    assert BLOCKS
    for block in BLOCKS:
        subprocess.run([sys.executable, "-c", NO_TORCH + block], check=True, timeout=60)


@pytest.mark.parametrize("native", [_native.Cache, _native.Events, _native.Tiers])
def test_the_stub_names_what_the_native_class_has(native):
    stub = (ROOT / "src/llm_kvcache/_native.pyi").read_text()
    body = re.search(rf"^class {native.__name__}:\n((?: +.*\n)+)", stub, re.MULTILINE)[1]
    stubbed = set(re.findall(r"^    def (\w+)", body, re.MULTILINE)) - {"__new__"}
    assert stubbed == {name for name in vars(native) if not name.startswith("_")}


def test_every_public_method_has_a_docstring():
    for name, member in inspect.getmembers(KVCache):
        if not name.startswith("_"):
            assert member.__doc__, name
