"""The built-in page's files: types, policy, who gets them."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

PAGE = files("llm_stack_server").joinpath("web_page")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
NAMES = sorted(entry.name for entry in PAGE.iterdir())
API_POLICY = "default-src 'none'; frame-ancestors 'none'"


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


@pytest.mark.parametrize("name", NAMES)
async def test_files_and_their_types(client, name):
    response = await client.get(path_of(name))
    assert response.status_code == 200
    assert response.content == PAGE.joinpath(name).read_bytes()
    assert response.headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    again = await client.get(path_of(name), headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await client.head(path_of(name))
    assert (head.status_code, head.headers["etag"]) == (200, response.headers["etag"])


async def test_the_policy_of_the_page_and_of_the_rest(client):
    policy = (await client.get("/")).headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert "require-trusted-types-for 'script'" in policy
    allowed = {part.split(" ", 1)[0]: part.split(" ")[1:] for part in policy}
    assert allowed["script-src"] == allowed["style-src"] == allowed["connect-src"] == ["'self'"]
    assert allowed["frame-ancestors"] == allowed["form-action"] == allowed["base-uri"] == ["'none'"]
    for path in ("/v1/models", "/metrics", "/health", "/page/nothing.js"):
        assert (await client.get(path)).headers["content-security-policy"] == API_POLICY


def test_the_page_names_no_other_host_and_has_no_inline_code():
    html = PAGE.joinpath("index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", html)
    for name in NAMES:
        text = PAGE.joinpath(name).read_text()
        hosts = set(re.findall(r"https?://[\w.]+", text))
        assert hosts <= {"http://www.w3.org"}, name  # the name of SVG's elements
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), name


async def test_the_page_needs_no_key_and_what_it_asks_does(make_client):
    client = make_client(api_key=("k",))
    for name in NAMES:
        assert (await client.get(path_of(name))).status_code == 200
    for path in ("/v1/models", "/metrics", "/version", "/page/", "/page/nothing.js", "/page/../metrics"):
        assert (await client.get(path)).status_code == 401
    assert (await client.post("/")).status_code == 405


async def test_a_page_can_be_left_out(make_client):
    client = make_client(web_page=False)
    for name in NAMES:
        assert (await client.get(path_of(name))).status_code == 404
    client = make_client(web_page=False, api_key=("k",))
    assert (await client.get("/")).status_code == 401


async def test_no_page_for_foreign_names(make_client):
    """A name that someone else points at this machine (DNS rebinding) gets no page either."""
    client = make_client()
    client._transport.client = ("127.0.0.1", 1)
    response = await client.get("http://127.0.0.1/", headers={"host": "evil.example"})
    assert response.status_code == 403
