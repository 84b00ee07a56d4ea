"""What several front ends share: places, rates, stored responses and metrics, and what a dead one leaves."""

import asyncio
import socket

import pytest
from llm_engine.stats import EngineStats
from llm_stack_server.errors import ApiError
from llm_stack_server.metric_families import Family
from llm_stack_server.metrics import Metrics
from llm_stack_server.response_shelf import StoredResponse
from llm_stack_server.response_store import response_store_of
from llm_stack_server.settings import ServerSettings
from llm_stack_server.supervisor.channel import Channel, ChannelClosed
from llm_stack_server.supervisor.messages import CancelResponse, Measure, Measured
from llm_stack_server.supervisor.remote import RemoteLedger, RemoteMetrics, RemoteShelf
from llm_stack_server.supervisor.shared_state import Desk, SharedState
from llm_stack_server.usage_ledger import ledger_of


class Front:
    """A worker's end, in this process."""

    def __init__(self, state, number, settings, channel, desk):
        self.number = number
        self.channel = channel
        self.desk = desk
        self.hits = 0.0
        self.is_busy = False
        self.cancelled = []
        self.tasks = [asyncio.create_task(channel.run(self)), asyncio.create_task(desk.serve())]
        self.ledger = RemoteLedger(
            channel,
            counts_requests=settings.requests_per_minute > 0,
            counts_tokens=settings.tokens_per_minute > 0,
            has_places=settings.max_concurrent_requests > 0 or settings.max_requests_per_key > 0,
        )
        self.shelf = RemoteShelf(channel)
        self.metrics = RemoteMetrics(channel)

    @classmethod
    async def open(cls, state, number, settings):
        ours, theirs = socket.socketpair()
        desk = Desk(state, number, await Channel.over(ours), lambda _: None, lambda: None)
        return cls(state, number, settings, await Channel.over(theirs), desk)

    def families(self):
        samples = [
            ("hits_total", {"route": "/"}, self.hits),
            ("hits_created", {"route": "/"}, 10.0 + self.number),
        ]
        return [
            Family("hits", "Hits.", "counter", samples),
            Family("waiting", "Waiting.", "gauge", [("waiting", {}, 1.0)]),
        ]

    def hear(self, message):
        raise AssertionError(message)

    async def answer(self, question):
        match question:
            case Measure():
                if self.is_busy:
                    await asyncio.Event().wait()
                return Measured(self.families())
            case CancelResponse():
                self.cancelled.append(question.response_id)
                await self.shelf.put(response(question.response_id, "cancelled"))
        return None

    async def gathered(self, stats=None, generation=1):
        families, totals = await self.metrics.gather(self.families(), generation, stats)
        return {name: value for one in families for name, _, value in one.samples}, totals

    async def die(self):
        self.channel.close()
        await asyncio.gather(*self.tasks)


def response(response_id, status="completed", *, owner="", is_running=False):
    return StoredResponse(owner, {"id": response_id, "status": status}, [], is_running)


@pytest.fixture
async def make_fronts():
    made = []

    async def make(count=2, **options):
        settings = ServerSettings(**options)
        state = SharedState(ledger_of(settings), response_store_of(settings))
        fronts = [await Front.open(state, number, settings) for number in range(count)]
        made.extend(fronts)
        return (state, *fronts)

    yield make
    for front in made:
        await front.die()


async def settled():
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_a_limit_of_one_is_one_for_all(make_fronts):
    state, one, two = await make_fronts(max_concurrent_requests=1, max_queued_requests=1)
    place = await one.ledger.enter("", 1, 5)
    waiting = asyncio.create_task(two.ledger.enter("", 1, 5))
    await settled()
    assert (state.ledger.num_running, state.ledger.num_waiting, two.ledger.num_waiting) == (1, 1, 1)
    with pytest.raises(ApiError) as refused:
        await one.ledger.enter("", 1, 5)
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert int(refused.value.headers["retry-after"]) >= 1
    one.ledger.leave(place)
    two.ledger.leave(await waiting)
    await settled()
    assert (state.ledger.num_running, state.ledger.num_waiting) == (0, 0)
    assert (one.ledger.num_running, two.ledger.num_running, two.ledger.num_waiting) == (0, 0, 0)


async def test_a_cancelled_wait_leaves_no_place_behind(make_fronts):
    state, one, two = await make_fronts(max_concurrent_requests=1)
    place = await one.ledger.enter("", 1, 5)
    waiting = asyncio.create_task(two.ledger.enter("", 1, 5))
    await settled()
    waiting.cancel()
    await settled()
    assert state.ledger.num_waiting == 0
    # Granted, but taken back before the news arrives.
    waiting = asyncio.create_task(two.ledger.enter("", 1, 5))
    await settled()
    one.ledger.leave(place)
    waiting.cancel()
    at_once = asyncio.create_task(two.ledger.enter("", 1, 5))
    await asyncio.sleep(0)
    at_once.cancel()
    await settled()
    assert (state.ledger.num_running, state.ledger.num_waiting) == (0, 0)


async def test_what_a_dead_front_end_held_is_given_back(make_fronts):
    state, one, two = await make_fronts(max_concurrent_requests=2, max_requests_per_key=2)
    await one.ledger.enter("k", 2, 5)
    waiting = asyncio.create_task(two.ledger.enter("other", 1, 5))
    await settled()
    assert not waiting.done()
    with pytest.raises(ApiError):
        await two.ledger.enter("k", 1, 5)
    await one.die()
    await asyncio.wait_for(waiting, 5)
    assert state.ledger.num_running == 1
    await two.ledger.enter("k", 1, 5)
    with pytest.raises(ChannelClosed):
        await one.ledger.enter("k", 1, 5)


async def test_rates_hold_for_all(make_fronts):
    state, one, two = await make_fronts(requests_per_minute=3, tokens_per_minute=100)
    for front in (one, two, one):
        await front.ledger.begin("k")
    with pytest.raises(ApiError) as refused:
        await two.ledger.begin("k")
    assert refused.value.code == "request_rate_exceeded"
    assert one.ledger.levels("k").requests.remaining == 0
    place = await one.ledger.enter("k", 1, 60)
    one.ledger.spend("k", 30)
    one.ledger.leave(place)
    with pytest.raises(ApiError) as refused:
        await two.ledger.enter("k", 1, 60)
    assert refused.value.code == "token_rate_exceeded"
    with pytest.raises(ApiError) as refused:
        await two.ledger.enter("k", 1, 101)
    assert (refused.value.status, refused.value.code) == (400, "prompt_exceeds_token_rate")
    await two.ledger.enter("new", 1, 60)
    await settled()
    assert state.ledger.levels("k").tokens.remaining in range(10, 13)


async def test_without_limits_nothing_is_asked(make_fronts):
    _, one, _ = await make_fronts()
    await one.die()
    await one.ledger.begin("k")
    one.ledger.spend("k", 3)
    one.ledger.leave(await one.ledger.enter("k", 1, 3))
    assert one.ledger.num_running == 0


async def test_responses_are_everybodys(make_fronts):
    state, one, two = await make_fronts(max_stored_responses=2)
    await one.shelf.put(response("a", owner="k"))
    assert (await two.shelf.get("a", "k")).response["status"] == "completed"
    assert await two.shelf.get("a", "other") is None
    await two.shelf.remove("a")
    assert await one.shelf.get("a", "k") is None
    await one.shelf.put(response("b", "in_progress", is_running=True))
    await two.shelf.cancel("b")
    assert one.cancelled == ["b"]
    assert two.cancelled == []
    found = await two.shelf.get("b", "")
    assert (found.response["status"], found.is_running) == ("cancelled", False)
    for name in "cde":
        await two.shelf.put(response(name))
    assert len(state.store) == 2


async def test_a_response_whose_front_end_died_has_failed(make_fronts):
    _, one, two = await make_fronts()
    await one.shelf.put(response("done"))
    await one.shelf.put(response("running", "in_progress", is_running=True))
    await one.die()
    found = await two.shelf.get("running", "")
    assert (found.response["status"], found.is_running) == ("failed", False)
    assert "died" in found.response["error"]["message"]
    assert (await two.shelf.get("done", "")).response["status"] == "completed"


async def test_metrics_are_sums_and_never_go_back(make_fronts):
    state, one, two = await make_fronts()
    one.hits, two.hits = 3.0, 4.0
    shown, _ = await one.gathered()
    assert shown == {"hits_total": 7.0, "hits_created": 10.0, "waiting": 2.0}
    assert (await two.gathered())[0] == shown
    await two.die()
    assert (await one.gathered())[0] == {"hits_total": 7.0, "hits_created": 10.0, "waiting": 1.0}
    again = await Front.open(state, 1, ServerSettings())
    again.hits = 1.0
    assert (await one.gathered())[0]["hits_total"] == 8.0
    await again.die()
    assert (await one.gathered())[0]["hits_total"] == 8.0


async def test_the_totals_of_cores_are_the_servers(make_fronts):
    _, one, two = await make_fronts()
    one.metrics.note_core(1, EngineStats(steps=10, uptime_s=2.0))
    _, totals = await two.gathered(EngineStats(steps=7, uptime_s=1.0))  # an older one that comes later
    assert totals.steps == 10
    _, totals = await two.gathered(EngineStats(steps=1, uptime_s=0.1), generation=2)
    assert totals.steps == 11


async def test_a_front_end_that_does_not_answer_keeps_its_last_metrics(make_fronts):
    _, one, two = await make_fronts()
    two.hits = 4.0
    await one.gathered()
    two.hits, two.is_busy = 5.0, True
    shown, _ = await asyncio.wait_for(one.gathered(), 5)
    assert shown["hits_total"] == 4.0


def test_metrics_as_data_are_shown_as_the_registry_shows_them():
    metrics = Metrics()
    metrics.http_requests.labels("GET", "/metrics", "200").inc(3)
    metrics.ttft.labels("/v1/completions").observe(0.3)
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        direct = metrics.render(accept)[0].decode().splitlines()
        as_data = metrics.render(accept, metrics.families())[0].decode().splitlines()
        assert [line for line in as_data if "process_cpu" not in line] == [
            line for line in direct if "process_cpu" not in line
        ]
