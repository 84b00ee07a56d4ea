"""Captured decode steps on a CUDA device: the same tokens as kernel by kernel, and really replayed.

float32: in a half format the padding changes how products are summed, and a near-tie may flip a token.
"""

import json
import random

import pytest
import torch
from engine_tiny_models import DENSE, KINDS
from llm_engine import LLM, SamplingParams
from llm_engine.worker import capture_policy
from llm_engine.worker.decode_step import DecodeStep
from llm_engine.worker.mixed_step import MixedStep
from llm_kernels.ops.attention import PAGED_ATTENTION

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = {
    "load_format": "dummy",
    "device": "cuda",
    "dtype": "float32",
    "progress": False,
    "max_model_len": 6000,
    "max_num_seqs": 40,
    "max_num_batched_tokens": 256,
    "kv_cache_bytes": 256 << 20,
    "enable_prefix_caching": False,
}
BLOCK_BYTES = 3 * 2 * 16 * 2 * 32 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(DENSE))
    return path


@pytest.fixture
def make_llm(folder):
    made = []

    def make(graphs, **options):
        llm = LLM(str(folder), graphs=graphs, **{**OPTIONS, **options})
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.shutdown()


def prompts_of(count, longest=60, seed=0):
    numbers = random.Random(seed)
    return [[numbers.randrange(4990) for _ in range(numbers.randint(1, longest))] for _ in range(count)]


def tokens_of(llm, prompts, *, longest=30, **params):
    """Outputs of different lengths: rows leave while others decode, and the waiting ones join."""
    numbers = random.Random(1)
    wanted = [
        SamplingParams(max_tokens=numbers.randint(2, longest), ignore_eos=True, detokenize=False, **params)
        for _ in prompts
    ]
    return [output.outputs[0].token_ids for output in llm.generate(prompts, wanted, progress=False)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 17, 40, 90])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_greedy_tokens_are_the_eager_ones(make_llm, count, overlap):
    prompts = prompts_of(count)
    expected = tokens_of(make_llm("none", overlap=overlap), prompts, temperature=0.0)
    llm = make_llm("full", overlap=overlap)
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    stats = llm.stats()
    assert stats.graph_steps > stats.eager_steps or count == 90
    assert stats.graph_steps > 0


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "seed": 7},
        {"temperature": 0.8, "seed": 7, "top_k": 30, "top_p": 0.9},
        {"temperature": 1.0, "seed": 1, "repetition_penalty": 1.2, "min_tokens": 2},
    ],
    ids=str,
)
def test_seeded_draws_are_the_eager_ones(make_llm, params):
    prompts = prompts_of(20)
    expected = tokens_of(make_llm("none"), prompts, **params)
    llm = make_llm("auto")
    assert tokens_of(llm, prompts, **params) == expected
    assert tokens_of(llm, prompts, **params) == expected
    assert llm.stats().graph_steps > 0


@pytest.mark.parametrize("breaks", [False, True], ids=["asked for", "where whole graphs fail"])
def test_pieces(make_llm, monkeypatch, caplog, breaks):
    prompts = prompts_of(19)
    expected = tokens_of(make_llm("none"), prompts, temperature=0.0)
    if breaks:
        attend = PAGED_ATTENTION.pick(torch.device("cuda", 0), torch.float32, DENSE["head_dim"])

        def looking(out, query, *others):
            query.sum().item()
            return attend(out, query, *others)

        monkeypatch.setattr(PAGED_ATTENTION, "pick", lambda *_: looking)
    llm = make_llm("auto" if breaks else "piecewise")
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    assert llm.stats().graph_steps > 0
    assert not [record for record in caplog.records if "no graph for" in record.getMessage()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dense"])
def test_other_kinds_of_models(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps(KINDS[kind]))
    prompts, found = prompts_of(11, longest=90), []
    for graphs in ("none", "full"):
        llm = LLM(str(tmp_path), graphs=graphs, **OPTIONS)
        found.append([tokens_of(llm, prompts, longest=50, temperature=0.0) for _ in range(2)])
        if graphs == "full":
            assert llm.stats().graph_steps > 0
        llm.shutdown()
    assert found[1] == found[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 0.7, "seed": 1, "top_p": 0.9}], ids=str
)
def test_small_steps_with_prompts(tmp_path, kind, params):
    (tmp_path / "config.json").write_text(json.dumps(KINDS[kind]))
    prompts, found = prompts_of(30, longest=90), []
    for graphs in ("none", "full"):
        llm = LLM(str(tmp_path), graphs=graphs, **OPTIONS)
        found.append([tokens_of(llm, prompts, **params) for _ in range(3)])
        if graphs == "full":
            runner = llm._client._core._executor._worker._runner
            assert runner._graphs.mixed.num_replays > 3
        llm.shutdown()
    assert found[1] == found[0]


def test_logprobs_are_the_eager_ones(make_llm):
    params = SamplingParams(temperature=0.0, max_tokens=9, logprobs=2, prompt_logprobs=1, detokenize=False)
    found = []
    for graphs in ("none", "full"):
        outputs = make_llm(graphs).generate(prompts_of(7), params, progress=False)
        found.append([entry.logprob for output in outputs for entry in output.outputs[0].logprobs])
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_long_contexts(make_llm):
    prompts = [[5] * 1015, [6] * 4090, [7, 8, 9]]
    expected = tokens_of(make_llm("none"), prompts, temperature=0.0)
    llm = make_llm("full")
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    assert llm.stats().graph_steps > 0


def test_preempted_rows_go_on(make_llm):
    sizes = {"max_model_len": 128, "kv_cache_bytes": 12 * BLOCK_BYTES}
    prompts = prompts_of(12, longest=30)
    expected = tokens_of(make_llm("none", **sizes), prompts, longest=90, temperature=0.0)
    llm = make_llm("full", **sizes)
    assert tokens_of(llm, prompts, longest=90, temperature=0.0) == expected
    stats = llm.stats()
    assert stats.preemptions > 0
    assert stats.graph_steps > 0


def test_none_replays_nothing(make_llm):
    llm = make_llm("none")
    tokens_of(llm, prompts_of(3), temperature=0.0)
    assert llm.stats().graph_steps == 0


@pytest.mark.parametrize("breaks", ["exception", "synchronisation"])
def test_a_capture_that_fails_costs_no_request(make_llm, monkeypatch, caplog, breaks):
    prompts = prompts_of(9)
    expected = tokens_of(make_llm("none"), prompts, temperature=0.0)
    hidden = DecodeStep.hidden

    def broken(self, inputs, *, shares=False):
        if torch.cuda.is_current_stream_capturing():
            if breaks == "exception":
                raise RuntimeError("cannot be captured")
            inputs.slots.sum().item()
        return hidden(self, inputs, shares=shares)

    tokens = MixedStep.tokens

    def broken_too(self, key, inputs):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("cannot be captured either")
        return tokens(self, key, inputs)

    monkeypatch.setattr(DecodeStep, "hidden", broken)
    monkeypatch.setattr(MixedStep, "tokens", broken_too)
    llm = make_llm("full")
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    stats = llm.stats()
    assert (stats.graph_steps, stats.failed_steps) == (0, 0)
    assert 1 <= sum("no graph for" in record.getMessage() for record in caplog.records) <= 3


def test_decode_sizes_captured_behind_prompts(make_llm, monkeypatch):
    monkeypatch.setattr(capture_policy, "_HIDING_S", 0.0)
    monkeypatch.setattr(capture_policy, "_PARAMETERS_PER_SECOND", 1.0)
    prompts = prompts_of(40, longest=120)
    expected = tokens_of(make_llm("none"), prompts, temperature=0.0)
    llm = make_llm("full")
    assert tokens_of(llm, prompts, temperature=0.0) == expected
    graphs = llm._client._core._executor._worker._runner._graphs.decode.graphs
    assert len(graphs) >= 8
    before = llm.stats()
    assert tokens_of(llm, prompts_of(40, seed=5), temperature=0.0)
    after = llm.stats()
    assert after.graph_steps - before.graph_steps > 0.8 * (after.steps - before.steps)
