"""Safe on the network: loopback by default, TLS, other sites' pages, what errors give away (C177, C181)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import uvicorn
from llm_stack_server.cli import main
from llm_stack_server.errors import StartupError
from llm_stack_server.http_protocol import BoundedHeadProtocol
from llm_stack_server.listening import check_exposure, listen, url_of
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tls import Tls

COMPLETION = {"prompt": "hi"}
PAGE = {"origin": "https://chat.example"}
PREFLIGHT = {
    **PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization",
}
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


# Who can reach the port


def exposed(host: str, **settings) -> None:
    listener = listen(host, 0)
    try:
        options = ServerSettings(**settings)
        check_exposure(listener, is_open=options.is_open(), allow_open=options.allow_open)
    finally:
        listener.close()


def test_the_default_is_loopback():
    assert ServerSettings().host == "127.0.0.1"
    exposed(ServerSettings().host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_keys_or_leave(host):
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
    with pytest.raises(StartupError, match="--allow-open"):
        exposed(host)
    exposed(host, api_key=("k",))
    exposed(host, api_key_file="keys")
    exposed(host, tls_cert="c", tls_client_ca="ca")
    exposed(host, allow_open=True)
    with pytest.raises(StartupError, match="--allow-open"):
        exposed(host, tls_cert="c")  # TLS alone keeps nobody out


def test_the_command_refuses_before_it_loads(capsys):
    assert main(["serve", "no/such-model", "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "--allow-open" in capsys.readouterr().err


def test_a_refused_listener_is_closed():
    listener = listen("0.0.0.0", 0)
    with pytest.raises(StartupError):
        check_exposure(listener, is_open=True, allow_open=False)
    assert listener.fileno() == -1


# Web pages


async def test_pages_get_nothing_by_default(make_client):
    for settings in ({}, {"api_key": ("k",)}):
        client = make_client(**settings)
        response = await client.options("/v1/chat/completions", headers=PREFLIGHT)
        assert response.status_code in (401, 403)
        for path in ("/v1/models", "/health/live"):
            answer = await client.get(path, headers=PAGE | {"authorization": "Bearer k"})
            assert not any(name.startswith("access-control-") for name in answer.headers)
        assert not any(name.startswith("access-control-") for name in response.headers)


async def test_cors_for_the_named_origin_alone(make_client):
    client = make_client(api_key=("k",), cors_origin=("https://chat.example",))
    response = await client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://chat.example"
    assert "POST" in response.headers["access-control-allow-methods"]
    other = await client.options(
        "/v1/chat/completions", headers=PREFLIGHT | {"origin": "https://evil.example"}
    )
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers
    # Refusals are readable too, or a page could not tell a wrong key from a dead server.
    for headers in ({}, {"authorization": "Bearer k"}):
        answer = await client.post("/v1/completions", json=COMPLETION, headers=PAGE | headers)
        assert answer.status_code == (200 if headers else 401)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    answer = await client.get(
        "/v1/models", headers={"origin": "https://evil.example", "authorization": "Bearer k"}
    )
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", [("https://chat.example",), ("*",)])
async def test_never_with_credentials(make_client, origins):
    client = make_client(cors_origin=origins)
    for response in (
        await client.options("/v1/models", headers=PREFLIGHT),
        await client.get("/v1/models", headers=PAGE | {"cookie": "a=b"}),
    ):
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] in ("https://chat.example", "*")
        assert "access-control-allow-credentials" not in response.headers


async def test_a_foreign_page_cannot_use_an_open_server(make_client, engine):
    client = make_client()
    # A page may send this without a preflight: no content type, no header of its own.
    for origin in ("https://evil.example", "null", "http://test.evil.example", "http://test:81"):
        response = await client.post(
            "/v1/completions", content=b'{"prompt":"hi"}', headers={"origin": origin}
        )
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "origin_not_allowed"
    assert engine.seen == []
    for headers in ({}, {"origin": "http://test"}):
        assert (await client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code == 200
    client = make_client(cors_origin=("https://chat.example",))
    assert (await client.post("/v1/completions", json=COMPLETION, headers=PAGE)).status_code == 200


@contextlib.asynccontextmanager
async def serving(app, **config):
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=BoundedHeadProtocol, ws="none", lifespan="off", log_config=None, port=0, **config
        )
    )
    running = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def get(port: int, path: str, context: ssl.SSLContext | None = None, **headers: str) -> bytes:
    """The whole answer, over a socket of our own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


async def test_a_name_that_was_pointed_here_is_refused(make_client):
    """DNS rebinding: the page's own host name leads to this machine, so its origin would match."""
    app = make_client(allowed_host=("llm.example",)).app
    async with serving(app) as port:
        for host in (f"127.0.0.1:{port}", "LOCALHOST", f"[::1]:{port}", "llm.example:80", "LLM.example"):
            assert b" 200 " in (await get(port, "/v1/models", host=host)).splitlines()[0]
        for host in (
            f"evil.example:{port}",
            "",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1",
        ):
            answer = await get(port, "/v1/models", host=host, origin=f"http://{host}")
            assert b" 403 " in answer.splitlines()[0]
            assert b"host_not_allowed" in answer
        assert b" 200 " in await get(port, "/health/live", host="evil.example")
    async with serving(make_client(api_key=("k",)).app) as port:
        answer = await get(port, "/v1/models", host="evil.example", authorization="Bearer k")
        assert b" 200 " in answer.splitlines()[0]


async def test_browsers_take_answers_as_data(client):
    for path in ("/v1/models", "/health/live", "/nothing", "/metrics"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "value",
    [
        "https://a.example/",
        "https://a.example/x",
        "a.example",
        "ftp://a.example",
        "https://*.example",
        "null",
        "",
    ],
)
def test_bad_origins(value):
    with pytest.raises(StartupError, match="cors_origin"):
        ServerSettings(cors_origin=(value,))


@pytest.mark.parametrize("value", ["a.example:80", "http://a.example", "", "*"])
def test_bad_hosts(value):
    with pytest.raises(StartupError, match="allowed_host"):
        ServerSettings(allowed_host=(value,))


# TLS


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl(
        *(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ),
        *(
            "-subj",
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ),
    )
    return str(cert), str(key)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> dict[str, tuple[str, str]]:
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_certificate(folder, name) for name in ("first", "second", "client")}


def common_name(context: ssl.SSLContext, port: int) -> str:
    with (
        socket.create_connection(("127.0.0.1", port), 5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        return dict(part[0] for part in wrapped.getpeercert()["subject"])["commonName"]


@needs_openssl
async def test_tls(make_client, certificates, tmp_path):
    live = tmp_path / "live.pem", tmp_path / "live.key"
    for source, target in zip(certificates["first"], live, strict=True):
        shutil.copy(source, target)
    tls = Tls(str(live[0]), str(live[1]), None)
    async with serving(make_client().app, ssl_context_factory=lambda _config, _default: tls.context) as port:
        trusting = ssl.create_default_context(cafile=certificates["first"][0])
        trusting.load_verify_locations(certificates["second"][0])
        answer = await get(port, "/v1/models", trusting, host="127.0.0.1")
        assert b" 200 " in answer.splitlines()[0]
        assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert b" 200 " not in await get(port, "/v1/models", host="127.0.0.1")  # not in the clear
        # A half-replaced pair changes nothing; a whole one serves new connections.
        shutil.copy(certificates["second"][0], live[0])
        with pytest.raises(StartupError, match="tls_cert"):
            tls.reload()
        assert await asyncio.to_thread(common_name, trusting, port) == "first"
        shutil.copy(certificates["second"][1], live[1])
        tls.reload()
        assert await asyncio.to_thread(common_name, trusting, port) == "second"


@needs_openssl
async def test_client_certificates(make_client, certificates):
    tls = Tls(*certificates["first"], certificates["client"][0])
    async with serving(make_client().app, ssl_context_factory=lambda _config, _default: tls.context) as port:
        without = ssl.create_default_context(cafile=certificates["first"][0])
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert b"200" not in await get(port, "/v1/models", without, host="127.0.0.1")
        other = ssl.create_default_context(cafile=certificates["first"][0])
        other.load_cert_chain(*certificates["second"])
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert b"200" not in await get(port, "/v1/models", other, host="127.0.0.1")
        known = ssl.create_default_context(cafile=certificates["first"][0])
        known.load_cert_chain(*certificates["client"])
        assert b" 200 " in (await get(port, "/v1/models", known, host="127.0.0.1")).splitlines()[0]


@needs_openssl
def test_wrong_certificates(certificates, tmp_path):
    cert, key = certificates["first"]
    encrypted = tmp_path / "encrypted.key"
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", str(encrypted))
    for arguments, match in (
        ((cert, certificates["second"][1], None), "tls_cert"),
        (("/nowhere", None, None), "tls_cert"),
        ((cert, None, None), "tls_cert"),
        ((cert, str(encrypted), None), "encrypted"),
        ((cert, key, "/nowhere"), "tls_client_ca"),
        ((cert, key, key), "tls_client_ca"),
    ):
        with pytest.raises(StartupError, match=match):
            Tls(*arguments)


@pytest.mark.parametrize("option", ["tls_key", "tls_client_ca"])
def test_tls_options_need_a_certificate(option):
    with pytest.raises(StartupError, match=f"{option}: needs tls_cert"):
        ServerSettings(**{option: "x"})


def test_url():
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        assert url_of(listener, is_tls=True) == f"https://127.0.0.1:{port}"


# What answers give away

LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|/work/|/home/|/tmp/|site-packages|\.py\b|secret-of-another")
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/nothing",
)
BODIES = (
    b"{",
    b"\xff",
    b"[]",
    b"{}",
    b'{"model": "no/such", "prompt": "x"}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}',
    b'{"prompt": {"a": 1}, "messages": 5, "input": 7, "tokens": "x"}',
    b'{"prompt": "x", "messages": [{"role": "tool", "content": "x"}], "input": [{"type": "odd"}]}',
)


@pytest.mark.parametrize("path", PATHS)
async def test_errors_give_nothing_away(client, engine, path):
    await client.post("/v1/completions", json={"prompt": "secret-of-another"})
    engine.error = RuntimeError(f"secret-of-another at {object()!r} in /work/x.py")
    seen = set()
    for body in BODIES:
        for headers in ({"content-type": "application/json"}, {"content-type": "text/html"}):
            response = await client.post(path, content=body, headers=headers)
            seen.add(response.status_code)
            assert not LEAK.search(response.text + str(response.headers)), response.text
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = await client.request(method, path)
        seen.add(response.status_code)
        assert not LEAK.search(response.text + str(response.headers)), response.text
    assert seen & {400, 404, 405, 415}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("after", [None, 2])
async def test_faults_of_the_server_give_nothing_away(client, engine, path, after):
    engine.error, engine.error_after = RuntimeError(f"secret at {object()!r} in /work/x.py"), after
    body = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/responses": {"input": "hi"},
    }.get(path, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "model": "double"})
    response = await client.post(path, json=body | {"stream": after is not None})
    assert response.status_code == (500 if after is None else 200)
    assert "internal error" in response.text
    assert not LEAK.search(response.text + str(response.headers))
    assert "secret" not in response.text


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/docs",
            "/redoc",
            "/admin",
            "/sleep",
            "/wake_up",
            "/reset_prefix_cache",
            "/collective_rpc",
        ),
        *("/start_profile", "/v1/load_lora_adapter", "/server_info", "/debug", "/pause", "/abort_requests"),
    ],
)
async def test_no_admin_routes(make_client, path):
    client = make_client(api_key=("k",))
    for method in ("GET", "POST"):
        assert (await client.request(method, path)).status_code == 401
        response = await client.request(method, path, headers={"authorization": "Bearer k"})
        assert response.status_code == 404
