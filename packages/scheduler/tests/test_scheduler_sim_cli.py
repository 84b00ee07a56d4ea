"""The command ``llm-sim``: every command, what it writes, its exit codes."""

import csv
import json
import os
import subprocess
import sys
import types

import pytest
from llm_scheduler import TokenBudgetScheduler
from llm_scheduler.sim import StepLoad, StepRecord, StepTimeModel, read_trace, write_step_records
from llm_scheduler.sim.cli import main

STEP_TIME = "per_step_s=0.005,per_prefill_token_s=2e-5,per_decode_row_s=1e-5"
SMALL = ["--requests", "40", "--rate", "50", "--prompt-tokens", "uniform:10:60", "--output-tokens", "8"]
RUN = ["run", *SMALL, "--step-time", STEP_TIME]


class Lazy(TokenBudgetScheduler):
    """Plans nothing."""

    def schedule(self):
        return None


def test_run_prints_a_table_and_writes_what_is_asked_for(tmp_path, capsys):
    out, rows = tmp_path / "out.json", tmp_path / "rows.csv"
    assert main([*RUN, "--slo-ttft", "0.5", "--json", str(out), "--per-request", str(rows)]) == 0
    table = capsys.readouterr().out
    assert "TTFT p50 / p90 / p99" in table
    assert "40/40" in table
    report = json.loads(out.read_text())
    assert report["version"] == 1
    assert report["requests"]["finished"] == 40
    assert report["goodput"]["share"] == 1.0
    found = list(csv.DictReader(rows.open()))
    assert [row["outcome"] for row in found] == ["finished"] * 40
    assert sum(int(row["output_tokens"]) for row in found) == 320


def test_json_on_stdout_takes_the_place_of_the_table(capsys):
    assert main([*RUN, "--json", "-"]) == 0
    first = capsys.readouterr().out
    assert json.loads(first)["name"] == "fcfs"
    assert main([*RUN, "--json", "-"]) == 0
    assert capsys.readouterr().out == first
    assert main([*RUN, "--seed", "1", "--json", "-"]) == 0
    assert capsys.readouterr().out != first


def test_compare_puts_policies_and_schedulers_side_by_side(tmp_path, capsys):
    out = tmp_path / "out.json"
    names = ["fcfs", "priority", "llm_scheduler:TokenBudgetScheduler@priority"]
    tenants = ["--tenant", "chat:3", "--tenant", "batch:1:0.5:9"]
    argv = ["compare", *names, *SMALL, *tenants, "--step-time", STEP_TIME, "--json", str(out)]
    assert main(argv) == 0
    table = capsys.readouterr().out
    assert table.split("\n")[0].split() == names
    assert "fairness (Jain)" in table
    fcfs, priority, named = json.loads(out.read_text())
    assert fcfs["tenants"]["batch"]["weight"] == 0.5
    assert fcfs["setup"]["config"]["policy"] == "fcfs"
    assert priority["ttft_s"] == named["ttft_s"]


def test_fit_prints_the_constants_and_writes_them(tmp_path, capsys):
    model = StepTimeModel(per_step_s=0.004, per_decode_row_s=1e-5)
    loads = [StepLoad(0, rows, rows * rows) for rows in range(1, 50)]
    steps, fitted = tmp_path / "steps.jsonl", tmp_path / "model.json"
    write_step_records(steps, [StepRecord(load, model.seconds(load)) for load in loads])
    assert main(["fit", str(steps), "--output", str(fitted)]) == 0
    printed = capsys.readouterr().out
    assert "fitted to 49 steps" in printed
    assert "never seen in the records, so 0: per_prefill_token_s, per_prefill_pair_s" in printed
    found = StepTimeModel.from_file(fitted)
    assert found.per_step_s == pytest.approx(0.004)
    assert main(["run", *SMALL, "--step-time", str(fitted)]) == 0


def test_trace_converts_and_describes(tmp_path, capsys):
    source, ours = tmp_path / "azure.csv", tmp_path / "ours.jsonl"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:56,396,109\n"
    )
    assert main(["trace", "--trace", str(source), "--rate-scale", "2", "--output", str(ours)]) == 0
    assert "requests        2" in capsys.readouterr().out
    assert read_trace(ours).arrival_s.tolist() == [0.0, 5.0]
    assert main(["trace", "--trace", str(ours), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["span_s"] == 5.0
    assert main(["run", "--trace", str(ours), "--max-requests", "1", "--step-time", STEP_TIME]) == 0
    assert "1/1" in capsys.readouterr().out


def test_a_picture_is_drawn_and_equal_runs_give_equal_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg", "c.png"):
        assert (
            main(
                [
                    "compare",
                    "fcfs",
                    "priority",
                    *SMALL,
                    "--step-time",
                    STEP_TIME,
                    "--plot",
                    str(tmp_path / name),
                ]
            )
            == 0
        )
    svg = (tmp_path / "a.svg").read_bytes()
    assert b"priority" in svg
    assert svg == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([*RUN, "--policy", "nonsense"], 2, "policy"),
        ([*RUN, "--scheduler", "nobody"], 2, "nobody"),
        ([*RUN, "--rate", "0"], 2, "rate"),
        ([*RUN, "--prompt-tokens", "many"], 2, "many"),
        ([*RUN, "--tenant", "a:b"], 2, "tenant"),
        ([*RUN, "--slo-ttft", "-1"], 2, "slo.ttft_s"),
        ([*RUN, "--max-num-seqs", "0"], 2, "max_num_seqs"),
        ([*RUN, "--max-requests", "0"], 2, "max_requests"),
        (["run", *SMALL, "--step-time", "per_step_s=fast"], 2, "per_step_s"),
        (["run", *SMALL, "--step-time", "absent.json"], 2, "absent.json"),
        ([*RUN, "--trace", "absent.jsonl"], 2, "absent.jsonl"),
        ([*RUN, "--json", "/nowhere/out.json"], 1, "/nowhere/out.json"),
        ([*RUN, "--scheduler", "lazy_scheduler:Lazy"], 3, "plans nothing"),
        (["fit", "absent.jsonl"], 2, "absent.jsonl"),
        (["compare", "fcfs", "fcfs", *SMALL, "--step-time", STEP_TIME], 2, "twice"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(argv, code, words, capsys, monkeypatch):
    module = types.ModuleType("lazy_scheduler")
    module.Lazy = Lazy
    monkeypatch.setitem(sys.modules, "lazy_scheduler", module)
    assert main(argv) == code
    message = capsys.readouterr().err
    assert message.startswith("llm-sim: ")
    assert message.count("\n") == 1
    assert words in message


def test_a_picture_without_an_ending_is_refused_before_the_run(capsys):
    pytest.importorskip("matplotlib")
    assert main([*RUN, "--plot", "picture"]) == 2
    assert "plot" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["run"], ["walk"], ["run", "--depth", "3"]])
def test_wrong_usage_exits_with_2(argv):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "fit", "trace"])
def test_each_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    help_text = capsys.readouterr().out
    assert "exit codes:" in help_text
    assert "example:" in help_text


def test_the_module_runs_without_torch_and_matplotlib():
    block = "import sys; sys.modules.update(torch=None, matplotlib=None)\n"
    run = f"from llm_scheduler.sim.cli import main\nsys.exit(main({[*RUN, '--plot', 'a.png']!r}))"
    done = subprocess.run(
        [sys.executable, "-c", block + run], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 2
    assert "llm-stack-scheduler[plot]" in done.stderr


def test_sweep_runs_every_rate_under_every_policy(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    argv = [
        "sweep",
        "fcfs",
        "priority",
        *SMALL,
        "--step-time",
        STEP_TIME,
        "--rates",
        "0.5,20",
        "--slo-ttft",
        "0.05",
    ]
    assert main([*argv, "--max-num-seqs", "4", "--json", str(out), "--plot", str(picture)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["rate", "x0.5", "x0.5", "x20", "x20"]
    points = json.loads(out.read_text())
    assert [(p["rate_scale"], p["report"]["name"]) for p in points] == [
        (0.5, "fcfs"),
        (0.5, "priority"),
        (20.0, "fcfs"),
        (20.0, "priority"),
    ]
    assert points[2]["offered_per_s"] == pytest.approx(40 * points[0]["offered_per_s"])
    assert points[0]["report"]["goodput"]["share"] > points[2]["report"]["goodput"]["share"]
    assert picture.stat().st_size > 5000


@pytest.mark.parametrize("rates", ["", "fast", "1,1", "-1", "0"])
def test_bad_rates_are_refused(rates, capsys):
    assert main(["sweep", "fcfs", *SMALL, "--step-time", STEP_TIME, "--rates", rates]) == 2
    assert "rate" in capsys.readouterr().err
