"""The page of metrics says what an application shows, and nothing else; names follow Prometheus' rules."""

from __future__ import annotations

import asyncio
import re

import grpc
import httpx
import pytest
from server_grpc_client import serving
from server_metrics_text import documented, shown_names

CHAT = {"messages": [{"role": "user", "content": "hi"}], "mood": "good"}
KEYED = {"authorization": "Bearer k1"}


@pytest.fixture
async def text(engine):
    """What an application shows that has met everything that is counted under a label."""
    async with serving(engine, api_key=("bob k1",), requests_per_minute=3) as client:
        await client.generate(prompt="a", metadata=tuple(KEYED.items()))
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=KEYED) as http:
            await http.post("/v1/chat/completions", json=CHAT)
            engine.gate = asyncio.Event()
            late = {"x-timeout-s": "0.02"}
            assert (await http.post("/v1/chat/completions", json=CHAT, headers=late)).status_code == 504
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 429
            return (await http.get("/metrics")).text


async def test_the_page_and_the_application_agree(text):
    assert shown_names(text) == documented()


async def test_names_follow_the_rules(text):
    for name, (kind, _) in documented().items():
        assert name.startswith(("llm_stack_", "process_")), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(s|ms|millis|sec|min|kb|mb|mib|pct|percent)(_|$)", name), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_created", "_info")) or name.endswith(
            "build_info"
        )


async def test_openmetrics_says_the_same(make_client):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = await make_client().get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    plain = {name.removesuffix("_total") for name in documented()} - {"llm_stack_grpc_requests"}
    assert names == plain


async def test_refused_calls_are_counted_too(engine):
    async with serving(engine, api_key=("k1",)) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.generate(prompt="a")
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers={"x-api-key": "k1"}
        ) as http:
            text = (await http.get("/metrics")).text
    assert 'llm_stack_grpc_requests_total{code="UNAUTHENTICATED",method="Generate"} 1.0' in text
