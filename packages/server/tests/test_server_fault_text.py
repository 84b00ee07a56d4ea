"""Fault cases of characters, stops and logprobs: the real detokenizer over exact texts."""

from __future__ import annotations

import pytest
from server_answers import CHAT, HELLO, HI, TEXT, both, client_of, streamed, text_of, whole
from server_replay_engine import ReplayEngine

SENTENCES = ["ďábel 🌶️👩‍🚀 日本語 한국어 ไทย", "“ok” 🌶 日本", "e\u0301 \u200d ﷽ 𐍈𐍉", "plain"]


@pytest.fixture(params=[1, 2, 7])
def replay(request):
    engine = ReplayEngine()
    engine.tokens_per_step = request.param
    return engine


@pytest.fixture
def http(replay):
    return client_of(replay)


# C001


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("text", SENTENCES)
async def test_no_character_is_cut(http, replay, path, text):
    replay.script = text
    choice = await both(http, path, HI if path == CHAT else HELLO)
    assert text_of(choice) == text
    events = await streamed(http, path, HI if path == CHAT else HELLO)
    for part in (part for event in events for part in event["choices"]):
        assert "\ufffd" not in text_of(part)
        text_of(part).encode()  # an unpaired surrogate would not be UTF-8


# C003, C005


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stop_string_is_held_back(http, replay, path):
    replay.script = "ABCDEFGHIJKLM"
    body = (HI if path == CHAT else HELLO) | {"stop": ["DEFGHIJ"]}
    choice = await both(http, path, body)
    assert (text_of(choice), choice["finish_reason"], choice["stop_reason"]) == ("ABC", "stop", "DEFGHIJ")
    events = await streamed(http, path, body)
    assert not any("D" in text_of(part) for event in events for part in event["choices"])


@pytest.mark.parametrize(("include", "text"), [(False, "o"), (True, "one tw")])
async def test_the_stop_that_completes_first_wins(http, replay, include, text):
    replay.script = "one two three"
    body = HI | {"stop": ["two", "ne tw"], "include_stop_str_in_output": include}
    choice = await both(http, CHAT, body)
    assert (text_of(choice), choice["stop_reason"]) == (text, "ne tw")


async def test_a_stop_that_never_completes_is_given_back(http, replay):
    replay.script = "one tw"
    choice = await both(http, CHAT, HI | {"stop": ["two"]})
    assert (text_of(choice), choice["finish_reason"], choice["stop_reason"]) == ("one tw", "stop", None)


# C006, C007, C008


@pytest.mark.parametrize("skip", [True, False])
async def test_a_special_stop_token_eats_no_text(http, replay, skip):
    end = replay.tokenizer.token_to_id("<|im_start|>")
    replay.script = [*replay.tokenizer.encode("done.", add_special_tokens=False), end, end]
    choice = await both(http, CHAT, HI | {"stop_token_ids": [end], "skip_special_tokens": skip})
    assert (text_of(choice), choice["finish_reason"], choice["stop_reason"]) == ("done.", "stop", end)


@pytest.mark.parametrize("marker", ["<|im_end|>", "<|im_start|>"])
async def test_a_special_token_as_stop_string(http, replay, marker):
    token = replay.tokenizer.token_to_id(marker)
    replay.script = [*replay.tokenizer.encode("Paris.", add_special_tokens=False), token]
    choice = await both(http, CHAT, HI | {"stop": [marker], "ignore_eos": True, "max_tokens": 64})
    assert (text_of(choice), choice["finish_reason"], choice["stop_reason"]) == ("Paris.", "stop", marker)


@pytest.mark.parametrize("skip", [None, False])
@pytest.mark.parametrize("listed", [False, True])
async def test_the_end_token_does_not_show(http, replay, skip, listed):
    replay.script = "Paris."
    eos = replay.tokenizer.eos_token_id
    body = HI | {"skip_special_tokens": skip, "stop_token_ids": [eos] if listed else []}
    choice = await both(http, CHAT, body)
    assert (text_of(choice), choice["finish_reason"]) == ("Paris.", "stop")


# C010


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_stops_without_text_are_refused(http, replay, path):
    body = (HI if path == CHAT else HELLO) | {"stop": ["two"], "detokenize": False}
    response = await http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "detokenize"
    assert replay.seen == []


# C036


async def test_min_tokens_delays_every_stop(http, replay):
    replay.script = "stop here"
    eos = replay.tokenizer.eos_token_id
    first = replay.tokenizer.encode("stop", add_special_tokens=False)[0]
    for more in ({}, {"stop_token_ids": [eos]}, {"stop_token_ids": [first]}, {"stop": ["stop"]}):
        answer = await whole(http, CHAT, HI | {"min_tokens": 10} | more)
        assert answer["usage"]["completion_tokens"] >= 10
        assert text_of(answer["choices"][0]).startswith("stop here")  # text before the bound is kept


# C011 to C014, C016


@pytest.mark.parametrize("more", [{}, {"top_logprobs": None}, {"top_logprobs": 0}])
async def test_logprobs_without_alternatives(http, replay, more):
    body = HI | {"logprobs": True, "max_tokens": 3} | more
    replay.script = "one two three four"
    choice = await both(http, CHAT, body)
    entries = choice["logprobs"]["content"]
    assert len(entries) == 3
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["top_logprobs"] == []


async def test_zero_logprobs_are_those_of_the_sampled_tokens(http, replay):
    replay.script = "one two three four five six"
    choice = await both(http, TEXT, HELLO | {"logprobs": 0, "max_tokens": 5})
    lists = choice["logprobs"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) == 5
    lengths = [len(token) for token in lists["tokens"]]
    assert lists["text_offset"] == [sum(lengths[:place]) for place in range(5)]
    assert "".join(lists["tokens"]) == choice["text"]


async def test_each_route_has_its_own_shape_of_logprobs(http, replay):
    replay.script = "one two"
    [chat] = (await whole(http, CHAT, HI | {"logprobs": True, "top_logprobs": 2}))["choices"]
    [text] = (await whole(http, TEXT, HELLO | {"logprobs": 2}))["choices"]
    assert set(chat["logprobs"]) == {"content", "refusal"}
    assert set(text["logprobs"]) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    parts = [
        part
        for event in await streamed(http, CHAT, HI | {"logprobs": True, "top_logprobs": 2})
        for part in event["choices"]
    ]
    joined = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert joined == chat["logprobs"]["content"]
    parts = [
        part for event in await streamed(http, TEXT, HELLO | {"logprobs": 2}) for part in event["choices"]
    ]
    for key, values in text["logprobs"].items():
        assert [value for part in parts if part["logprobs"] for value in part["logprobs"][key]] == values


@pytest.mark.parametrize("text", SENTENCES)
async def test_bytes_rebuild_the_text(http, replay, text):
    replay.script = text
    choice = await both(http, CHAT, HI | {"logprobs": True, "top_logprobs": 5})
    *entries, last = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == text
    assert last["token"] == "<|im_end|>"
    for entry in entries:
        tops = entry["top_logprobs"]
        assert len({top["token"] for top in tops}) == 5
        assert [top["logprob"] for top in tops] == sorted((top["logprob"] for top in tops), reverse=True)
        assert all(top["bytes"] for top in tops)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_no_probability_at_all_is_a_finite_number(http, replay, path):
    replay.floor = True
    body = HI | {"logprobs": True, "top_logprobs": 5} if path == CHAT else HELLO | {"logprobs": 5}
    for more in ({}, {"stream": True}):
        response = await http.post(path, json=body | more)
        assert response.status_code == 200
        assert "-9999" in response.text
        assert "Infinity" not in response.text
        assert "NaN" not in response.text
