"""The openai client against a real server: every answer format, whole and streamed."""

from __future__ import annotations

import math

import openai
import pytest

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


def test_chat(client):
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def test_chat_stream_equals_the_whole(client):
    options = {
        "model": "smollm2",
        "messages": MESSAGES,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert parts[0].delta.role == "assistant"
    assert "".join(part.delta.content or "" for part in parts) == whole.choices[0].message.content
    entries = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
    assert [entry.token for entry in entries] == [entry.token for entry in whole.choices[0].logprobs.content]
    assert [part.finish_reason for part in parts if part.finish_reason] == ["stop"]


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=5
    )
    choice = answer.choices[0]
    entries = choice.logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert raw.decode().startswith(choice.message.content)  # then the end-of-turn token
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 5
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob == pytest.approx(tops[0])  # greedy
        assert sum(map(math.exp, tops)) <= 1 + 1e-4


def test_completion_stream_equals_the_whole(client):
    options = {"model": "smollm2", "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "logprobs": 2}
    whole = client.completions.create(**options)
    choice = whole.choices[0]
    assert choice.text.startswith(" Paris")
    assert choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    parts = [chunk.choices[0] for chunk in client.completions.create(**options, stream=True)]
    assert "".join(part.text for part in parts) == choice.text
    for name in ("tokens", "text_offset"):
        joined = [entry for part in parts if part.logprobs for entry in getattr(part.logprobs, name)]
        assert joined == getattr(choice.logprobs, name)
    assert "".join(choice.logprobs.tokens) == choice.text
    offsets = [0]
    for token in choice.logprobs.tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    assert choice.logprobs.text_offset == offsets


def test_default_max_tokens(client):
    answer = client.completions.create(
        model="smollm2", prompt=PROMPT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16


def test_several_choices(client):
    answer = client.completions.create(
        model="smollm2", prompt=PROMPT, n=3, temperature=1, seed=5, max_tokens=8
    )
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    greedy = client.completions.create(model="smollm2", prompt=PROMPT, n=3, temperature=0, max_tokens=8)
    assert len({choice.text for choice in greedy.choices}) == 1
    assert greedy.usage.completion_tokens == 24
    single = client.completions.create(model="smollm2", prompt=PROMPT, temperature=0, max_tokens=8)
    assert greedy.usage.prompt_tokens == single.usage.prompt_tokens


def test_several_prompts_and_token_ids(client, server):
    tokens = server.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    by_text = client.completions.create(
        model="smollm2", prompt=[PROMPT, "1, 2, 3,"], temperature=0, max_tokens=6
    )
    by_ids = client.completions.create(model="smollm2", prompt=[tokens], temperature=0, max_tokens=6)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_text.choices[1].text.startswith(" 4")
    assert server.http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": PROMPT}


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(client, stream):
    options = {"model": "smollm2", "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 40}
    stops = [" 7, 8", "zebra"]

    def text(**more):
        answer = client.completions.create(**options, stop=stops, stream=stream, **more)
        choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
        assert choices[-1].finish_reason == "stop"
        assert choices[-1].stop_reason == " 7, 8"
        return "".join(choice.text for choice in choices)

    assert text() == " 5, 6,"
    assert text(extra_body={"include_stop_str_in_output": True}) == " 5, 6, 7, 8"


def test_echo_and_scoring(client):
    answer = client.completions.create(
        model="smollm2", prompt=PROMPT, echo=True, logprobs=1, max_tokens=3, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith(f"{PROMPT} Paris")
    lists = choice.logprobs
    assert "".join(lists.tokens) == choice.text
    assert lists.token_logprobs[0] is None
    assert all(value <= 0 for value in lists.token_logprobs[1:])
    for _ in range(2):  # the second time with the prompt in the prefix cache
        scored = client.completions.create(
            model="smollm2", prompt=PROMPT, echo=True, logprobs=1, max_tokens=0
        )
        assert scored.choices[0].text == PROMPT
        assert scored.usage.completion_tokens == 0
        count = scored.usage.prompt_tokens
        assert scored.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
            lists.token_logprobs[1:count], abs=1e-3
        )


def test_seed_repeats(client):
    options = {"model": "smollm2", "prompt": "Once upon a time", "temperature": 1.0, "max_tokens": 10}
    texts = [client.completions.create(**options, seed=seed).choices[0].text for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_penalties_and_bias_act(client, server):
    (zebra, *_) = server.http.post("/tokenize", json={"prompt": " zebra"}).json()["tokens"]
    answer = client.completions.create(
        model="smollm2", prompt=PROMPT, temperature=0, max_tokens=2, logit_bias={str(zebra): 100}
    )
    assert answer.choices[0].text.startswith(" z")
    answer = client.completions.create(
        model="smollm2", prompt=PROMPT, temperature=1, seed=1, max_tokens=4, extra_body={"top_k": 1}
    )
    greedy = client.completions.create(model="smollm2", prompt=PROMPT, temperature=0, max_tokens=4)
    assert answer.choices[0].text == greedy.choices[0].text


def test_min_tokens_and_ignore_eos(client):
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, temperature=0, max_tokens=14, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 14
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, temperature=0, max_tokens=30, extra_body={"min_tokens": 12}
    )
    assert answer.usage.completion_tokens >= 12


def test_continue_final_message(client):
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3,"}]
    answer = client.chat.completions.create(
        model="smollm2",
        messages=messages,
        temperature=0,
        max_tokens=4,
        extra_body={"continue_final_message": True},
    )
    assert answer.choices[0].message.content.startswith(" 4")


def test_models(client):
    (card,) = client.models.list().data
    assert card.id == "smollm2"
    assert client.models.retrieve("smollm2").max_model_len > 0
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_prefix_cache_shows_in_usage(client):
    prompt = "A story about a fox, a hen and a very long winter in the north. " * 6
    counts = [
        client.completions.create(
            model="smollm2", prompt=prompt, max_tokens=1
        ).usage.prompt_tokens_details.cached_tokens
        for _ in range(2)
    ]
    assert counts[0] == 0
    assert counts[1] >= 16


def test_unicode_streams_whole(client):
    prompt = "Repeat: ďábel 🌶️ 日本語. Repeat: ďábel 🌶️ 日本語. Repeat:"
    options = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**options).choices[0].text
    parts = [chunk.choices[0].text for chunk in client.completions.create(**options, stream=True)]
    assert "".join(parts) == whole
    assert "ď" in whole
    assert "🌶" in whole
    assert not any("�" in part for part in parts[:-2])
