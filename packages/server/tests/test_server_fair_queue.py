"""The queue and the buckets by themselves: order, bounds, cancelling, and that nothing is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from llm_stack_server.errors import Overloaded
from llm_stack_server.fair_queue import FairQueue, QueueLimits
from llm_stack_server.rate_limit import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_bucket():
    clock = Clock()
    bucket = TokenBucket(60, clock)
    assert bucket.take(60) == 0
    assert bucket.take(1) == pytest.approx(1)
    assert (bucket.remaining, bucket.seconds_to_full) == (0, 60)
    clock.now_s += 1.5
    assert bucket.remaining == 1
    assert bucket.take(1) == 0
    assert bucket.take(61) == float("inf")
    bucket.spend(30)  # overdrawn: what is owed fills first
    assert bucket.take(1) == pytest.approx(30.5)
    bucket.spend(-1000)
    assert bucket.remaining == 60


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Callers:
    """Calls that note when they are let in."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.order: list[str] = []
        self.turns: dict[str, object] = {}

    def call(
        self, name: str, key: str, size: int = 1, num_tokens: int = 1, weight: int = 1
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self._enter(name, key, size, num_tokens, weight))

    async def _enter(self, name: str, key: str, size: int, num_tokens: int, weight: int) -> None:
        self.turns[name] = await self.queue.enter(key, size, num_tokens, weight)
        self.order.append(name)

    async def end(self, name: str) -> None:
        self.queue.leave(self.turns.pop(name))
        await settle()


async def test_a_key_with_nothing_running_goes_first():
    callers = Callers(FairQueue(QueueLimits(running=2)))
    tasks = [callers.call(f"a{index}", "a") for index in range(5)]
    await settle()
    tasks += [callers.call("b0", "b"), callers.call("b1", "b"), callers.call("c0", "c")]
    await settle()
    assert callers.order == ["a0", "a1"]
    await callers.end("a0")
    assert callers.order[2:] == ["b0"]
    await callers.end("a1")
    assert callers.order[3:] == ["c0"]  # b runs one, c none
    await callers.end("c0")
    assert callers.order[4:] == ["a2"]  # b runs one, a none: a waits longer than any other
    await callers.end("b0")
    assert callers.order[5:] == ["b1"]
    for name in ("a2", "b1", "a3", "a4"):
        await callers.end(name)
    await asyncio.gather(*tasks)
    assert (callers.queue.num_running, callers.queue.num_waiting, callers.queue.num_waiting_tokens) == (
        0,
        0,
        0,
    )


async def test_keys_run_by_their_weights():
    callers = Callers(FairQueue(QueueLimits(running=6)))
    first = callers.call("first", "z", size=6)
    await settle()
    tasks = [callers.call(f"a{index}", "a") for index in range(9)]
    tasks += [callers.call(f"b{index}", "b", weight=2) for index in range(9)]
    await settle()
    await callers.end("first")
    assert sorted(callers.order[1:]) == ["a0", "a1", "b0", "b1", "b2", "b3"]
    # A key that is alone runs as much as there is, whatever its weight.
    for name in ("b0", "b1", "b2", "b3", *(f"b{index}" for index in range(4, 9))):
        await callers.end(name)
    assert set(callers.turns) == {"a0", "a1", "a2", "a3", "a4", "a5"}
    for index in range(9):
        await callers.end(f"a{index}")
    await asyncio.gather(first, *tasks)
    assert callers.queue.num_running == 0


async def test_the_weight_of_a_request_is_its_keys(make_client, engine):
    keys = ("light A", "heavy B weight=2")
    client = make_client(api_key=keys, max_concurrent_requests=3)
    engine.gate = asyncio.Event()

    def post(key: str) -> asyncio.Task[object]:
        body = {"prompt": key, "max_tokens": 1}
        return asyncio.create_task(client.post("/v1/completions", json=body, headers={"x-api-key": key}))

    async def until_seen(count: int) -> str:
        while len(engine.seen) < count:  # noqa: ASYNC110 -- the double has no event for it
            await asyncio.sleep(0.01)
        return bytes(engine.seen[-1][0]).decode()

    running = [post("A") for _ in range(3)]
    await until_seen(3)
    waiting = [post(key) for key in "AABBBB"]
    while client.app.state.context.usage.ledger.num_waiting < 6:  # noqa: ASYNC110 -- nor has the queue
        await asyncio.sleep(0.01)
    running.pop().cancel()
    assert await until_seen(4) == "B"
    running.pop().cancel()
    # Each runs one: without weights the light key, let in longer ago, would go first.
    assert await until_seen(5) == "B"
    engine.gate.set()
    for answer in await asyncio.gather(*running, *waiting):
        assert answer.status_code == 200


async def test_a_large_call_is_not_overtaken_and_fits_alone():
    callers = Callers(FairQueue(QueueLimits(running=4)))
    tasks = [callers.call("small", "a", 2), callers.call("huge", "b", 100), callers.call("late", "c", 1)]
    await settle()
    assert callers.order == ["small"]
    await callers.end("small")
    assert callers.order == ["small", "huge"]
    assert callers.queue.num_running == 4
    await callers.end("huge")
    await asyncio.gather(*tasks)
    assert callers.order[2:] == ["late"]


async def test_bounds():
    clock = Clock()
    queue = FairQueue(QueueLimits(running=1, waiting=3, waiting_tokens=10, per_key=2), clock)
    callers = Callers(queue)
    tasks = [callers.call("a0", "a"), callers.call("a1", "a", 1, 6)]
    await settle()
    with pytest.raises(Overloaded) as caught:
        await queue.enter("a", 1, 1)
    assert caught.value.code == "too_many_requests_of_key"
    with pytest.raises(Overloaded) as caught:
        await queue.enter("b", 1, 5)
    assert (caught.value.code, caught.value.status) == ("queue_full", 429)
    assert "6 prompt tokens" in caught.value.message
    tasks += [callers.call("c0", "c", 1, 1), callers.call("d0", "d", 1, 1)]
    await settle()
    with pytest.raises(Overloaded, match="3 requests wait"):
        await queue.enter("e", 1, 0)
    for name in ("a0", "c0", "d0", "a1"):
        clock.now_s += 20
        await callers.end(name)
    await asyncio.gather(*tasks)
    assert (queue.num_running, queue.num_waiting, queue.num_waiting_tokens) == (0, 0, 0)


async def test_retry_after_follows_the_pace():
    clock = Clock()
    queue = FairQueue(QueueLimits(running=1, waiting=4), clock)
    callers = Callers(queue)
    tasks = [callers.call(str(index), "a") for index in range(5)]
    await settle()
    waits = []
    for index in range(3):
        clock.now_s += 10
        await callers.end(str(index))
        tasks.append(callers.call(f"more{index}", "a"))
        await settle()
        with pytest.raises(Overloaded) as caught:
            await queue.enter("b", 1, 0)
        waits.append(int(caught.value.headers["retry-after"]))
    assert 1 <= waits[0] < waits[1] < waits[2] <= 60
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_lost_whatever_is_cancelled(seed):
    """Cancels at random moments, also between the grant and the wake-up."""
    draw = random.Random(seed)
    limits = QueueLimits(running=3, waiting=20, waiting_tokens=60, per_key=9)
    queue = FairQueue(limits)

    async def call(key: str, size: int) -> None:
        turn = await queue.enter(key, size, draw.randrange(5))
        try:
            assert queue.num_running <= limits.running
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
        finally:
            queue.leave(turn)

    tasks = []
    for _ in range(300):
        tasks.append(asyncio.create_task(call(draw.choice("abcd"), draw.randrange(1, 5))))
        if draw.random() < 0.4:
            await asyncio.sleep(0)
        if draw.random() < 0.5:
            draw.choice(tasks[-8:]).cancel()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(
        result is None or isinstance(result, Overloaded | asyncio.CancelledError) for result in results
    )
    assert results.count(None) > 50
    assert (queue.num_running, queue.num_waiting, queue.num_waiting_tokens) == (0, 0, 0)
    assert not queue._held
    assert not queue._running
    assert not queue._let_in_at
    with contextlib.suppress(Overloaded):
        turn = await queue.enter("z", 3, 1)
        queue.leave(turn)
    assert queue.num_running == 0
