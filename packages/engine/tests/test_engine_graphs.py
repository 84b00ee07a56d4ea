"""The decode step that graphs capture, run directly on the CPU, against the eager way; buckets; options."""

import json
import random
from typing import ClassVar

import numpy as np
import pytest
import torch
from llm_distributed import DeviceMesh
from llm_engine import LLM, SamplingParams
from llm_engine.worker import InvalidOption, WorkerConfig, create_worker
from llm_engine.worker.capture_policy import CapturePolicy
from llm_engine.worker.decode_layout import DecodeLayout
from llm_engine.worker.decode_step import DecodeStep
from llm_engine.worker.devices import pick_graphs
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
            runner_of(llm).use_graphs(uncaptured, memory_bytes=10**6)
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


def tokens_of(llm, **params):
    return [one.token_ids for one in generate(llm, **params)]


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
    assert runner._graphs.budget.num_bytes > 0
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
    tables, metadata = runner.tables, runner.group_metadata
    step = DecodeStep(runner.model, runner.caches, tables, metadata, max_rows=7)

    def run(slots, contexts, padded):
        layout = DecodeLayout(padded, 1)
        host = layout.on_host(np.zeros(layout.num_bytes, np.uint8))
        host.clear()
        host.slots[: len(slots)], host.context_lens[: len(slots)] = slots, contexts
        return step.hidden(layout.on_device(torch.from_numpy(host.packed)))

    before = [cache.clone() for caches in runner.caches for cache in caches]
    assert torch.isfinite(run([], [], 4)).all()
    for cache, old in zip((c for caches in runner.caches for c in caches), before, strict=True):
        assert torch.equal(cache, old)
    exact, padded = run([2, 0], [9, 5], 2), run([2, 0], [9, 5], 7)
    assert torch.allclose(padded[:2], exact, atol=1e-6)


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"temperature": 0.9, "seed": 3}, {(True, False)}),
        ({"temperature": 0.9, "seed": 3, "top_k": 5}, {(True, True)}),
        ({"temperature": 0.9, "seed": 3, "min_p": 0.1, "top_p": 0.9}, {(True, True)}),
        ({"temperature": 0.0, "top_k": 5}, {(True, False)}),
        ({"temperature": 0.9, "seed": 3, "presence_penalty": 0.1}, {(False, False)}),
        ({"temperature": 0.9, "seed": 3, "min_tokens": 4, "stop_token_ids": [5]},
         {(False, False), (True, False)}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_drawn_inside_a_graph(make_llm, params, kind):
    expected = [one.token_ids for one in generate(make_llm(graphs=False), **params)]
    other = make_llm(graphs=True)
    assert [one.token_ids for one in generate(other, **params)] == expected
    assert {(key.draws, key.filters) for key in runner_of(other)._graphs.decode.graphs} == kind


@pytest.mark.parametrize(("memory_bytes", "num_graphs"), [(0, 0), (500, 1), (1500, 2)])
def test_above_the_memory_budget_nothing_more_is_captured(make_llm, uncaptured, memory_bytes, num_graphs):
    llm = make_llm(graphs=False)
    kinds = [{"temperature": 0.0}, {"temperature": 0.0, "logprobs": 1}]
    expected = [[one.token_ids for one in generate(llm, **params)] for params in kinds]
    runner = runner_of(llm)
    runner.use_graphs(uncaptured, memory_bytes=memory_bytes)
    for _ in range(2):
        assert [[one.token_ids for one in generate(llm, **params)] for params in kinds] == expected
    assert uncaptured.num_captured == num_graphs
    assert runner._graphs.budget.num_bytes == 1000 * num_graphs
    assert (runner.num_graph_steps > 0) == (num_graphs > 0)


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_capture_that_fails_costs_no_request(make_llm, uncaptured, caplog, lockstep):
    llm = make_llm(graphs=False)
    expected = [one.token_ids for one in generate(llm, temperature=0.0)]

    class Broken(type(uncaptured)):
        def __call__(self, function):
            raise RuntimeError("cannot be captured")

    runner = runner_of(llm)
    runner.use_graphs(Broken(), memory_bytes=10**6, lockstep=lockstep)
    for _ in range(2):
        assert [one.token_ids for one in generate(llm, temperature=0.0)] == expected
    assert runner.num_graph_steps == 0
    assert 1 <= sum("no graph for" in record.getMessage() for record in caplog.records) <= 3


def test_where_whole_graphs_fail_pieces_are_tried(make_llm, uncaptured, caplog):
    llm = make_llm(graphs=False)
    expected = [one.token_ids for one in generate(llm, temperature=0.0)]

    class Whole(type(uncaptured)):
        in_pieces = False

        def __call__(self, function):
            if not self.in_pieces:
                raise RuntimeError("not as a whole")
            return super().__call__(function)

        def weaken(self):
            weakens, self.in_pieces = not self.in_pieces, True
            return weakens

    runner, capture = runner_of(llm), Whole()
    runner.use_graphs(capture, memory_bytes=10**6)
    for _ in range(2):
        assert [one.token_ids for one in generate(llm, temperature=0.0)] == expected
    assert runner.num_graph_steps > 0
    # Every attention of every step went by way of the capture.
    num_layers = CONFIG["num_hidden_layers"]
    assert capture.num_apart % num_layers == 0
    assert capture.num_apart >= num_layers * runner.num_graph_steps
    assert not [record for record in caplog.records if "no graph for" in record.getMessage()]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 2, "top_k": 20}], ids=str
)
def test_small_steps_with_prompts_are_captured_too(make_llm, overlap, params):
    expected = tokens_of(make_llm(graphs=False, overlap=overlap), **params)
    other = make_llm(graphs=True, overlap=overlap, enable_prefix_caching=False)
    for _ in range(3):
        assert tokens_of(other, **params) == expected
    mixed = runner_of(other)._graphs.mixed
    assert mixed.num_replays > 3
    assert {key.filters for key in mixed.graphs} == {"top_k" in params}
    assert any(key.decodes for key in mixed.graphs)
    assert any(key.prompts > 1 for key in mixed.graphs)


def test_decode_sizes_are_captured_behind_prompts(make_llm):
    expected = tokens_of(make_llm(graphs=False), temperature=0.9, seed=3)
    other = make_llm(graphs=True)
    policy = CapturePolicy(GraphBuckets(7), num_parameters=10**15)
    runner_of(other)._graphs.decode_policy = policy
    captured = runner_of(other)._graphs.decode.graphs
    other.generate(
        [PROMPTS[2]], SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False), progress=False
    )
    assert list(captured) == [GraphKey(1)]
    assert tokens_of(other, temperature=0.9, seed=3) == expected
    assert {key.rows for key in captured} >= {1, 4, 7}


def test_idle_time_brings_the_sizes_that_were_missed(make_llm):
    expected = tokens_of(make_llm(graphs=False), temperature=0.0)
    llm = make_llm(graphs=True)
    core, decode = llm._client._core, runner_of(llm)._graphs.decode
    assert not core.use_idle_time()  # nothing has run: there is nothing to ask the worker
    assert tokens_of(llm, temperature=0.0) == expected
    before = len(decode.graphs)
    caches = [cache.clone() for caches in runner_of(llm).caches for cache in caches]
    while core.use_idle_time():
        pass
    assert len(decode.graphs) > before
    assert not core.use_idle_time()
    for cache, old in zip((c for cs in runner_of(llm).caches for c in cs), caches, strict=True):
        assert torch.equal(cache, old)
    replays = decode.num_replays
    assert tokens_of(llm, temperature=0.0) == expected
    assert decode.num_replays > replays


def test_prompts_that_want_logprobs_run_outside(make_llm):
    other = make_llm(graphs=True)
    for _ in range(3):
        generate(other, temperature=0.0, prompt_logprobs=1)
    assert not runner_of(other)._graphs.mixed.graphs


class TestBuckets:
    SMALL: ClassVar = GraphBuckets(256)

    @pytest.mark.parametrize(
        ("rows", "bucket"),
        [(1, 1), (3, 4), (5, 8), (25, 32), (33, 48), (97, 128), (256, 256), (257, None)],
    )
    def test_choice(self, rows, bucket):
        assert self.SMALL.choose(rows) == bucket

    def test_an_odd_limit_is_a_bucket(self):
        buckets = GraphBuckets(100)
        assert buckets.rows[-2:] == [96, 100]
        assert buckets.choose(97) == 100

    @pytest.mark.parametrize("max_rows", [1, 2, 7, 33, 256, 5000])
    def test_every_step_up_to_the_limit_has_one(self, max_rows):
        buckets = GraphBuckets(max_rows)
        chosen = {buckets.choose(rows) for rows in range(1, min(max_rows, 512) + 1)}
        assert chosen == set(buckets.rows)
        assert buckets.rows == sorted(set(buckets.rows))
        assert len(buckets.rows) < 26


class TestPolicy:
    def test_the_first_step_of_a_size_without_a_larger_one_captures(self):
        policy = CapturePolicy(GraphBuckets(256))
        assert policy.choose(GraphKey(3)) == (GraphKey(4), True)
        assert policy.choose(GraphKey(3)) == (GraphKey(4), False)
        assert policy.choose(GraphKey(9)) == (GraphKey(16), True)

    def test_a_smaller_size_runs_padded_until_it_came_often(self):
        policy = CapturePolicy(GraphBuckets(256))
        policy.choose(GraphKey(256))
        choices = [policy.choose(GraphKey(100)) for _ in range(200)]
        first = next(index for index, choice in enumerate(choices) if choice.captures)
        assert first == 63  # the gap: its 128 rows alone would have been worth it no later
        assert all(choice == (GraphKey(256), False) for choice in choices[:first])
        assert all(choice == (GraphKey(128), False) for choice in choices[first + 1 :])

    def test_little_padding_is_borne_for_longer(self):
        policy = CapturePolicy(GraphBuckets(256))
        policy.choose(GraphKey(256))
        choices = [policy.choose(GraphKey(224)) for _ in range(448)]
        assert [choice.captures for choice in choices] == [False] * 447 + [True]

    @pytest.mark.parametrize(("parameters", "steps"), [(8_200_000_000, 64), (1_200_000_000, 273)])
    def test_padding_costs_more_where_the_model_is_large(self, parameters, steps):
        policy = CapturePolicy(GraphBuckets(256), num_parameters=parameters)
        policy.choose(GraphKey(256))
        choices = [policy.choose(GraphKey(224)) for _ in range(steps)]
        assert [choice.captures for choice in choices] == [False] * (steps - 1) + [True]

    def test_rows_that_the_weights_hide_cost_the_same_in_every_model(self):
        small, large = (CapturePolicy(GraphBuckets(256), num_parameters=n) for n in (0, 70_000_000_000))
        for policy in (small, large):
            policy.choose(GraphKey(64))
        assert [small.choose(GraphKey(48)) for _ in range(300)] == [
            large.choose(GraphKey(48)) for _ in range(300)
        ]

    def test_sizes_for_the_rows_of_a_long_prompt_step_are_captured_behind_it(self):
        policy = CapturePolicy(GraphBuckets(100), num_parameters=8_000_000_000)
        assert policy.behind_prompts(GraphKey(60), 500) is None
        found = [policy.behind_prompts(GraphKey(60), 8192) for _ in range(11)]
        assert [key and key.rows for key in found] == [64, 96, 100, 48, 32, 24, 16, 8, 4, 2, 1]
        assert policy.behind_prompts(GraphKey(60), 8192) is None
        assert policy.choose(GraphKey(70)) == (GraphKey(96), False)
        other = GraphKey(60, filters=True)
        assert policy.behind_prompts(other, 8192) == other._replace(rows=64)

    def test_what_failed_behind_prompts_is_not_tried_again(self):
        policy = CapturePolicy(GraphBuckets(2), num_parameters=8_000_000_000)
        policy.failed(policy.behind_prompts(GraphKey(1), 8192))
        assert policy.behind_prompts(GraphKey(1), 8192) == GraphKey(2)
        assert policy.behind_prompts(GraphKey(1), 8192) is None

    def test_nothing_is_captured_behind_prompts_in_lockstep(self):
        assert CapturePolicy(GraphBuckets(100), lockstep=True).behind_prompts(GraphKey(1), 10**6) is None

    def test_kinds_have_graphs_of_their_own(self):
        policy = CapturePolicy(GraphBuckets(256))
        policy.choose(GraphKey(256))
        assert policy.choose(GraphKey(8, draws=False)) == (GraphKey(8, draws=False), True)
        assert policy.choose(GraphKey(8, shares=True)) == (GraphKey(8, shares=True), True)
        assert policy.choose(GraphKey(8)) == (GraphKey(256), False)

    def test_the_size_that_was_missed_most_comes_first(self):
        policy = CapturePolicy(GraphBuckets(256))
        assert policy.most_wanted() is None
        for rows, times in ((256, 1), (7, 3), (30, 5), (100, 4)):
            for _ in range(times):
                policy.choose(GraphKey(rows))
        policy.failed(GraphKey(128))
        assert [policy.most_wanted() for _ in range(3)] == [GraphKey(32), GraphKey(8), None]
        assert policy.choose(GraphKey(7)) == (GraphKey(8), False)

    def test_more_rows_than_any_size_run_without(self):
        assert CapturePolicy(GraphBuckets(1000)).choose(GraphKey(513)) is None

    def test_what_failed_is_not_tried_again(self):
        policy = CapturePolicy(GraphBuckets(256))
        policy.choose(GraphKey(8))
        policy.failed(GraphKey(8))
        assert policy.choose(GraphKey(8)) is None
        policy.choose(GraphKey(64))
        assert {policy.choose(GraphKey(8)) for _ in range(500)} == {(GraphKey(64), False)}

    def test_ranks_in_lockstep_choose_sizes_as_if_nothing_failed(self):
        steps = [numbers.randint(1, 256) for numbers in [random.Random(4)] for _ in range(3000)]
        one, other = (CapturePolicy(GraphBuckets(256), lockstep=True) for _ in range(2))
        for rows in steps:
            mine, its = one.choose(GraphKey(rows)), other.choose(GraphKey(rows))
            assert mine == its
            if mine.captures:
                other.failed(mine.key)


@pytest.mark.parametrize(
    ("name", "device", "wanted"),
    [("auto", "cpu", None), ("none", "cpu", None), ("auto", "cuda", "auto"), ("none", "cuda", None),
     ("full", "cuda", "full"), ("piecewise", "cuda", "piecewise")],
)  # fmt: skip
def test_how_steps_are_captured(name, device, wanted):
    assert pick_graphs(name, torch.device(device)) == wanted


@pytest.mark.parametrize("value", ["full", "piecewise", "some"])
def test_bad_graphs_are_named(value):
    with pytest.raises(InvalidOption) as caught:
        create_worker(DeviceMesh(), config=WorkerConfig(model="smollm2", device="cpu", graphs=value))
    assert caught.value.field == "graphs"
