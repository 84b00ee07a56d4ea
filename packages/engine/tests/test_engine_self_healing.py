"""A core that is killed: its requests go on in the next one, and the request that kills it ends alone."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from engine_poison import COUNT_POISON, FATAL_OUTPUTS, PROMPT_POISON
from engine_tiny_models import DENSE
from llm_engine import (
    AsyncLLM,
    CoreHost,
    EngineDead,
    EngineOptions,
    EngineRestarting,
    RequestFailed,
    RestartPolicy,
    SamplingParams,
    StartupError,
    TokensPrompt,
)
from llm_engine.grammar.spec import GrammarSpec
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
PROMPT = "Once upon a time, in a village by the sea,"
LONG = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TINY = replace(LONG, detokenize=False, max_tokens=300)
TINY_PROMPT = [1, 2, 3, 4]
EAGER = RestartPolicy(second_backoff_s=0.05, max_deaths=20)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    """One engine for all tests that only kill its core."""
    options = replace(OPTIONS, max_waiting_requests=16)
    running = await AsyncLLM.start(options, restart=replace(EAGER, max_deaths=1000))
    yield running
    await running.shutdown()


@pytest.fixture(scope="module")
def tiny_options(tmp_path_factory):
    """A model of random numbers, where only the tokens matter."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(DENSE))
    return replace(OPTIONS, model=str(folder), load_format="dummy", max_model_len=4096)


async def collect(stream, on_delta=None):
    """The whole answer of each choice, by index."""
    whole = {}
    async for delta in stream:
        earlier = whole.get(delta.index)
        assert earlier is None or earlier.finish_reason is None, "a delta after the last"
        whole[delta.index] = delta if earlier is None else join_deltas(earlier, delta)
        if earlier is not None:
            assert delta.num_output_tokens == earlier.num_output_tokens + len(delta.token_ids)
        if on_delta is not None:
            on_delta(whole)
    return whole


def kill_core(engine):
    with contextlib.suppress(EngineRestarting):
        os.kill(engine.core_pid, signal.SIGKILL)


def killer(engine, *, after):
    """Kills the core each time one of so many tokens is reached."""
    left = sorted(after)

    def on_delta(whole):
        if left and max(one.num_output_tokens for one in whole.values()) >= left[0]:
            while left and max(one.num_output_tokens for one in whole.values()) >= left[0]:
                left.pop(0)
            kill_core(engine)

    return on_delta


async def until(condition, *, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not (last := await condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)
    return last


async def is_running(engine):
    async def running():
        return engine.state.phase == "running"

    await until(running)


GRAMMAR = GrammarSpec(kind="regex", text=r"[a-z]{8} [0-9]{6} [A-Z]{6}")
CASES = {
    "greedy": LONG,
    "seeded": replace(LONG, temperature=0.9, top_p=0.9, seed=11),
    "choices": replace(LONG, temperature=1.0, seed=5, n=3, max_tokens=24),
    "penalties": replace(LONG, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
    "stop string": replace(LONG, stop=["very happy", "sea was", "named"], min_tokens=12),
    "stop string over the death": replace(LONG, stop=["a little girl named Lily"]),
    "min tokens": replace(LONG, ignore_eos=False, min_tokens=18),
    "log probabilities": replace(LONG, logprobs=2, prompt_logprobs=1),
    "grammar": replace(LONG, grammar=GRAMMAR, ignore_eos=False, max_tokens=40),
}


async def test_streams_of_every_kind_go_on_behind_what_they_had(engine):
    whole = await asyncio.gather(*(collect(engine.generate(PROMPT, one)) for one in CASES.values()))
    expected = dict(zip(CASES, whole, strict=True))
    deaths = engine.state.deaths
    # Only one of them kills: at any other's moment all of them are somewhere in their answers.
    killing = killer(engine, after=[5, 15])
    answers = await asyncio.gather(
        *(
            collect(engine.generate(PROMPT, one), killing if name == "greedy" else None)
            for name, one in CASES.items()
        )
    )
    assert engine.state.deaths == deaths + 2
    for name, resumed in zip(CASES, answers, strict=True):
        assert sorted(resumed) == sorted(expected[name])
        for index, whole in expected[name].items():
            again = resumed[index]
            assert (name, again.token_ids) == (name, whole.token_ids)
            assert again.text == whole.text
            assert (again.finish_reason, again.stop_reason) == (whole.finish_reason, whole.stop_reason)
            if whole.logprobs is not None:
                for one, other in zip(again.logprobs, whole.logprobs, strict=True):
                    assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert (again.prompt_logprobs is None) == (whole.prompt_logprobs is None)
    assert any(whole.finish_reason == "stop" for one in answers for whole in one.values())
    stats = await engine.stats(check_cache=True)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


async def test_log_probabilities_of_the_prompt_come_once(engine):
    """They come with the first token, which the core that died has given."""
    given = []
    async for delta in engine.generate(PROMPT, replace(LONG, prompt_logprobs=1)):
        given.append(delta.prompt_logprobs)
        if len(given) == 1:
            kill_core(engine)
    assert given[0] is not None
    assert given[1:] == [None] * (len(given) - 1)


async def test_requests_of_a_restart_wait_for_it_and_can_be_taken_back(engine):
    await is_running(engine)
    expected = await collect(engine.generate(PROMPT, LONG))
    running = engine.generate(PROMPT, LONG, request_id="had begun")
    await anext(running)
    kill_core(engine)

    async def is_down():
        return engine.state.phase == "restarting"

    await until(is_down, timeout_s=1.0)
    state = engine.state
    assert state.attempt >= 1
    assert "SIGKILL" in state.reason
    assert abs(time.time() - state.since_s) < 1.0
    assert not engine.is_healthy()
    with pytest.raises(EngineRestarting) as caught:
        await engine.stats()
    assert caught.value.retry_after_s > 0

    waiting = asyncio.create_task(collect(engine.generate(PROMPT, LONG)))
    taken_back = asyncio.create_task(collect(engine.generate(PROMPT, LONG)))
    aborted = asyncio.create_task(collect(engine.generate(PROMPT, LONG, request_id="aborted")))
    await asyncio.sleep(0.1)
    taken_back.cancel()
    assert await engine.abort("aborted")
    assert (await aborted)[0].finish_reason == "abort"
    assert await engine.abort("had begun")
    assert [delta async for delta in running][-1].finish_reason == "abort"

    brief = replace(LONG, max_tokens=2)
    others = [asyncio.create_task(collect(engine.generate(PROMPT, brief))) for _ in range(17)]
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert sum(isinstance(one, EngineRestarting) for one in answers) == 2  # with `waiting`, 16 may wait
    texts = {one[0].text for one in answers if isinstance(one, dict)}
    assert len(texts) == 1
    assert expected[0].text.startswith(texts.pop())
    assert (await waiting)[0].text == expected[0].text
    stats = await engine.stats(check_cache=True)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert stats.requests_added == 16, "what was taken back was sent"


async def test_the_host_gives_up_and_says_why(tiny_options):
    host = CoreHost(tiny_options, RestartPolicy(max_deaths=1))
    await host.start()
    engine = await AsyncLLM.connect(host.folder, tiny_options)
    try:
        stream = engine.generate(TINY_PROMPT, TINY)
        await anext(stream)
        kill_core(engine)
        state = await asyncio.wait_for(host.wait_dead(), 5)
        assert (state.phase, state.deaths) == ("dead", 1)
        with pytest.raises(EngineDead, match="SIGKILL"):
            await collect(stream)
        assert engine.state.phase == "dead"
        with pytest.raises(StartupError, match="SIGKILL"):
            await AsyncLLM.connect(host.folder, tiny_options, name="late")
    finally:
        await engine.shutdown()
        await host.shutdown()
    assert not host.folder.exists()


async def test_a_core_that_hangs_is_replaced(tiny_options):
    policy = RestartPolicy(heartbeat_s=0.1, hang_timeout_s=2.0)
    engine = await AsyncLLM.start(tiny_options, restart=policy)
    try:
        expected = await collect(engine.generate(TINY_PROMPT, TINY))
        stream = engine.generate(TINY_PROMPT, TINY)
        first = await anext(stream)
        os.kill(engine.core_pid, signal.SIGSTOP)
        rest = await collect(stream)
        assert first.token_ids + rest[0].token_ids == expected[0].token_ids
        assert "hung" in engine.state.reason
    finally:
        await engine.shutdown()


# Quarantine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def poisoned(tiny_options):
    """An engine whose core dies of certain prompts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        options = replace(tiny_options, scheduler="engine_poison:Poisoned")
        running = await AsyncLLM.start(options, restart=RestartPolicy(second_backoff_s=0.05, max_deaths=100))
        yield running
        await running.shutdown()


def tokens(poison, *, seed=0):
    return TokensPrompt(token_ids=[*range(100 + seed, 110 + seed), poison])


async def test_a_request_that_kills_the_core_alone_ends_at_its_second_death(poisoned):
    deaths = poisoned.state.deaths
    with pytest.raises(RequestFailed, match="quarantined: the engine core died 2 times"):
        await collect(poisoned.generate(tokens(PROMPT_POISON), TINY))
    assert poisoned.state.deaths == deaths + 2
    assert "SIGSEGV" in poisoned.state.reason


async def test_of_many_requests_only_the_one_at_fault_ends(poisoned):
    others = [tokens(50, seed=10 * index) for index in range(4)]
    await is_running(poisoned)
    expected = [await collect(poisoned.generate(one, TINY)) for one in others]
    deaths = poisoned.state.deaths
    written = []

    async def culprit():
        async for delta in poisoned.generate(tokens(COUNT_POISON), TINY):
            written.extend(delta.token_ids)

    streams = [collect(poisoned.generate(one, TINY)) for one in others]
    answers = await asyncio.gather(*streams[:3], culprit(), streams[3], return_exceptions=True)
    ended = answers.pop(3)
    assert isinstance(ended, RequestFailed)
    assert "quarantined" in str(ended)
    assert len(written) == FATAL_OUTPUTS - 1  # it has what it wrote before
    assert [one[0].token_ids for one in answers] == [one[0].token_ids for one in expected]
    assert poisoned.state.deaths == deaths + 3  # two that might be anybody's, and one on trial
    stats = await poisoned.stats(check_cache=True)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


# Several front ends


FRONT = """
    import asyncio, sys
    from pathlib import Path
    from llm_engine import AsyncLLM, EngineOptions, SamplingParams

    async def main():
        options = EngineOptions(model=sys.argv[2], load_format="dummy", device="cpu", dtype="float32",
                                max_model_len=4096, threads=1, progress=False)
        engine = await AsyncLLM.connect(Path(sys.argv[1]), options, name="other")
        params = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True, detokenize=False)
        async def run(index):
            async for delta in engine.generate([index, 7, 8], params):
                print("delta", flush=True)
        await asyncio.gather(*(run(index) for index in range(3)))

    asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(tiny_options):
    """A host whose core several front ends share."""
    running = CoreHost(tiny_options, EAGER)
    await running.start()
    yield running
    await running.shutdown()


async def test_a_front_end_that_is_killed_takes_its_requests_with_it_and_no_others(host, tiny_options):
    engine = await AsyncLLM.connect(host.folder, tiny_options, name="mine")
    long = replace(TINY, max_tokens=3000)
    try:
        expected = await collect(engine.generate(TINY_PROMPT, long))
        front = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(FRONT),
            str(host.folder),
            tiny_options.model,
            stdout=asyncio.subprocess.PIPE,
        )
        await front.stdout.readline()
        assert host.num_front_ends == 2

        async def all_run():
            return (await engine.stats()).running == 3

        await until(all_run)
        mine = asyncio.create_task(collect(engine.generate(TINY_PROMPT, long)))
        await asyncio.sleep(0.1)
        front.kill()
        await front.wait()
        begun = time.monotonic()

        async def only_mine():
            stats = await engine.stats()
            return stats.running == 1 and stats.requests_finished["abort"] == 3

        await until(only_mine, timeout_s=1.0)
        assert time.monotonic() - begun < 1.0
        assert (await mine)[0].token_ids == expected[0].token_ids
        assert host.num_front_ends == 1
        stats = await engine.stats(check_cache=True)
        assert (stats.running, stats.kv_blocks_used) == (0, 0)
    finally:
        await engine.shutdown()


async def test_front_ends_share_a_core_and_a_newer_one_takes_the_place_of_its_namesake(host, tiny_options):
    first = await AsyncLLM.connect(host.folder, tiny_options, name="a")
    second = await AsyncLLM.connect(host.folder, tiny_options, name="b")
    try:
        expected = await collect(first.generate(TINY_PROMPT, TINY))
        stream = first.generate(TINY_PROMPT, TINY)
        await anext(stream)
        other = asyncio.create_task(collect(second.generate(TINY_PROMPT, TINY), killer(second, after=[5])))
        newer = await AsyncLLM.connect(host.folder, tiny_options, name="a")
        with pytest.raises(EngineDead, match="same name"):
            await collect(stream)
        assert (await other)[0].token_ids == expected[0].token_ids
        assert host.state.deaths == 1
        assert (await collect(newer.generate(TINY_PROMPT, TINY)))[0].token_ids == expected[0].token_ids
        assert (await newer.stats(check_cache=True)).kv_blocks_used == 0
        await newer.shutdown()
        assert (await second.stats()).running == 0  # the core lives on
    finally:
        await first.shutdown()
        await second.shutdown()


async def test_a_core_that_cannot_start_is_reported_by_the_host(tiny_options):
    host = CoreHost(replace(tiny_options, model="/nowhere/at/all"), EAGER)
    with pytest.raises(StartupError) as caught:
        await host.start()
    assert caught.value.reason == "ModelNotFound"
    assert not host.folder.exists()
