"""Plans and results through the codec, and the worker behind a process border."""

import dataclasses

import msgspec
import numpy as np
import pytest
from llm_distributed import CallFailed, CodecError, MultiprocessExecutor
from llm_engine.outputs import TokenLogprobs
from llm_engine.worker import ModelInfo, RowParams, WorkerConfig
from llm_engine.worker.codec import EngineCodec
from llm_engine.worker.kv_groups import KVGroup, KVLayout
from llm_scheduler import NewRow, Ragged, StepPlan, StepResult


def through(value):
    codec = EngineCodec()
    return codec.decode([memoryview(frame) for frame in codec.encode(value)])


def assert_same(left, right):
    """Equal values and, for arrays, equal types and shapes, all the way down."""
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert np.array_equal(left, right)
    elif dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right


def random_plan(seed):
    generator = np.random.default_rng(seed)
    rows = int(generator.integers(0, 6))

    def ints(*shape):
        return generator.integers(0, 2**31 - 1, shape).astype(np.int32)

    params = RowParams(
        seed=int(generator.integers(-(2**63), 2**63 - 1)),
        temperature=0.5,
        logit_bias={3: -1.5, 49151: 100.0},
        logprobs=0,
        prompt_logprobs=5,
        min_tokens=2,
        stop_token_ids=(2, 0),
    )
    return StepPlan(
        step_id=seed,
        slots=ints(rows),
        num_tokens=ints(rows),
        num_computed=ints(rows),
        samples=generator.random(rows) < 0.5,
        new_blocks=(Ragged.from_rows([ints(int(n)) for n in generator.integers(0, 4, rows)]),),
        admitted=[
            NewRow(slot, f"id-{slot}-ü", ints(int(generator.integers(1, 9))), 1, payload)
            for slot, payload in ((1, params), (2, RowParams(seed=0)))
        ],
        released=ints(int(generator.integers(0, 3))),
        transfers=ints(int(generator.integers(0, 3)), 3),
    )


@pytest.mark.parametrize("seed", range(20))
def test_plans_come_back_as_they_went(seed):
    plan = random_plan(seed)
    assert_same(through(plan), plan)


def test_results_come_back_as_they_went():
    entry = TokenLogprobs(5, -0.25, 1, ((5, -0.25), (7, -9999.0)))
    result = StepResult(
        step_id=3,
        tokens=Ragged.from_rows([[5], [], [9, 10]]),
        logprobs={0: (entry,)},
        prompt_logprobs={2: (None, entry, TokenLogprobs(1, -1.0, 3, ()))},
        faults={1: "not a number"},
    )
    assert_same(through(result), result)


def test_plain_data_and_model_descriptions_cross_too():
    info = ModelInfo(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        max_model_len=20,
        model_max_len=30,
        kv_layout=KVLayout(
            groups=(
                KVGroup(kind="full", block_size=16, caches=(0, 3)),
                KVGroup(kind="window", block_size=16, span=100, caches=(1, 2)),
            ),
            page_bytes=4096,
        ),
        num_parameters=50,
        dtype="float32",
        device="cpu",
        load_s=0.5,
    )
    assert through(info) == info
    assert through((1, "x", None)) == [1, "x", None]
    config = WorkerConfig(model="m", max_model_len=7)
    assert msgspec.convert(through({"config": config})["config"], WorkerConfig) == config


def test_foreign_payloads_and_broken_bytes_are_refused():
    plan = random_plan(0)
    foreign = dataclasses.replace(plan, admitted=[NewRow(0, "x", np.zeros(1, np.int32), 1, object())])
    with pytest.raises(CodecError, match="payload of x"):
        EngineCodec().encode(foreign)
    with pytest.raises(CodecError):
        EngineCodec().encode(object())
    kind, body = EngineCodec().encode(plan)
    for frames in ([kind], [kind, body[:-1]], [b"\x09", body], [b"\2", body], [kind, b""]):
        with pytest.raises(CodecError):
            EngineCodec().decode([memoryview(frame) for frame in frames])


def test_the_worker_runs_behind_a_process_border():
    config = WorkerConfig(
        model="smollm2", device="cpu", load_format="dummy", kv_cache_bytes=2**24, max_num_seqs=2, threads=1
    )
    executor = MultiprocessExecutor(
        "llm_engine.worker:create_worker", {"config": config}, 1, "llm_engine.worker.codec:EngineCodec"
    )
    executor.start()
    try:
        (info,) = executor.call("load")
        assert isinstance(info, ModelInfo)
        with pytest.raises(CallFailed) as caught:
            executor.call("allocate_kv", 0)
        assert caught.value.error_type == "InvalidOption"
        (blocks,) = executor.call("size_kv_cache")
        executor.call("allocate_kv", blocks)
        row = NewRow(
            0, "r", np.array([5, 6, 7], np.int32), 3, RowParams(seed=1, logprobs=2, prompt_logprobs=1)
        )
        plan = StepPlan(
            step_id=0,
            slots=np.array([0], np.int32),
            num_tokens=np.array([3], np.int32),
            num_computed=np.array([0], np.int32),
            samples=np.array([True]),
            new_blocks=(Ragged.from_rows([[0]]),),
            admitted=[row],
            released=np.array([], np.int32),
            transfers=np.zeros((0, 3), np.int32),
        )
        result = executor.submit(plan).result()
    finally:
        executor.shutdown()
    (token,) = result.tokens.values.tolist()
    assert result.logprobs[0][0].token_id == token
    assert [e and e.token_id for e in result.prompt_logprobs[0]] == [None, 6, 7]
