"""The asynchronous front end with a real core process and the real model."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
import time

import pytest
import pytest_asyncio
from llm_engine import (
    AsyncLLM,
    EngineBusy,
    EngineDead,
    EngineOptions,
    InvalidRequest,
    SamplingParams,
    StartupError,
)
from llm_engine.mailbox import join_deltas

OPTIONS = EngineOptions(
    model="smollm2",
    device="cpu",
    dtype="float32",
    max_model_len=512,
    kv_cache_bytes=64 << 20,
    threads=1,
    progress=False,
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
PROMPTS = ["The capital of France is", "def add(a, b):", "Once upon a time, in a village by the sea,"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    running = await AsyncLLM.start(OPTIONS)
    yield running
    await running.shutdown()


async def collect(stream):
    """The whole answer of each choice, by index."""
    whole, deltas = {}, []
    async for delta in stream:
        deltas.append(delta)
        earlier = whole.get(delta.index)
        assert earlier is None or earlier.finish_reason is None, "a delta after the last"
        whole[delta.index] = delta if earlier is None else join_deltas(earlier, delta)
    return whole, deltas


async def until(condition, *, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not (last := await condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)
    return last


async def test_streams_equal_the_offline_engine(engine, llm):
    expected = llm.generate(PROMPTS, GREEDY, progress=False)
    answers = await asyncio.gather(*(collect(engine.generate(prompt, GREEDY)) for prompt in PROMPTS))
    for (whole, deltas), output in zip(answers, expected, strict=True):
        assert whole[0].text == output.outputs[0].text
        assert whole[0].token_ids == output.outputs[0].token_ids
        assert whole[0].finish_reason == output.outputs[0].finish_reason
        assert whole[0].num_prompt_tokens == len(output.prompt_token_ids)
        assert [delta.num_output_tokens for delta in deltas] == sorted(d.num_output_tokens for d in deltas)
        assert deltas[-1].num_output_tokens == len(output.outputs[0].token_ids)
        assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


async def test_32_streams_at_once(engine):
    (alone, _) = await collect(engine.generate(PROMPTS[0], GREEDY))
    answers = await asyncio.gather(*(collect(engine.generate(PROMPTS[0], GREEDY)) for _ in range(32)))
    assert {whole[0].token_ids for whole, _ in answers} == {alone[0].token_ids}
    assert (await engine.stats(check_cache=True)).running == 0


async def test_three_choices_with_logprobs_and_a_stop_string(engine):
    params = SamplingParams(n=3, seed=3, temperature=1.0, max_tokens=24, logprobs=2, stop=["e"])
    whole, _ = await collect(engine.generate(PROMPTS[2], params))
    assert sorted(whole) == [0, 1, 2]
    for delta in whole.values():
        assert "e" not in delta.text
        assert len(delta.logprobs) == len(delta.token_ids) == delta.num_output_tokens
        assert delta.finish_reason in ("stop", "length")
        assert delta.finish_reason == "length" or delta.stop_reason in ("e", None)
    again, _ = await collect(engine.generate(PROMPTS[2], params))
    assert {index: delta.token_ids for index, delta in again.items()} == {
        index: delta.token_ids for index, delta in whole.items()
    }


async def test_closing_the_stream_frees_the_blocks_within_a_step(engine):
    before = await engine.stats()
    stream = engine.generate(PROMPTS[0], LONG)
    async for delta in stream:
        if delta.num_output_tokens >= 3:
            break
    assert (await engine.stats()).kv_blocks_used > 0
    await stream.aclose()
    after = await engine.stats()  # behind the abort in the same queue: no waiting
    assert (after.running, after.kv_blocks_used) == (0, 0)
    assert after.requests_finished["abort"] == before.requests_finished["abort"] + 1


async def test_cancelling_the_reader_aborts(engine):
    reader = asyncio.create_task(collect(engine.generate(PROMPTS[0], LONG)))

    async def runs():
        return (await engine.stats()).running == 1

    await until(runs)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await engine.stats()).running == 0


async def test_abort_by_id_ends_the_stream(engine):
    text = ""
    async for delta in engine.generate(PROMPTS[0], LONG, request_id="mine"):
        assert delta.request_id == "mine"
        text += delta.text
        if delta.num_output_tokens == 5:
            assert await engine.abort("mine")
        last = delta
    assert last.finish_reason == "abort"
    assert text
    assert not await engine.abort("mine")
    assert (await engine.stats()).kv_blocks_used == 0


async def test_two_requests_may_share_an_id(engine):
    first, second = await asyncio.gather(
        collect(engine.generate(PROMPTS[0], GREEDY, request_id="same")),
        collect(engine.generate(PROMPTS[1], GREEDY, request_id="same")),
    )
    assert first[0][0].text != second[0][0].text
    assert (await collect(engine.generate(PROMPTS[0], GREEDY)))[0][0].text == first[0][0].text


async def test_a_slow_reader_loses_nothing(engine):
    (whole, _) = await collect(engine.generate(PROMPTS[0], GREEDY))
    deltas = []
    async for delta in engine.generate(PROMPTS[0], GREEDY):
        deltas.append(delta)
        await asyncio.sleep(0.3)
    assert len(deltas) < 12
    assert "".join(delta.text for delta in deltas) == whole[0].text


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", GREEDY, "prompt"),
        ([], GREEDY, "prompt"),
        ([10**6], GREEDY, "prompt"),
        ([1] * 512, GREEDY, "prompt"),
        (None, GREEDY, "prompt"),
        ("a", None, "params"),
        ("a", SamplingParams(max_tokens=512), "max_tokens"),
        ("a", SamplingParams(stop_token_ids=[49_152]), "stop_token_ids"),
    ],
)
async def test_bad_input_reaches_no_queue(engine, prompt, params, field):
    before = await engine.stats()
    with pytest.raises(InvalidRequest) as caught:
        await collect(engine.generate(prompt, params))
    assert caught.value.field == field
    assert (await engine.stats()).requests_added == before.requests_added


async def test_encode_chat_equals_the_rendered_template(engine):
    messages = [{"role": "user", "content": "Hi"}]
    prompt = await engine.encode_chat(messages)
    assert prompt.text == engine.tokenizer.render_chat(messages)
    assert prompt.token_ids == await engine.encode(prompt.text, add_special_tokens=False)
    whole, _ = await collect(engine.generate(prompt, GREEDY))
    assert whole[0].text


async def test_overlap_gives_the_same_tokens(engine):
    overlapped = await AsyncLLM.start(EngineOptions(**{**vars_of(OPTIONS), "overlap": True}))
    try:
        for prompt in PROMPTS:
            plain, _ = await collect(engine.generate(prompt, GREEDY))
            ahead, _ = await collect(overlapped.generate(prompt, GREEDY))
            assert ahead[0].token_ids == plain[0].token_ids
        stream = overlapped.generate(PROMPTS[0], LONG)
        await anext(stream)
        await stream.aclose()

        async def freed():
            stats = await overlapped.stats()
            return stats.kv_blocks_used == 0

        await until(freed)
    finally:
        await overlapped.shutdown()


def vars_of(options):
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


async def test_a_killed_core_gives_errors_and_no_hang():
    engine = await AsyncLLM.start(OPTIONS)
    stream = engine.generate(PROMPTS[0], LONG)
    await anext(stream)
    reader = asyncio.create_task(collect(engine.generate(PROMPTS[1], LONG)))
    await asyncio.sleep(0)
    os.kill(engine.core_pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        with pytest.raises(EngineDead, match="SIGKILL"):
            await collect(stream)
        with pytest.raises(EngineDead):
            await reader
        with pytest.raises(EngineDead, match="SIGKILL"):
            await collect(engine.generate(PROMPTS[0], GREEDY))
        with pytest.raises(EngineDead):
            await engine.stats()
    assert not engine.is_healthy()
    await engine.shutdown()


async def test_drain_waits_and_refuses_then_shutdown_ends_the_core():
    engine = await AsyncLLM.start(OPTIONS)
    assert engine.is_healthy()
    reader = asyncio.create_task(collect(engine.generate(PROMPTS[0], GREEDY)))
    await asyncio.sleep(0.05)
    assert await engine.drain(30.0)
    assert (await reader)[0][0].finish_reason is not None
    with pytest.raises(EngineBusy):
        await collect(engine.generate(PROMPTS[0], GREEDY))
    pid = engine.core_pid
    await engine.shutdown()
    await engine.shutdown()
    assert not engine.is_healthy()
    assert not is_alive(pid)


async def test_the_queue_is_bounded():
    engine = await AsyncLLM.start(
        EngineOptions(**{**vars_of(OPTIONS), "max_num_seqs": 1, "max_waiting_requests": 1})
    )
    try:
        answers = await asyncio.gather(
            *(collect(engine.generate(PROMPTS[0], GREEDY)) for _ in range(8)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, EngineBusy)]
        assert 0 < len(refused) < 8
        assert all(error.retry_after_s > 0 for error in refused)
        assert (await engine.stats()).running == 0
    finally:
        await engine.shutdown()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"model": "/nowhere/at/all"}, "ModelNotFound"), ({"kv_cache_bytes": 1024}, "KVCacheTooSmall")],
)
async def test_startup_failures_name_their_reason(changes, reason):
    with pytest.raises(StartupError) as caught:
        await AsyncLLM.start(EngineOptions(**{**vars_of(OPTIONS), **changes}))
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)


async def test_the_core_ends_when_the_front_end_is_killed():
    script = """
        import asyncio, sys
        from llm_engine import AsyncLLM, EngineOptions

        async def main():
            engine = await AsyncLLM.start(EngineOptions(
                model="smollm2", device="cpu", max_model_len=64, kv_cache_bytes=8 << 20, progress=False))
            print(engine.core_pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    front = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    core_pid = int(await front.stdout.readline())
    try:
        assert is_alive(core_pid)
        front.kill()

        async def gone():
            return not is_alive(core_pid)

        await until(gone, timeout_s=5.0)
    finally:
        await front.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(core_pid, signal.SIGKILL)


def is_alive(pid):
    """Whether a process runs (a dead one that waits for its parent does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
