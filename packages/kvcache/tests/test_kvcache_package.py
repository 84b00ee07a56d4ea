"""The package as a stranger meets it: README, import without torch, stubs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llm_kvcache import EventLog, KVCache, TierIndex, _native

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "TIERS.md", "EVENTS.md", "../../docs/kvcache.md"]

NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "transformers"}:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_run_without_torch(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", NO_TORCH + block], check=True, timeout=60)


@pytest.mark.parametrize("native", [_native.Cache, _native.Events, _native.Tiers])
def test_the_stub_names_what_the_native_class_has(native):
    stub = (ROOT / "src/llm_kvcache/_native.pyi").read_text()
    body = re.search(rf"^class {native.__name__}:\n((?: +.*\n)+)", stub, re.MULTILINE)[1]
    stubbed = set(re.findall(r"^    def (\w+)", body, re.MULTILINE)) - {"__new__"}
    assert stubbed == {name for name in vars(native) if not name.startswith("_")}


@pytest.mark.parametrize("public", [KVCache, TierIndex, EventLog])
def test_every_public_method_has_a_docstring(public):
    for name, member in inspect.getmembers(public):
        if not name.startswith("_"):
            assert member.__doc__, name
