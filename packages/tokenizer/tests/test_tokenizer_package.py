"""The package as a stranger meets it: README, import without torch, stubs."""

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

from llm_tokenizer import InvalidArgument, TemplateError, TokenizerError, TokenizerFileError, _native

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)

NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "transformers", "tokenizers"}:
            raise ImportError(f"{name} was imported")
sys.meta_path.insert(0, Refuse())
"""


def test_readme_runs_without_torch():
    assert BLOCKS
    for block in BLOCKS:
        subprocess.run([sys.executable, "-c", NO_TORCH + block], check=True, timeout=60)


def test_the_stub_names_what_the_native_classes_have():
    stub = (ROOT / "src/llm_tokenizer/_native.pyi").read_text()
    for name in ("NativeTokenizer", "NativeDetokenizer"):
        declared = set(
            re.findall(r"^    def (\w+)", stub.split(f"class {name}")[1].split("@final")[0], re.MULTILINE)
        )
        present = {key for key, _ in inspect.getmembers(getattr(_native, name)) if not key.startswith("_")}
        assert declared == present


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(InvalidArgument("ids", "are wrong")))
    assert (error.field, error.message, str(error)) == ("ids", "are wrong", "ids: are wrong")
    for kind in (TokenizerFileError, TemplateError):
        assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"
        assert issubclass(kind, TokenizerError)
