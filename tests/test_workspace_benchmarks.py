"""The benchmark script runs on a CPU and writes its JSON; its workloads are the peers' own."""

import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_offline_benchmark_writes_a_result_for_each_workload(tmp_path):
    out = tmp_path / "result.json"
    command = [
        sys.executable,
        "benchmarks/offline.py",
        "--shape",
        "tiny",
        "--scale",
        "0.02",
        "--out",
        str(out),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(out.read_text())
    assert [row["workload"] for row in report["results"]] == ["W1", "W2", "W3", "W4", "W5"]
    assert all(row["output_tokens_per_s"] > 0 for row in report["results"])


def test_workloads_draw_what_the_peers_were_measured_on(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from workloads import make_workloads

    rng = random.Random(0)
    shared = [rng.randint(100, 150_000) for _ in range(2048)]
    first = [rng.randint(100, 150_000) for _ in range(rng.randint(100, 1024))]
    workloads = make_workloads()
    assert workloads["W5"].prompts[0][:2048] == shared
    assert workloads["W1"].prompts[0] == first
    sizes = {name: (len(w.prompts), w.num_input_tokens, w.num_output_tokens) for name, w in workloads.items()}
    assert sizes["W2"] == (1, 128, 512)
    assert sizes["W3"] == (32, 32 * 4096, 32)
    assert sizes["W4"] == (64, 64 * 32, 64 * 512)
    assert sizes["W5"] == (128, 128 * 2112, 128 * 64)
