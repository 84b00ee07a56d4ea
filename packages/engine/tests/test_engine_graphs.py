"""The decode step that graphs capture, run directly on the CPU, against the eager way; buckets; options."""

import json
from typing import ClassVar

import numpy as np
import pytest
import torch
from llm_distributed import DeviceMesh
from llm_engine import LLM, SamplingParams
from llm_engine.worker import InvalidOption, WorkerConfig, create_worker
from llm_engine.worker.decode_step import pack_rows
from llm_engine.worker.devices import use_graphs
from llm_engine.worker.graph_buckets import GraphBuckets, GraphKey

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "max_position_embeddings": 256,
    "eos_token_id": 499,
}
PROMPTS = [[(7 * i + 3 * j) % 490 for j in range(length)] for i, length in enumerate([1, 5, 20, 3, 40, 2, 9])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def make_llm(folder, uncaptured):
    made = []

    def make(*, graphs, **options):
        options = {"max_num_seqs": 7, "max_num_batched_tokens": 24, "kv_cache_bytes": 1 << 20, **options}
        llm = LLM(str(folder), load_format="dummy", device="cpu", threads=1, progress=False, **options)
        made.append(llm)
        if graphs:
            runner = runner_of(llm)
            runner._graphs = uncaptured(runner)
        return llm

    yield make
    for llm in made:
        llm.shutdown()


def runner_of(llm):
    return llm._client._core._executor._worker._runner


def generate(llm, **params):
    """Rows of different lengths, so that some join and some leave while others decode."""
    wanted = [
        SamplingParams(max_tokens=8 + 5 * (index % 4), ignore_eos=True, detokenize=False, **params)
        for index in range(len(PROMPTS))
    ]
    outputs = llm.generate(PROMPTS, wanted, progress=False)
    return [output.outputs[0] for output in outputs]


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.1, "seed": 5, "top_p": 0.8, "frequency_penalty": 0.5},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_the_captured_function_brings_the_eager_tokens(make_llm, params, overlap):
    eager = make_llm(graphs=False, overlap=overlap)
    other = make_llm(graphs=True, overlap=overlap)
    expected, got = generate(eager, **params), generate(other, **params)
    assert [one.token_ids for one in got] == [one.token_ids for one in expected]
    if "logprobs" in params:
        values = [[entry.logprob for one in outputs for entry in one.logprobs] for outputs in (expected, got)]
        assert values[1] == pytest.approx(values[0], abs=1e-5)
    runner = runner_of(other)
    assert runner.num_graph_steps > 10
    assert runner.num_eager_steps > 0
    assert runner._graphs.num_padded > 0
    stats = other.stats()
    assert (stats.graph_steps, stats.eager_steps) == (runner.num_graph_steps, runner.num_eager_steps)
    assert eager.stats().graph_steps == 0


def test_preempted_rows_go_on(make_llm):
    sizes = {"max_model_len": 64, "block_size": 4, "kv_cache_bytes": 18 * 2048}
    eager, other = make_llm(graphs=False, **sizes), make_llm(graphs=True, **sizes)
    expected = [one.token_ids for one in generate(eager, temperature=0.0)]
    assert [one.token_ids for one in generate(other, temperature=0.0)] == expected
    assert other.stats().preemptions > 0


def test_padding_rows_write_nothing_and_leave_the_others_alone(make_llm):
    llm = make_llm(graphs=True)
    generate(llm, temperature=0.0)
    runner = runner_of(llm)
    before = [cache.clone() for caches in runner.caches for cache in caches]
    step = runner._graphs.step
    none = np.zeros(0, np.int32)
    hidden = step.run(torch.from_numpy(pack_rows(none, none, 4)), 257)
    assert torch.isfinite(hidden).all()
    assert all(
        torch.equal(cache, old)
        for cache, old in zip((c for cs in runner.caches for c in cs), before, strict=True)
    )
    slots, contexts = np.array([2, 0], np.int32), np.array([9, 5], np.int32)
    exact = step.run(torch.from_numpy(pack_rows(slots, contexts, 2)), 257)
    padded = step.run(torch.from_numpy(pack_rows(slots, contexts, 7)), 257)
    assert torch.allclose(padded[:2], exact, atol=1e-6)


class TestBuckets:
    SMALL: ClassVar = GraphBuckets(256, 40_961)

    @pytest.mark.parametrize(
        ("rows", "context", "key"),
        [
            (1, 1, (1, 1024)),
            (1, 1024, (1, 1024)),
            (1, 1025, (1, 4096)),
            (3, 5000, (4, 16_384)),
            (5, 40_961, (8, 40_961)),
            (25, 16_385, (32, 40_961)),
            (33, 10, (48, 40_961)),
            (97, 10, (128, 40_961)),
            (256, 40_961, (256, 40_961)),
            (257, 10, None),
            (1, 40_962, None),
        ],
    )
    def test_choice(self, rows, context, key):
        assert self.SMALL.choose(rows, context) == (None if key is None else GraphKey(*key))

    def test_an_odd_limit_is_a_bucket(self):
        buckets = GraphBuckets(100, 300)
        assert buckets.rows[-2:] == [96, 100]
        assert buckets.contexts == [300]
        assert buckets.choose(97, 300) == GraphKey(100, 300)

    @pytest.mark.parametrize("max_rows", [1, 2, 7, 33, 256, 5000])
    def test_every_step_up_to_the_limit_has_one(self, max_rows):
        buckets = GraphBuckets(max_rows, 9000)
        keys = {
            buckets.choose(rows, context)
            for rows in range(1, min(max_rows, 512) + 1)
            for context in (1, 1024, 1025, 4097, 9000)
        }
        assert None not in keys
        assert len(keys) == len(buckets)
        assert buckets.rows == sorted(set(buckets.rows))
        assert len(buckets) < 64


@pytest.mark.parametrize(
    ("name", "device", "wanted"),
    [("auto", "cpu", False), ("none", "cpu", False), ("auto", "cuda", True), ("none", "cuda", False),
     ("full", "cuda", True)],
)  # fmt: skip
def test_whether_graphs_are_used(name, device, wanted):
    assert use_graphs(name, torch.device(device)) is wanted


@pytest.mark.parametrize("value", ["full", "some"])
def test_bad_graphs_are_named(value):
    with pytest.raises(InvalidOption) as caught:
        create_worker(DeviceMesh(), config=WorkerConfig(model="smollm2", device="cpu", graphs=value))
    assert caught.value.field == "graphs"
