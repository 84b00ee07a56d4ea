"""The real server and model: metrics after a mass abort, the access log up to its last line, no secrets."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

MARK = "pineapple-7731"
KEY = "sk-secret-4242"
TEXT = "/v1/completions"
COUNTS = ("_total", "_count", "_sum", "_bucket")


def by_name(samples: dict[str, float]) -> dict[str, float]:
    """Sums over the labels."""
    sums: dict[str, float] = {}
    for key, value in samples.items():
        name = key.partition("{")[0]
        sums[name] = sums.get(name, 0) + value
    return sums


def leave_early(http, number: int) -> None:
    body = {"prompt": f"{MARK} {number}", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with http.stream("POST", TEXT, json=body) as response:
        next(response.iter_lines())


def test_mass_abort_and_log(start_server):
    flags = ("--access-log", "json", "--log-level", "debug", "--api-key", f"bob {KEY}")
    server = start_server(*flags, "--max-num-seqs", "6")
    http = server.http
    http.headers["authorization"] = f"Bearer {KEY}"
    for number in range(3):
        body = {"prompt": f"{MARK} {number}", "max_tokens": 4}
        assert http.post(TEXT, json=body).status_code == 200
    whole = server.metrics()
    sums = by_name(whole)
    assert sums["llm_stack_request_prompt_tokens_sum"] == sums["llm_stack_prompt_tokens_total"]
    assert sums["llm_stack_request_output_tokens_sum"] == sums["llm_stack_generation_tokens_total"]
    assert sums["llm_stack_request_queue_seconds_count"] == 3

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: leave_early(http, number), range(20)))
    deadline_s = time.monotonic() + 10
    while by_name(after := server.metrics())["llm_stack_requests_total"] < 23:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    time.sleep(0.5)  # the core ends its last step
    after = server.metrics()
    sums = by_name(after)
    for gauge in ("requests_running", "requests_waiting", "http_requests_in_flight", "queue_running"):
        assert sums[f"llm_stack_{gauge}"] == 0
    assert after['llm_stack_kv_blocks{"state": "used"}'] == 0
    assert min(after.values()) >= 0
    grown = {name: value for name, value in whole.items() if name.partition("{")[0].endswith(COUNTS)}
    assert all(after[name] >= value for name, value in grown.items())
    assert sums["llm_stack_http_requests_total"] == sums["llm_stack_request_outcomes_total"]
    assert sums["llm_stack_requests_total"] == 23
    added, finished = (sums[f"llm_stack_engine_requests_{name}_total"] for name in ("added", "finished"))
    assert added == finished == 23

    answers = sums["llm_stack_http_requests_total"] + 1  # the last scrape was counted at its end
    server.stop()
    output = server.log.read_text()
    assert MARK not in output
    assert KEY not in output
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(lines) == answers
    texts = [line for line in lines if line["route"] == TEXT]
    outcomes = [line["outcome"] for line in texts]
    assert (outcomes.count("finished"), outcomes.count("aborted")) == (3, 20)
    assert all(line["key"] == "bob" for line in texts)
    finished_ones = [line for line in texts if line["outcome"] == "finished"]
    assert all(0 <= line["queue_s"] < line["ttft_s"] <= line["duration_s"] for line in finished_ones)
