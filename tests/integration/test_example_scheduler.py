"""The example scheduler is installed as anybody would, found by its entry point, and runs the engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llm_engine import LLM, SamplingParams
from llm_scheduler import installed_schedulers

EXAMPLE = Path(__file__).parents[2] / "docs/examples/shortest_job_scheduler"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A folder with the installed example; uv brings the build backend along, so no index is needed."""
    folder = tmp_path_factory.mktemp("installed")
    command = ["uv", "pip", "install", "--offline", "--no-deps", "--python", sys.executable]
    result = subprocess.run(
        [*command, "--target", folder, EXAMPLE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_it_conforms_and_so_says_its_readme(target):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "llm_scheduler.conformance", "shortest-job", "--sequences", "150"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("shortest-job conforms: ")
    assert "NOT SEEN" not in result.stdout
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, env=environment)


def test_the_real_engine_gives_the_same_tokens_with_it(target, monkeypatch):
    monkeypatch.syspath_prepend(str(target))
    assert "shortest-job" in installed_schedulers()
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = ["The capital of France is", "Water boils at", "The quick brown fox"]
    options = {
        "dtype": "float32",
        "max_model_len": 256,
        "kv_cache_bytes": 64 << 20,
        "max_num_seqs": 2,
        "threads": 1,
        "progress": False,
    }
    results = []
    for scheduler in ("default", "shortest-job"):
        with LLM("smollm2", scheduler=scheduler, **options) as llm:
            outputs = llm.generate(prompts, params, progress=False)
            results.append([output.outputs[0].token_ids for output in outputs])
    assert results[0] == results[1]
    assert sys.modules["shortest_job_scheduler"].__file__.startswith(str(target))


def test_it_serves_short_jobs_first_once_it_has_learnt(target, monkeypatch):
    monkeypatch.syspath_prepend(str(target))
    import numpy as np
    from llm_kvcache import FullAttention, KVCache
    from llm_scheduler import Ragged, Request, SchedulerConfig, StepResult, load_scheduler

    config = SchedulerConfig(max_model_len=100, max_num_seqs=1)
    scheduler = load_scheduler("shortest-job", config, KVCache([FullAttention(4)], 32))

    def add(name, tenant, length=4):
        tokens = np.ones(length, np.int32)
        stop = frozenset({9})
        scheduler.add(
            Request(request_id=name, token_ids=tokens, max_tokens=50, tenant=tenant, stop_token_ids=stop)
        )

    def run(stop_after):
        """Run to the end, each answer as long as its tenant's are; return the order of admission."""
        order, tokens = [], 0
        while scheduler.has_work():
            plan = scheduler.schedule()
            if plan.admitted:
                order.append(plan.admitted[0].request_id)
                tokens = 0
            tokens += 1
            token = 9 if tokens == stop_after[order[-1][0]] else 1
            scheduler.update(plan, StepResult(plan.step_id, Ragged.from_rows([[token]])))
        return order

    lengths = {"a": 40, "b": 2}
    add("a0", "a")
    add("b0", "b", length=5)
    assert run(lengths) == ["a0", "b0"]  # nothing is known of either: the shorter prompt first
    add("a1", "a")
    add("b1", "b", length=5)
    assert run(lengths) == ["b1", "a1"]
