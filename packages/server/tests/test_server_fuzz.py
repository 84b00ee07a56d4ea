"""A short run of scripts/server_fuzz over the replay engine, and what its judge must find."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from llm_stack_server.app import create_app
from llm_stack_server.settings import ServerSettings
from server_replay_engine import ReplayEngine
from server_thread import serving

sys.path.insert(0, str(Path(__file__).parents[3]))  # scripts is no installed package

from scripts.server_fuzz.cases import Case, make_case
from scripts.server_fuzz.client import Answer
from scripts.server_fuzz.judge import faults
from scripts.server_fuzz.run import Plan, Target, fuzz
from scripts.server_fuzz.seeds import seeds

SEED, COUNT = 11, 1000
CASE = Case(seed=1, number=0, method="POST", path="/v1/completions", field="prompt")
JSON = {"content-type": "application/json"}


def test_a_short_run(caplog, tmp_path):
    caplog.set_level(logging.INFO)
    settings = ServerSettings(mcp=True, max_request_s=20, output_format="hermes")
    engine = ReplayEngine()
    engine.model_name = "fuzzed"
    with serving(create_app(settings, engine)) as url:
        host, port = url.removeprefix("http://").split(":")
        target = Target(
            host=host,
            port=int(port),
            model="fuzzed",
            gives_vectors=False,
            log=lambda: caplog.text,
            memory=lambda: 0,
        )
        # Client and server share a process here, so the probe's second is not measured.
        plan = Plan(seed=SEED, count=COUNT, workers=8, failures=tmp_path, alive_s=20)
        report = asyncio.run(fuzz(target, plan))
    assert report.failures == {}, "\n".join(report.lines())
    assert report.statuses.total() == COUNT
    assert report.statuses[200] > COUNT / 20
    assert report.statuses[400] > COUNT / 4
    assert engine.live == engine.num_open == 0


def test_a_case_is_the_same_again(tmp_path):
    made = [make_case(3, number, seeds("m")) for number in range(50)]
    assert made == [make_case(3, number, seeds("m")) for number in range(50)]
    for case in made:
        case.write(tmp_path / "case.json")
        assert Case.read(tmp_path / "case.json") == case


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(fault="closed without an answer"), "no answer"),
        (Answer(status=500, headers=JSON, body=b'{"error":{"message":"x"}}'), "status 500"),
        (Answer(status=503, headers=JSON, body=b'{"error":{"code":"engine_dead"}}'), "status 503"),
        (Answer(status=422, headers=JSON), "none of this API"),
        (Answer(status=400, headers={"content-type": "text/plain"}), "an error of type text/plain"),
        (Answer(status=400, headers=JSON, body=b'{"detail":"x"}'), "without message"),
        (
            Answer(status=400, headers=JSON, body=b'{"error":{"message":"no","type":"t","param":null}}'),
            "names no field",
        ),
        (Answer(status=200, headers=JSON, body=b'{"x":NaN}'), "not JSON"),
        (
            Answer(status=200, headers={"content-type": "text/event-stream"}, body=b'data: {"a":1}\n\n'),
            "without end mark",
        ),
    ],
)
def test_the_judge_finds(answer, fault):
    [found] = faults(CASE, answer)
    assert fault in found
