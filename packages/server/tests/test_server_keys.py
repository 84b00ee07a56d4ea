"""Keys by value and by digest, their names, reading them again, and that they show nowhere (C132, C133)."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from importlib import import_module
from pkgutil import iter_modules

import pytest
from llm_stack_server import keys as keys_module
from llm_stack_server import routes
from llm_stack_server.auth import OPEN_PATHS
from llm_stack_server.errors import StartupError
from llm_stack_server.keys import KeyRing
from llm_stack_server.settings import ServerSettings

SECRET = "very-secret-key-42"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


@pytest.mark.parametrize("entry", [SECRET, f"sha256:{DIGEST}", f"sha256:{DIGEST.upper()}"])
@pytest.mark.parametrize("name", ["", "team-a ", "team-a\t"])
def test_forms_of_a_key(entry, name):
    ring = KeyRing([name + entry])
    found = ring.find([b"", SECRET.encode()])
    assert found is not None
    assert found.name == ("team-a" if name else "key1")
    for wrong in (b"", b"very-secret-key-4", b"very-secret-key-422", DIGEST.encode(), entry[:-1].encode()):
        assert ring.find([wrong]) is None


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "  ",
        "a b c",
        "a KEY wieght=2",
        "a KEY weight=0",
        "a KEY weight=-1",
        "a KEY weight=1001",
        "a KEY weight=x",
        "a KEY weight=2 weight=3",
        "a KEY expires=tomorrow",
        "a KEY expires=2027-02-30",
        "b/d KEY",
        "x" * 65 + " KEY",
        "sha256:",
        f"sha256:{DIGEST[:-1]}",
        f"sha256:{DIGEST[:-1]}g",
    ],
)
def test_wrong_entries_are_refused_without_being_shown(entry):
    with pytest.raises(StartupError, match="api_key 2") as caught:
        KeyRing(["good", entry])
    assert DIGEST[:20] not in str(caught.value)
    assert "KEY" not in str(caught.value).replace("KEY or NAME KEY", "")


@pytest.mark.parametrize("name", ["", "team-a "])
@pytest.mark.parametrize("secret", ["KEY", f"sha256:{hashlib.sha256(b'KEY').hexdigest()}"])
@pytest.mark.parametrize(
    ("options", "weight", "last_s"),
    [
        ("", 1, None),
        (" weight=3", 3, None),
        (" expires=1970-01-02", 1, 2 * 86_400),
        (" expires=1970-01-02T00:00:10Z weight=1000", 1000, 86_410),
        (" weight=2 expires=1970-01-02T02:00:10+02:00", 2, 86_410),
        (" expires=1970-01-02T00:00:10", 1, 86_410),
    ],
)
def test_keys_have_weights_and_end(name, secret, options, weight, last_s):
    now_s = [0.0]
    ring = KeyRing([name + secret + options], clock=lambda: now_s[0])
    found = ring.find([b"KEY"])
    assert found is not None
    assert (found.name, found.weight) == (name.strip() or "key1", weight)
    now_s[0] = 1e15 if last_s is None else last_s - 0.5
    assert ring.find([b"KEY"]) == found
    if last_s is not None:
        now_s[0] = last_s
        assert ring.find([b"KEY"]) is None
        assert len(ring) == 1  # the server does not open when its last key has ended


async def test_a_key_that_has_ended_is_refused_like_a_wrong_one(make_client):
    client = make_client(api_key=("old KEY expires=2020-01-01", "new OTHER"))
    ended = await client.get("/v1/models", headers={"authorization": "Bearer KEY"})
    wrong = await client.get("/v1/models", headers={"authorization": "Bearer NO"})
    assert (ended.status_code, ended.json()) == (wrong.status_code, wrong.json()) == (401, wrong.json())
    assert (await client.get("/v1/models", headers={"x-api-key": "OTHER"})).status_code == 200


def test_names_are_unique_and_a_key_counts_once():
    ring = KeyRing(["a KEY", "b KEY", "KEY"])
    assert len(ring) == 1
    found = ring.find([b"KEY"])
    assert found is not None
    assert found.name == "a"
    with pytest.raises(StartupError, match="'a' stands for two keys"):
        KeyRing(["a KEY", "a OTHER"])


async def test_reload(make_client, tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"old KEY1\nsha256:{DIGEST}\n")
    client = make_client(api_key=("fixed",), api_key_file=str(path))
    ring = client.app.state.context.keys

    async def status(key: str) -> int:
        return (await client.get("/version", headers={"authorization": f"Bearer {key}"})).status_code

    assert [await status(key) for key in ("fixed", "KEY1", SECRET, "KEY2")] == [200, 200, 200, 401]
    path.write_text("new KEY2\n")
    ring.reload()
    assert [await status(key) for key in ("fixed", "KEY1", SECRET, "KEY2")] == [200, 401, 401, 200]
    for bad in ("# none\n", "sha256:12\n", None):
        if bad is None:
            path.unlink()
        else:
            path.write_text(bad)
        with pytest.raises(StartupError, match="api_key_file"):
            ring.reload()
        assert [await status(key) for key in ("fixed", "KEY1", "KEY2")] == [200, 401, 200]


async def test_key_shows_nowhere(make_client, engine, caplog):
    caplog.set_level(logging.DEBUG)
    client = make_client(api_key=(f"team-a {SECRET}",))
    headers = {"authorization": f"Bearer {SECRET}"}
    engine.error = RuntimeError("broken")
    texts = [repr(ServerSettings(api_key=(SECRET,))), repr(client.app.state.context)]
    for path in ("/metrics", "/v1/models", "/nothing", "/version"):
        response = await client.get(path, headers=headers)
        texts += [response.text, str(response.headers)]
    response = await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
    assert response.status_code == 500
    texts += [response.text, caplog.text]
    assert all(SECRET not in text and DIGEST not in text for text in texts)


def test_no_comparison_but_the_constant_one():
    source = inspect.getsource(keys_module.KeyRing.find)
    assert "compare_digest" in source
    assert "==" not in source


async def test_digests_and_odd_headers_open_nothing(make_client):
    client = make_client(api_key=(f"sha256:{DIGEST}",))
    for value in (f"Bearer sha256:{DIGEST}", f"Bearer {DIGEST}", f"bearer  {SECRET}x", "Bearer", "Bearer "):
        assert (await client.get("/version", headers={"authorization": value})).status_code == 401
    assert (await client.get("/version", headers={"x-api-key": SECRET})).status_code == 200
    raw = [(b"x-api-key", b"\xff\x00")]
    assert (await client.get("/version", headers=raw)).status_code == 401


async def test_no_route_is_forgotten(make_client, engine):
    """Whatever is routed, now and later, by every method and in odd spellings of its path."""
    # Without the page: //name names a host, so it asks for /.
    client = make_client(api_key=("k",), web_page=False)
    modules = [
        import_module(f"llm_stack_server.routes.{name}") for _, name, _ in iter_modules(routes.__path__)
    ]
    paths = {re.sub(r"[{}]|:path", "", route.path) for module in modules for route in module.router.routes}
    assert {"/v1/messages", "/v1/chat/completions", "/metrics", "/v1/responses/response_id"} <= paths
    for path in sorted(paths - OPEN_PATHS):
        spellings = (path, f"/{path}", f"{path}/", path.upper(), path.replace("/", "/%2e/", 1), f"/api{path}")
        for spelling in spellings:
            for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
                for headers in ({}, {"authorization": "Bearer x"}, {"x-api-key": "x"}, {"api-key": "k"}):
                    response = await client.request(method, spelling, headers=headers)
                    assert response.status_code == 401, (method, spelling)
    assert engine.seen == []
