"""`llm-stack run-batch` with the real model: killed in the middle, resumed, and the same as over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "llm_stack_server"]
START_S = 300  # on a busy machine
FLAGS = ["--threads", "1", "--dtype", "float32", "--no-progress", "--max-model-len", "512"]
LINES = 12


def body(number: int) -> dict[str, object]:
    prompt = f"Count on: {number}, {number + 1}, {number + 2},"
    return {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 1}


def answers(path):
    """Whole lines of an output, by name."""
    raw = path.read_bytes() if path.exists() else b""
    return {
        answer["custom_id"]: answer
        for answer in map(json.loads, raw.splitlines(keepends=True)[: raw.count(b"\n")])
    }


def test_a_killed_batch_goes_on_and_answers_as_the_server_does(server, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = {"method": "POST", "url": "/v1/completions"}
    source.write_text(
        "".join(json.dumps({"custom_id": f"r{n}", **line, "body": body(n)}) + "\n" for n in range(LINES))
    )
    command = [
        *COMMAND,
        "run-batch",
        "smollm2",
        "-i",
        str(source),
        "-o",
        str(target),
        *FLAGS,
        "--in-flight",
        "2",
    ]
    first = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + START_S
        while len(answers(target)) < 3:
            assert first.poll() is None, first.stderr.read().decode()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        first.kill()
        first.communicate()
    before = answers(target)
    assert 3 <= len(before) < LINES
    result = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, timeout=START_S, check=False
    )
    assert result.returncode == 0, result.stderr
    assert f"{LINES - len(before)} done, 0 failed, {len(before)} skipped" in result.stderr
    assert result.stdout == ""
    after = answers(target)
    assert len(target.read_text().splitlines()) == len(after) == LINES
    assert {name: after[name] for name in before} == before
    for number in range(LINES):
        over_http = server.http.post("/v1/completions", json=body(number)).json()
        (choice,) = after[f"r{number}"]["response"]["body"]["choices"]
        assert choice["text"] == over_http["choices"][0]["text"]
        assert choice["logprobs"]["tokens"] == over_http["choices"][0]["logprobs"]["tokens"]
