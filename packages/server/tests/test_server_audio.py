"""Routes of speech say that no model here hears or speaks."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("route", ["transcriptions", "translations", "speech"])
async def test_the_reason_is_told(client, route):
    upload = {"file": ("a.wav", b"RIFF", "audio/wav")}
    answer = await client.post(f"/v1/audio/{route}", files=upload, data={"model": "double"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_task")
    assert "double" in error["message"]


async def test_keys_guard_them(make_client):
    answer = await make_client(api_key=("secret",)).post("/v1/audio/transcriptions")
    assert answer.status_code == 401


async def test_before_the_model_is_there(make_client):
    answer = await make_client(start=False).post("/v1/audio/transcriptions")
    assert answer.status_code == 503
