"""Deltas reach a slow reader joined, in order, and errors come last."""

import asyncio

import pytest
from llm_engine import RequestDelta, RequestFailed
from llm_engine.mailbox import Mailbox


def delta(index, text, finish_reason=None):
    return RequestDelta(
        request_id="r",
        index=index,
        text=text,
        token_ids=(ord(text),),
        finish_reason=finish_reason,
        logprobs=None,
    )


async def read_all(mailbox):
    return [item async for item in iterate(mailbox)]


async def iterate(mailbox):
    while (item := await mailbox.get()) is not None:
        yield item


async def test_unread_deltas_of_a_choice_become_one():
    mailbox = Mailbox(2)
    for item in (delta(0, "a"), delta(1, "x"), delta(0, "b"), delta(1, "y", "stop"), delta(0, "c", "length")):
        mailbox.put(item)
    first, second = await read_all(mailbox)
    assert (first.index, first.text, first.token_ids, first.finish_reason) == (
        0,
        "abc",
        (97, 98, 99),
        "length",
    )
    assert (second.index, second.text, second.finish_reason) == (1, "xy", "stop")


async def test_a_waiting_reader_gets_each_delta():
    mailbox = Mailbox(1)
    reader = asyncio.create_task(read_all(mailbox))
    for item in (delta(0, "a"), delta(0, "b", "stop")):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        mailbox.put(item)
    assert [item.text for item in await reader] == ["a", "b"]


async def test_the_error_comes_after_what_was_there():
    mailbox = Mailbox(1)
    mailbox.put(delta(0, "a"))
    mailbox.put(RequestFailed("broken", "r"))
    assert (await mailbox.get()).text == "a"
    with pytest.raises(RequestFailed, match="broken"):
        await mailbox.get()
