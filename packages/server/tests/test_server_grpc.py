"""The engine over gRPC: the same answers, limits and refusals as over HTTP, through real sockets."""
# ruff: noqa: ASYNC110, PT012 -- what is waited for is on the other side of a socket

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from llm_engine.core.core_state import CoreState
from llm_engine.errors import EngineDead
from llm_stack_server import grpc_api
from llm_stack_server.app import create_app
from llm_stack_server.errors import StartupError
from llm_stack_server.grpc_api.messages import SERVICE, given_fields, message_class
from llm_stack_server.grpc_api.server import GrpcServer
from llm_stack_server.settings import ServerSettings
from server_grpc_client import fault_of, serving
from server_replay_engine import ReplayEngine

GENERATE = message_class("GenerateRequest")
TURNS = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(engine):
    async with serving(engine) as client:
        yield client


# Messages


def test_the_descriptors_are_what_protoc_makes_of_the_sources(tmp_path):
    folder = Path(grpc_api.__file__).parent
    made = tmp_path / "made"
    command = ["-m", "grpc_tools.protoc", "-I", folder / "protos", "--include_imports"]
    sources = ["llm_stack/v1/engine.proto", "google/rpc/error_details.proto"]
    subprocess.run([sys.executable, *command, f"--descriptor_set_out={made}", *sources], check=True)
    assert made.read_bytes() == (folder / "descriptors.binpb").read_bytes()


def test_only_what_was_set_is_given():
    assert given_fields(GENERATE()) == {}
    request = GENERATE(
        prompt="", n=0, temperature=0.0, logit_bias={5: -1.0}, messages=[{"role": "user", "content": ""}]
    )
    assert given_fields(request) == {
        "prompt": "",
        "n": 0,
        "temperature": 0.0,
        "logit_bias": {"5": -1.0},
        "messages": [{"role": "user", "content": ""}],
    }


# Answers


async def test_stream_and_whole_answer_are_one(client, engine):
    fields = {"prompt": "Hello", "max_tokens": 100, "logprobs": 2, "n": 2}
    whole = await client.generate(**fields)
    events = [event async for event in client.stream(**fields)]
    assert [event.WhichOneof("event") for event in events] == ["delta"] * (len(events) - 1) + ["usage"]
    assert events[-1].usage == whole.usage
    for choice in whole.choices:
        deltas = [event.delta for event in events[:-1] if event.delta.index == choice.index]
        assert "".join(delta.text for delta in deltas) == choice.text == engine.script
        assert [token for delta in deltas for token in delta.token_ids] == list(choice.token_ids)
        assert [entry for delta in deltas for entry in delta.logprobs] == list(choice.logprobs)
        assert deltas[-1].finish_reason == choice.finish_reason == 1
    assert len(whole.choices) == 2
    assert len(whole.choices[0].logprobs[0].top) == 2
    assert whole.usage.prompt_tokens == 5
    assert whole.usage.cached_tokens == 2
    assert whole.model == "double"


async def test_every_sampling_field_reaches_the_engine(client, engine):
    await client.generate(
        prompt_token_ids=[72, 105],
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        seed=4,
        stop=["zz"],
        stop_token_ids=[3],
        ignore_eos=True,
        logit_bias={5: -1.0},
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        priority=-3,
    )
    [(prompt, params, priority)] = engine.seen
    assert (prompt, priority) == ([72, 105], -3)
    wanted = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "seed": 4,
        "ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True,
    }  # fmt: skip
    assert {name: getattr(params, name) for name in wanted} == wanted
    assert tuple(params.stop) == ("zz",)
    assert tuple(params.stop_token_ids) == (3,)
    assert dict(params.logit_bias) == {5: -1.0}


async def test_messages_are_written_by_the_template(client, engine):
    await client.generate(messages=[{"role": "system", "content": "Be brief."}, *TURNS], logprobs=0)
    assert bytes(engine.seen[0][0]) == b"[system]Be brief.\n[user]hi\n[assistant]"
    assert engine.seen[0][1].logprobs == 0
    assert engine.seen[0][1].max_tokens is None


async def test_structured_outputs(client, engine):
    await client.generate(prompt="x", structured_outputs={"regex": "[a-z]+"})
    assert engine.seen[0][1].grammar.kind == "regex"
    fault = await fault_of(client.generate(prompt="x", structured_outputs={"regex": "a", "json": "{}"}))
    assert (fault["code"], fault["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "structured_outputs")


async def test_stops_and_unicode_with_a_real_tokenizer():
    engine = ReplayEngine()
    engine.script = "Grüße ☀️ 日本語 END more"
    async with serving(engine) as client:
        for tokens in (1, 4):
            engine.tokens_per_step = tokens
            whole = await client.generate(prompt="Hi", max_tokens=100, stop=["END"])
            events = [event async for event in client.stream(prompt="Hi", max_tokens=100, stop=["END"])]
            assert whole.choices[0].text == "Grüße ☀️ 日本語 "
            assert "".join(event.delta.text for event in events) == whole.choices[0].text
            assert whole.choices[0].stop_string == "END"
        engine.script = "one"
        cut = await client.generate(prompt="Hi", max_tokens=1)
        assert cut.choices[0].finish_reason == 2
    assert engine.num_open == 0


async def test_tokenize_and_back(client):
    made = await client.call("Tokenize", "TokenizeResponse", prompt="Grüße")
    assert list(made.token_ids) == list("Grüße".encode())
    turned = await client.call("Tokenize", "TokenizeResponse", messages=TURNS)
    assert bytes(turned.token_ids) == b"[user]hi\n[assistant]"
    text = await client.call("Detokenize", "DetokenizeResponse", tokens=made.token_ids)
    assert text.text == "Grüße"
    fault = await fault_of(client.call("Detokenize", "DetokenizeResponse", tokens=[1, 100_000]))
    assert fault["field"] == "tokens[1]"
    fault = await fault_of(client.call("Tokenize", "TokenizeResponse"))
    assert fault["code"] is grpc.StatusCode.INVALID_ARGUMENT


async def test_model_info(client):
    info = await client.call("ModelInfo", "ModelInfoResponse")
    assert list(info.names) == ["double"]
    assert (info.max_model_len, info.vocab_size, list(info.tasks)) == (200, 260, ["generate"])


# Refusals


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": TURNS}, "messages"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 300}, "prompt"),
        ({"prompt_token_ids": [9999]}, "prompt_token_ids"),
        ({"prompt": "a", "temperature": -1.0}, "temperature"),
        ({"prompt": "a", "top_p": float("nan")}, "top_p"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 1000}, "logprobs"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": TURNS, "logprobs": 1000}, "logprobs"),
        ({"messages": TURNS, "add_special_tokens": True}, "add_special_tokens"),
    ],
)
async def test_a_wrong_field_is_named(client, engine, fields, field):
    fault = await fault_of(client.generate(**fields))
    assert (fault["code"], fault["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in client.stream(**fields):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert engine.seen == []


async def test_an_unknown_model(client):
    fault = await fault_of(client.generate(prompt="a", model="other"))
    assert (fault["code"], fault["reason"]) == (grpc.StatusCode.NOT_FOUND, "model_not_found")


async def test_a_model_that_gives_no_vectors(client):
    fault = await fault_of(client.call("Embed", "EmbedResponse", input=["a"]))
    assert (fault["code"], fault["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "model")


async def test_a_large_message(engine):
    async with serving(engine, max_body_bytes=2000) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(prompt="x" * 4000)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.generate(prompt="x")
    assert len(engine.seen) == 1


@pytest.mark.parametrize(
    ("metadata", "is_in"),
    [
        ((), False),
        ((("authorization", "Bearer wrong"),), False),
        ((("authorization", "Bearer secret"),), True),
        ((("x-api-key", "secret"),), True),
    ],
)
async def test_keys(engine, metadata, is_in):
    async with serving(engine, api_key=("secret",)) as client:
        call = client.call("ModelInfo", "ModelInfoResponse", metadata=metadata)
        if is_in:
            assert (await call).root == "double"
        else:
            assert (await fault_of(call))["code"] is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in client.stream(prompt="a", metadata=metadata):
                    pass
        # Probes are open.
        assert (await client.health.Check(health_pb2.HealthCheckRequest())).status == 1


async def test_reflection_needs_a_key(engine):
    async with serving(engine, api_key=("secret",)) as client:
        method = client.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(timeout=10).read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_overload_tells_when_to_try_again(engine):
    engine.gate = asyncio.Event()
    async with serving(engine, max_concurrent_requests=1, max_queued_requests=1) as client:
        calls = [asyncio.ensure_future(_done(client.generate(prompt="a"))) for _ in range(2)]
        while len(engine.seen) < 1 or client.app.state.context.usage.ledger.num_waiting < 1:
            await asyncio.sleep(0.01)
        fault = await fault_of(client.generate(prompt="a"))
        assert fault["code"] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert fault["retry_s"] >= 1
        engine.gate.set()
        assert all(await asyncio.gather(*calls))


async def test_a_rate(engine):
    async with serving(engine, requests_per_minute=1) as client:
        await client.generate(prompt="a")
        fault = await fault_of(client.generate(prompt="a"))
        assert (fault["code"], fault["reason"]) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "request_rate_exceeded",
        )
        assert 0 < fault["retry_s"] <= 60


async def _done(call):
    return await call


async def _until_idle(engine):
    async with asyncio.timeout(5):
        while engine.live:
            await asyncio.sleep(0.01)


# Ends


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("by_deadline", [True, False])
async def test_leaving_frees_the_work(client, engine, is_stream, by_deadline):
    engine.gate = asyncio.Event()
    timeout = 0.2 if by_deadline else 10
    call = (
        client.stream(prompt="a", timeout=timeout)
        if is_stream
        else client.generate(prompt="a", timeout=timeout)
    )
    reading = asyncio.ensure_future(call.read() if is_stream else _done(call))
    while not engine.live:
        await asyncio.sleep(0.01)
    if not by_deadline:
        call.cancel()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)) as caught:
        await reading
    if by_deadline:
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await _until_idle(engine)
    assert engine.aborted == 1
    lifecycle = client.app.state.context.lifecycle
    assert await lifecycle.wait_idle(5)
    assert client.app.state.context.usage.ledger.num_running == 0


async def test_the_servers_own_limit_of_time(engine):
    engine.gate = asyncio.Event()
    async with serving(engine, max_request_s=0.1) as client:
        fault = await fault_of(client.generate(prompt="a"))
        assert (fault["code"], fault["reason"]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "deadline_exceeded")
        await _until_idle(engine)
        assert 'requests_cut_off_total{reason="deadline"} 1.0' in await client.metrics()


async def test_an_error_inside_a_stream_is_its_status(client, engine):
    engine.error, engine.error_after = EngineDead("gone"), 3
    events = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for event in client.stream(prompt="a"):
            events.append(event)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "".join(event.delta.text for event in events) == engine.script[:2]


async def test_a_client_that_does_not_read_is_cut_off(engine):
    engine.max_model_len = 10**6
    engine.script = "x" * 20_000
    async with serving(engine, stream_stall_s=0.3) as client:
        call = client.stream(prompt="a", max_tokens=20_000, logprobs=20, timeout=60)
        await call.read()  # and never again
        await _until_idle(engine)
        assert engine.aborted == 1
        assert 'requests_cut_off_total{reason="slow_reader"} 1.0' in await client.metrics()
        call.cancel()


async def test_health_tells_the_state(client, engine):
    check, request = client.health.Check, health_pb2.HealthCheckRequest
    assert (await check(request())).status == 1
    assert (await check(request(service=SERVICE))).status == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(request(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = client.health.Watch(request())
    assert (await watch.read()).status == 1
    engine.state = CoreState(phase="dead")
    async with asyncio.timeout(1):
        assert (await watch.read()).status == 2
    fault = await fault_of(client.generate(prompt="a"))
    assert (fault["code"], fault["reason"]) == (grpc.StatusCode.UNAVAILABLE, "engine_dead")
    engine.state = CoreState(phase="running")
    assert (await watch.read()).status == 1
    watch.cancel()


async def test_a_drain_ends_what_runs_and_takes_nothing_new(client, engine):
    engine.gate = asyncio.Event()
    running = asyncio.ensure_future(_done(client.generate(prompt="a", max_tokens=100)))
    while not engine.live:
        await asyncio.sleep(0.01)
    lifecycle = client.app.state.context.lifecycle
    lifecycle.begin_drain()
    assert (await client.health.Check(health_pb2.HealthCheckRequest())).status == 2
    fault = await fault_of(client.generate(prompt="a"))
    assert (fault["reason"], fault["retry_s"]) == ("draining", 5)
    assert not await lifecycle.wait_idle(0)
    engine.gate.set()
    assert (await running).choices[0].text == engine.script
    assert await lifecycle.wait_idle(5)


# Around


async def test_reflection_describes_the_service(client):
    def look(address):
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = set(database.get_services())
            return services, database.FindFileContainingSymbol(SERVICE).name

    services, name = await asyncio.to_thread(look, client.address)
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= services
    assert name == "llm_stack/v1/engine.proto"


async def test_request_ids_and_metrics(client):
    call = client.generate(prompt="a", metadata=(("x-request-id", "mine-1"),))
    assert dict(await call.initial_metadata())["x-request-id"] == "mine-1"
    await call
    other = client.generate(prompt="a", metadata=(("x-request-id", "bad id"),))
    assert len(dict(await other.initial_metadata())["x-request-id"]) == 32
    await other
    await fault_of(client.generate(prompt=""))
    text = await client.metrics()
    assert 'llm_stack_grpc_requests_total{code="OK",method="Generate"} 2.0' in text
    assert 'llm_stack_grpc_requests_total{code="INVALID_ARGUMENT",method="Generate"} 1.0' in text
    assert 'llm_stack_requests_total{outcome="length",route="grpc:Generate"} 2.0' in text


async def test_a_taken_port(engine):
    async with serving(engine) as client:
        port = int(client.address.rpartition(":")[2])
        app = create_app(ServerSettings(grpc_port=port), engine)
        with pytest.raises(StartupError, match="grpc_port"):
            GrpcServer(app.state.context)


def test_a_wrong_port():
    with pytest.raises(StartupError, match="grpc_port"):
        ServerSettings(grpc_port=70000)


# TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
async def test_tls_and_a_newer_certificate(engine, tmp_path):
    pairs = [_certificate(tmp_path, name) for name in ("first", "second")]
    live = tmp_path / "live.pem", tmp_path / "live.key"
    for source, target in zip(pairs[0], live, strict=True):
        shutil.copy(source, target)
    settings = ServerSettings(grpc_port=0, tls_cert=str(live[0]), tls_key=str(live[1]))
    server = GrpcServer(create_app(settings, engine).state.context)
    await server.start()
    try:
        assert await _answers(server.address, pairs[0][0])
        assert not await _answers(server.address, pairs[1][0])
        for source, target in zip(pairs[1], live, strict=True):
            shutil.copy(source, target)
        server.reload()
        assert await _answers(server.address, pairs[1][0])
        assert not await _answers(server.address, pairs[0][0])
    finally:
        await server.stop(0)


async def _answers(address, authority):
    """Whether a client that trusts this authority alone gets through."""
    # Clients share connections of equal channels unless told not to.
    own = [("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    async with grpc.aio.secure_channel(address, credentials, options=own) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return True


def _certificate(folder, name):
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
