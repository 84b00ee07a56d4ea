"""A real server's keys, certificate and limits: read again on SIGHUP, and an address that is not loopback."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import time

import httpx
import pytest

COMPLETION = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "temperature": 0}


def make_certificate(folder, name: str) -> tuple[str, str]:
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def logged(server, text: str, times: int = 1) -> None:
    deadline_s = time.monotonic() + 10
    while server.log.read_text().count(text) < times:
        assert time.monotonic() < deadline_s, server.log.read_text()
        time.sleep(0.05)


def test_keys_and_limits_of_a_real_server(start_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old KEY1\n")
    server = start_server(
        *("--api-key-file", str(keys), "--host", "0.0.0.0", "--max-concurrent-requests", "1"),
        *("--max-queued-requests", "1", "--max-requests-per-key", "3", "--requests-per-minute", "30"),
    )

    def post(key: str, **more) -> httpx.Response:
        return server.http.post(
            "/v1/completions", json=COMPLETION | more, headers={"authorization": f"Bearer {key}"}
        )

    first = post("KEY1", max_tokens=2)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-remaining-requests"] == "29"
    keys.write_text("new KEY2\n")
    server.process.send_signal(signal.SIGHUP)
    logged(server, "SIGHUP: API keys read again")
    assert [post(key, max_tokens=2).status_code for key in ("KEY1", "KEY2")] == [401, 200]
    keys.write_text("sha256:12\n")
    server.process.send_signal(signal.SIGHUP)
    logged(server, "API keys not read again")
    assert post("KEY2", max_tokens=2).status_code == 200
    # The deadline ends the work, and the place is free for the next.
    began_s = time.monotonic()
    late = server.http.post(
        "/v1/completions",
        json=COMPLETION | {"max_tokens": 1000},
        headers={"x-api-key": "KEY2", "x-timeout-s": "0.5"},
    )
    assert late.status_code == 504
    assert time.monotonic() - began_s < 3
    assert post("KEY2", max_tokens=2).status_code == 200
    assert "KEY1" not in server.log.read_text()
    assert "KEY2" not in server.log.read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_tls_of_a_real_server(start_server, tmp_path, monkeypatch):
    cert, key = make_certificate(tmp_path, "first")
    newer_cert, newer_key = make_certificate(tmp_path, "second")
    trusted = ssl.create_default_context(cafile=cert)
    trusted.load_verify_locations(newer_cert)

    def over_tls(client_class):
        def make(*, base_url: str, timeout: float) -> httpx.Client:
            return client_class(base_url=base_url.replace("http:", "https:"), timeout=timeout, verify=trusted)

        return make

    monkeypatch.setattr("httpx.Client", over_tls(httpx.Client))
    server = start_server("--tls-cert", cert, "--tls-key", key)
    logged(server, "on https://127.0.0.1:")
    assert server.http.post("/v1/completions", json=COMPLETION | {"max_tokens": 2}).status_code == 200
    streamed = server.http.post("/v1/completions", json=COMPLETION | {"max_tokens": 5, "stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
    shutil.copy(newer_cert, cert)
    server.process.send_signal(signal.SIGHUP)
    logged(server, "certificate not read again")
    shutil.copy(newer_key, key)
    server.process.send_signal(signal.SIGHUP)
    logged(server, "SIGHUP: certificate read again")
    only_newer = ssl.create_default_context(cafile=newer_cert)
    shown = httpx.get(server.url.replace("http:", "https:") + "/health/ready", verify=only_newer)
    assert shown.status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url + "/health/ready")
