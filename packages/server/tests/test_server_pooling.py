"""Vectors and scores over HTTP with real cores, against what the engine gives. Cases C116, C117, C119."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys

import httpx
import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
from llm_engine import start_engine
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from server_grpc_client import fault_of, serving
from server_pooling_models import MAX_TOKENS, SIZE, minilm, options, write_bert, write_embedder

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["the cat sat on the mat", "a dog eats", "the dog and the cat eats food now", "cat"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory):
    """A core each of an embedder, a cross-encoder, a classifier of texts and one of tokens."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("embed", "cross", "classes", "tokens")}
    write_embedder(folders["embed"])
    write_bert(folders["cross"], "BertForSequenceClassification", num_labels=1)
    names = {0: "good", 1: "bad", 2: "ugly"}
    write_bert(folders["classes"], "BertForSequenceClassification", id2label=names, num_labels=3)
    write_bert(folders["tokens"], "BertForTokenClassification", id2label=names, num_labels=3)
    started = await asyncio.gather(*(start_engine(options(folder)) for folder in folders.values()))
    yield dict(zip(folders, started, strict=True))
    for engine in started:
        await engine.shutdown()


def client_of(engine, **settings):
    app = create_app(ServerSettings(served_model_name=("m",), **settings), engine)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://test")
    client.app = app
    return client


def sdk_of(client):
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=client.app), base_url="http://test")
    return openai.AsyncOpenAI(api_key="key", base_url="http://test/v1", http_client=http, max_retries=0)


async def refused(client, path, body):
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, (body, answer.text)
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def vectors(answer):
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]])


# Embeddings


async def test_float_and_base64_carry_the_same_vector(engines):
    """C116."""
    want = [output.embedding for output in await engines["embed"].embed(TEXTS)]
    sdk = sdk_of(client_of(engines["embed"]))
    answers = [
        await sdk.embeddings.create(model="m", input=TEXTS, **form)
        for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"})
    ]
    raw = answers[2].data[0].embedding
    assert len(raw) == SIZE or len(base64.b64decode(raw)) == 4 * SIZE
    for answer in answers[:2]:
        assert [item.index for item in answer.data] == [0, 1, 2, 3]
        for item, vector in zip(answer.data, want, strict=True):
            assert len(item.embedding) == SIZE
            assert item.embedding == pytest.approx(vector, abs=1e-6)
            assert np.linalg.norm(item.embedding) == pytest.approx(1, abs=1e-5)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 8 + 5 + 10 + 3
        assert answer.model == "m"
    client = client_of(engines["embed"])
    body = {"model": "m", "input": TEXTS, "encoding_format": "base64"}
    packed = (await client.post("/v1/embeddings", json=body)).json()["data"]
    for item, vector in zip(packed, want, strict=True):
        got = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
        assert got == pytest.approx(vector, abs=1e-6)


async def test_long_input_is_not_cut_in_silence(engines):
    """C117."""
    client = client_of(engines["embed"])
    head = "the cat eats food " * 150
    one, other = vectors(
        await client.post("/v1/embeddings", json={"input": [head + "dog " * 200, head + "now " * 200]})
    )
    assert float(one @ other) < 0.9999
    long = "the cat eats food " * 300
    error = await refused(client, "/v1/embeddings", {"input": ["cat", long]})
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "1202 tokens" in error["message"]
    assert "truncate_prompt_tokens" in error["message"]
    for cut, tokens in ((-1, MAX_TOKENS), (MAX_TOKENS, MAX_TOKENS), (10, 10)):
        answer = await client.post("/v1/embeddings", json={"input": long, "truncate_prompt_tokens": cut})
        assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    cut = vectors(await client.post("/v1/embeddings", json={"input": long, "truncate_prompt_tokens": 6}))
    same = vectors(await client.post("/v1/embeddings", json={"input": "the cat eats food"}))
    assert cut == pytest.approx(same, abs=1e-6)
    for bad in (0, -2, MAX_TOKENS + 1, "6", True, 1.5):
        error = await refused(client, "/v1/embeddings", {"input": long, "truncate_prompt_tokens": bad})
        assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([""], "input"),
        (["a", ""], "input[1]"),
        ([[]], "input"),
        ([[1, 2], []], "input[1]"),
        ([-1], "input"),
        ([32], "input"),
        ([2**70], "input"),
        ([[1, 2], [32]], "input[1]"),
        ([True], "input"),
        ([1.5], "input"),
        (["a", [1]], "input"),
        (["a", None], "input"),
        (["\ud800"], "input"),
        (None, "input"),
        (7, "input"),
        ({"text": "a"}, "input"),
        (["a"] * 2049, "input"),
    ],
)
async def test_odd_inputs_are_refused_by_name(engines, value, param):
    """C119."""
    body = json.dumps({"input": value}).encode()
    client = client_of(engines["embed"])
    answer = await client.post("/v1/embeddings", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    if value != ["\ud800"]:  # that one is no JSON for a strict reader
        assert answer.json()["error"]["param"] == param


async def test_every_shape_of_input_keeps_its_order(engines):
    """C119."""
    client = client_of(engines["embed"])
    plain = vectors(await client.post("/v1/embeddings", json={"input": TEXTS}))
    ids = [engines["embed"].tokenizer.encode(text) for text in TEXTS]
    assert vectors(await client.post("/v1/embeddings", json={"input": ids})) == pytest.approx(plain, abs=1e-5)
    assert vectors(await client.post("/v1/embeddings", json={"input": ids[1]})) == pytest.approx(
        plain[1:2], abs=1e-5
    )
    many = [TEXTS[index % 4] for index in range(2048)]
    answer = await client.post("/v1/embeddings", json={"input": many})
    assert [item["index"] for item in answer.json()["data"]] == list(range(2048))
    assert vectors(answer) == pytest.approx(np.tile(plain, (512, 1)), abs=1e-5)


async def test_short_vectors_only_where_the_model_or_the_operator_allows_them(engines):
    """C119."""
    client = client_of(engines["embed"])
    whole = vectors(await client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": SIZE}))
    for bad in (0, -1, SIZE + 1, 64, "64", True):
        error = await refused(client, "/v1/embeddings", {"input": TEXTS, "dimensions": bad})
        assert error["param"] == "dimensions"
    allowing = client_of(engines["embed"], any_dimensions=True)
    for size in (1, 64):
        short = vectors(await allowing.post("/v1/embeddings", json={"input": TEXTS, "dimensions": size}))
        assert short.shape == (4, size)
        want = whole[:, :size] / np.linalg.norm(whole[:, :size], axis=1, keepdims=True)
        assert short == pytest.approx(want, abs=1e-5)
    error = await refused(allowing, "/v1/embeddings", {"input": TEXTS, "dimensions": SIZE + 1})
    assert error["param"] == "dimensions"
    raw = vectors(await client.post("/v1/embeddings", json={"input": TEXTS, "normalize": False}))
    assert np.linalg.norm(raw, axis=1).max() > 1.5
    assert raw / np.linalg.norm(raw, axis=1, keepdims=True) == pytest.approx(whole, abs=1e-5)


async def test_the_command_serves_a_model_that_lists_its_lengths(tmp_path):
    folder = write_embedder(tmp_path, config={"matryoshka_dimensions": [16, 64]})
    command = ["-m", "llm_stack_server", "serve", str(folder), "--port", "0", "--device", "cpu"]
    server = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(120):
            line = b""
            while b"ready:" not in line:
                line = await server.stderr.readline()
                assert line, "the server ended"
        url = re.search(rb"http://[^,\s]+", line)[0].decode()
        async with httpx.AsyncClient(base_url=url) as client:
            short = vectors(await client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": 16}))
            assert short.shape == (4, 16)
            assert np.linalg.norm(short, axis=1) == pytest.approx(np.ones(4), abs=1e-2)
            error = await refused(client, "/v1/embeddings", {"input": TEXTS, "dimensions": 48})
            assert "16, 64" in error["message"]
        server.terminate()
        assert await asyncio.wait_for(server.wait(), timeout=30) == 0
    finally:
        if server.returncode is None:
            server.kill()


async def test_fields_that_cannot_be_honoured_and_unknown_ones(engines):
    client = client_of(engines["embed"])
    for field in ({"encoding_format": "int8"}, {"input_type": "query"}, {"messages": []}, {"normalize": 1}):
        error = await refused(client, "/v1/embeddings", {"input": "cat"} | field)
        assert error["param"] == next(iter(field))
    answer = await client.post("/v1/embeddings", json={"input": "cat", "user": "u", "flavour": 1})
    assert answer.headers["x-ignored-fields"] == "flavour"
    for path in ("/v1/embeddings", "/pooling"):
        error = await refused(client_of(engines["embed"], strict=True), path, {"input": "cat", "flavour": 1})
        assert error["param"] == "flavour"
    for kind, path, body in (
        ("cross", "/v1/score", {"text_1": "cat", "text_2": "dog"}),
        ("cross", "/v1/rerank", {"query": "cat", "documents": [{"text": "dog", "title": "free"}]}),
        ("classes", "/classify", {"input": "cat"}),
    ):
        strict = client_of(engines[kind], strict=True)
        assert (await strict.post(path, json=body)).status_code == 200
        error = await refused(strict, path, body | {"flavour": 1})
        assert error["param"] == "flavour"
    assert (await client.post("/v1/embeddings", json={"input": "cat", "model": "no"})).status_code == 404


# Scores


@pytest.mark.parametrize("kind", ["embed", "cross"])
async def test_scores_of_pairs(engines, kind):
    engine, client = engines[kind], client_of(engines[kind])
    want = [output.score for output in await engine.score([(TEXTS[0], text) for text in TEXTS])]
    answer = (await client.post("/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS})).json()
    assert [item["score"] for item in answer["data"]] == pytest.approx(want, abs=1e-5)
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    assert len({round(score, 4) for score in want}) == 4
    again = (await client.post("/score", json={"queries": [TEXTS[0]] * 4, "documents": TEXTS})).json()
    assert [item["score"] for item in again["data"]] == pytest.approx(want, abs=1e-5)
    one = (await client.post("/score", json={"text_1": TEXTS[0], "text_2": TEXTS[2]})).json()
    assert one["data"][0]["score"] == pytest.approx(want[2], abs=1e-5)
    assert one["usage"]["prompt_tokens"] == (8 + 10 if kind == "embed" else 6 + 8 + 3)
    error = await refused(client, "/v1/score", {"text_1": TEXTS[:2], "text_2": TEXTS})
    assert error["param"] == "text_2"
    for bad in ({"text_1": "cat"}, {"text_1": "cat", "documents": "dog"}, {"text_1": [], "text_2": "cat"}):
        await refused(client, "/v1/score", bad)
    for bad, param in (
        ({"text_1": "", "text_2": TEXTS}, "text_1"),
        ({"text_1": "cat", "text_2": ["cat", ""]}, "text_2[1]"),
        ({"text_1": ["cat", ""], "text_2": ["cat", "cat"]}, "text_1[1]"),
    ):
        assert (await refused(client, "/v1/score", bad))["param"] == param


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_reranks(engines, path):
    engine, client = engines["cross"], client_of(engines["cross"])
    scores = [output.score for output in await engine.score([("a cat", text) for text in TEXTS])]
    order = sorted(range(4), key=lambda index: -scores[index])
    documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    answer = (await client.post(path, json={"query": "a cat", "documents": documents})).json()
    assert [result["index"] for result in answer["results"]] == order
    got = [result["relevance_score"] for result in answer["results"]]
    assert got == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert "document" not in answer["results"][0]
    best = {"query": "a cat", "documents": documents, "top_n": 2, "return_documents": True}
    top = (await client.post(path, json=best)).json()["results"]
    assert [(one["index"], one["document"]["text"]) for one in top] == [(i, TEXTS[i]) for i in order[:2]]
    assert len((await client.post(path, json=best | {"top_n": 99})).json()["results"]) == 4
    for bad, param in (
        ({"top_n": 0}, "top_n"),
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["cat", {"title": "x"}]}, "documents"),
        ({"documents": ["cat", ""]}, "documents[1]"),
        ({"documents": ["the " * 1100]}, "documents"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ):
        assert (await refused(client, path, best | bad))["param"] == param


async def test_classifies_texts_and_tokens(engines):
    for kind in ("classes", "tokens"):
        want = await engines[kind].classify(TEXTS)
        answer = await client_of(engines[kind]).post("/classify", json={"model": "m", "input": TEXTS})
        for item, output in zip(answer.json()["data"], want, strict=True):
            assert np.array(item["probs"]) == pytest.approx(output.probabilities, abs=1e-5)
            assert item["num_classes"] == 3
            if kind == "classes":
                assert item["label"] == output.label
            else:
                assert item["labels"] == list(output.token_labels)
                assert len(item["labels"]) == output.num_prompt_tokens


async def test_pooling_gives_what_the_model_gives(engines):
    body = {"input": TEXTS, "encoding_format": "base64"}
    for kind in ("embed", "cross", "tokens"):
        engine, client = engines[kind], client_of(engines[kind])
        if kind == "embed":
            want = [output.embedding for output in await engine.embed(TEXTS)]
        else:
            want = [output.rewards for output in await engine.reward(TEXTS)]
        plain = (await client.post("/pooling", json={"input": TEXTS})).json()["data"]
        packed = (await client.post("/pooling", json=body)).json()["data"]
        for index, array in enumerate(want):
            assert np.array(plain[index]["data"]) == pytest.approx(array, abs=1e-4)
            assert packed[index]["shape"] == list(array.shape)
            got = np.frombuffer(base64.b64decode(packed[index]["data"]), dtype="<f4")
            assert got.reshape(array.shape) == pytest.approx(array, abs=1e-4)
    for field in ({"dimensions": 4}, {"task": "token_embed"}, {"normalize": True}):
        error = await refused(client_of(engines["cross"]), "/pooling", {"input": "cat"} | field)
        assert error["param"] == next(iter(field))


async def test_pooling_gives_a_vector_of_each_token(engines):
    client = client_of(engines["embed"])
    body = {"input": TEXTS, "task": "token_embed", "normalize": False}
    tokens = [np.array(one["data"]) for one in (await client.post("/pooling", json=body)).json()["data"]]
    assert [array.shape for array in tokens] == [(8, SIZE), (5, SIZE), (10, SIZE), (3, SIZE)]
    whole = vectors(await client.post("/v1/embeddings", json={"input": TEXTS, "normalize": False}))
    assert np.stack([array.mean(0) for array in tokens]) == pytest.approx(whole, abs=1e-4)
    unit = await client.post("/pooling", json={"input": "cat", "task": "token_embed"})
    assert np.linalg.norm(unit.json()["data"][0]["data"], axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    error = await refused(client, "/pooling", {"input": "cat", "task": "classify"})
    assert error["param"] == "task"


# What a model cannot do

BODIES = {
    "/v1/embeddings": {"input": "cat"},
    "/v1/score": {"text_1": "cat", "text_2": "dog"},
    "/score": {"text_1": "cat", "text_2": "dog"},
    "/v1/rerank": {"query": "cat", "documents": ["dog"]},
    "/classify": {"input": "cat"},
    "/pooling": {"input": "cat"},
}


async def test_a_model_is_asked_only_for_what_it_gives(engines):
    answers = {
        "embed": {"/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/pooling"},
        "cross": {"/v1/score", "/score", "/v1/rerank", "/classify", "/pooling"},
        "classes": {"/classify", "/pooling"},
        "tokens": {"/classify", "/pooling"},
    }
    for kind, offered in answers.items():
        client = client_of(engines[kind])
        for path, body in BODIES.items():
            if path in offered:
                assert (await client.post(path, json=body)).status_code == 200, (kind, path)
            else:
                error = await refused(client, path, body)
                assert (error["param"], error["code"]) == ("model", "unsupported_task")


async def test_a_model_that_generates_gives_no_vectors(client, engine):
    for path, body in BODIES.items():
        error = await refused(client, path, body)
        assert (error["param"], error["code"]) == ("model", "unsupported_task")
    assert not engine.seen


async def test_a_model_that_gives_vectors_generates_nothing(engines):
    client = client_of(engines["embed"])
    turns = [{"role": "user", "content": "hi"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": turns}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ):
        error = await refused(client, path, body)
        assert (error["param"], error["code"]) == ("model", "unsupported_task")
        assert "/v1/embeddings" in error["message"]
    answer = await client.post("/v1/messages", json={"messages": turns, "max_tokens": 4, "model": "m"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (await client.post("/tokenize", json={"prompt": "the cat"})).json()["tokens"] == [2, 4, 6, 3]
    assert (await client.get("/health/ready")).status_code == 200


# Many clients


async def test_requests_of_many_clients_share_passes(engines):
    engine, client = engines["embed"], client_of(engines["embed"])
    want = vectors(await client.post("/v1/embeddings", json={"input": TEXTS}))
    before = await engine.stats()
    calls = [client.post("/v1/embeddings", json={"input": TEXTS[index % 4]}) for index in range(40)]
    for index, answer in enumerate(await asyncio.gather(*calls)):
        assert vectors(answer) == pytest.approx(want[index % 4][None], abs=1e-5)
    after = await engine.stats()
    assert after.requests_added - before.requests_added == 40
    assert after.steps - before.steps < 40
    text = (await client.get("/metrics")).text
    assert 'llm_stack_requests_total{outcome="stop",route="/v1/embeddings"} 41.0' in text
    assert "llm_stack_requests_running 0.0" in text


async def test_a_client_that_leaves_frees_the_work(engines):
    engine, client = engines["embed"], client_of(engines["embed"])
    gone = asyncio.Event()
    body = json.dumps({"input": ["the cat eats food " * 200] * 2048}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    sent = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/embeddings",
        "raw_path": b"/v1/embeddings",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    before = await engine.stats()
    serving = asyncio.create_task(client.app(scope, receive, send))
    async with asyncio.timeout(60):
        while (await engine.stats()).steps == before.steps:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not sent
        gone.set()
        await serving
        assert (await client.post("/v1/embeddings", json={"input": "cat"})).status_code == 200
    after = await engine.stats()
    assert (after.running, after.waiting) == (0, 0)
    assert after.requests_finished["abort"] == before.requests_finished["abort"] + 1
    assert after.scheduled_tokens - before.scheduled_tokens < 802 * 1024
    assert 'outcome="abort",route="/v1/embeddings"} 1.0' in (await client.get("/metrics")).text


async def test_a_key_pays_for_the_tokens_of_its_texts(engines):
    client = client_of(engines["embed"], api_key=("key",), tokens_per_minute=20)
    headers = {"authorization": "Bearer key"}
    for status in (200, 200, 200, 429):  # 8 tokens each: the third overdraws
        answer = await client.post("/v1/embeddings", json={"input": TEXTS[0]}, headers=headers)
        assert answer.status_code == status
    assert int(answer.headers["retry-after"]) > 0
    assert (await client.post("/v1/embeddings", json={"input": "cat"})).status_code == 401
    named = client_of(engines["embed"], api_key=("team key",))
    await named.post("/v1/embeddings", json={"input": TEXTS[0]}, headers=headers)
    text = (await named.get("/metrics", headers=headers)).text
    assert re.search(r'llm_stack_key_tokens_total{.*kind="prompt".*} 8.0', text), text


# A real model


@pytest.mark.skipif(
    not (minilm() / "model.safetensors").is_file(), reason="python scripts/fetch_test_assets.py --only minilm"
)
async def test_the_real_embedder_through_the_official_client():
    engine = await start_engine(options(minilm()))
    try:
        client = client_of(engine)
        sdk = sdk_of(client)
        pair = ["A man is eating food.", "A man is eating a piece of bread."]
        answer = await sdk.embeddings.create(model="m", input=pair)
        one, other = (np.array(item.embedding) for item in answer.data)
        assert len(one) == 384
        assert float(one @ other) == pytest.approx(0.755, abs=5e-4)  # as published
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await sdk.embeddings.create(model="m", input=pair, dimensions=64)
        with pytest.raises(openai.BadRequestError, match="at most 256"):
            await sdk.embeddings.create(model="m", input="word " * 300)
        documents = ["The bank raised its rates.", pair[1], "A cheetah is running behind its prey."]
        ranked = await client.post("/rerank", json={"query": pair[0], "documents": documents})
        results = ranked.json()["results"]
        assert results[0]["index"] == 1
        assert results[0]["relevance_score"] == pytest.approx(0.755, abs=5e-4)
    finally:
        await engine.shutdown()


async def test_vectors_over_grpc(engines):
    engine = engines["embed"]
    async with serving(engine) as client:
        [wanted] = await engine.embed(["a dog eats"])
        answer = await client.call("Embed", "EmbedResponse", input=["a dog eats", "cat"])
        assert list(answer.embeddings[0].values) == pytest.approx(wanted.embedding.tolist())
        assert len(answer.embeddings) == 2
        assert answer.prompt_tokens > wanted.num_prompt_tokens
        info = await client.call("ModelInfo", "ModelInfoResponse")
        assert (list(info.tasks), info.embedding_size) == (["embed"], SIZE)
        fault = await fault_of(client.call("Embed", "EmbedResponse", input=["a"], dimensions=SIZE + 1))
        assert fault["field"] == "dimensions"
        fault = await fault_of(client.call("Embed", "EmbedResponse"))
        assert fault["field"] == "input"
        fault = await fault_of(client.call("Embed", "EmbedResponse", input=["a", "cat " * (MAX_TOKENS + 1)]))
        assert fault["field"] == "input[1]"
        fault = await fault_of(client.generate(prompt="a"))
        assert fault["field"] == "model"
