"""A scheduler that somebody else wrote runs the real engine, named as `module:Class`."""

import subprocess
import sys
from pathlib import Path

from llm_engine import LLM, SamplingParams

ONE_AT_A_TIME = '''
from llm_scheduler import TokenBudgetScheduler


class OneAtATime:
    """Hands requests to the default scheduler one by one: no batching, so every plan has one row."""

    API_VERSION = 1
    plans = []

    def __init__(self, config, cache):
        self._inner = TokenBudgetScheduler(config, cache)
        self._queue = []

    def add(self, request):
        self._queue.append(request)

    def abort(self, request_ids):
        wanted = set(request_ids)
        queued = [request.request_id for request in self._queue if request.request_id in wanted]
        self._queue = [request for request in self._queue if request.request_id not in wanted]
        return queued + self._inner.abort(wanted)

    def schedule(self):
        if self._queue and not self._inner.has_work():
            self._inner.add(self._queue.pop(0))
        plan = self._inner.schedule()
        if plan is not None:
            self.plans.append(plan.num_rows)
        return plan

    def update(self, plan, result):
        return self._inner.update(plan, result)

    def fail(self, plan, message):
        return self._inner.fail(plan, message)

    def has_work(self):
        return bool(self._queue) or self._inner.has_work()

    def stats(self):
        return self._inner.stats()
'''


def test_a_scheduler_of_ones_own_gives_the_same_tokens(tmp_path, monkeypatch):
    (tmp_path / "one_at_a_time.py").write_text(ONE_AT_A_TIME)
    monkeypatch.syspath_prepend(str(tmp_path))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = ["The capital of France is", "Water boils at", "The quick brown fox"]
    options = {
        "dtype": "float32",
        "max_model_len": 256,
        "kv_cache_bytes": 64 << 20,
        "threads": 1,
        "progress": False,
    }
    results = []
    for scheduler in ("default", "one_at_a_time:OneAtATime"):
        with LLM("smollm2", scheduler=scheduler, **options) as llm:
            outputs = llm.generate(prompts, params, progress=False)
            results.append([output.outputs[0].token_ids for output in outputs])
    assert results[0] == results[1]
    assert set(sys.modules["one_at_a_time"].OneAtATime.plans) == {1}


def test_the_command_line_takes_it_too(tmp_path):
    (tmp_path / "one_at_a_time.py").write_text(ONE_AT_A_TIME)
    command = [Path(sys.executable).parent / "llm-stack", "generate", "What is the capital of France?"]
    result = subprocess.run(
        [*command, "--scheduler", "one_at_a_time:OneAtATime", "--threads", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "The capital of France is Paris.", result.stderr[-2000:]
