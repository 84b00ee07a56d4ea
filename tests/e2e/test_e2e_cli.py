"""The command line, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys


def test_generate(run_cli):
    result = run_cli("generate", "What is the capital of France?", "--stats")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"
    assert re.search(
        r"first token [0-9.]+ s after 37 prompt tokens; 8 tokens at [0-9.]+ a second", result.stderr
    )


def test_generate_raw_from_stdin(run_cli):
    result = run_cli(
        "generate", "-", "--raw", "--max-tokens", "3", "--threads", "1", "--no-progress", stdin="1, 2, 3, 4,"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(" 5")


def test_chat_through_a_pipe(run_cli):
    question = "What is the capital of France?"
    lines = f"{question}\n\n/reset\n{question}\n/exit\nnever read\n"
    result = run_cli("chat", "--threads", "1", "--no-progress", "--max-tokens", "20", stdin=lines)
    assert result.returncode == 0, result.stderr
    assert result.stdout == 2 * "The capital of France is Paris.\n"


def test_version(run_cli):
    result = run_cli("version")
    assert result.returncode == 0
    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert {"llm-stack-server", "llm-stack-engine", "llm-kvcache", "torch", "python", "device"} <= set(rows)
    assert rows["python"] == ".".join(map(str, sys.version_info[:3]))


def test_help_imports_no_torch():
    script = """
import contextlib, sys
from llm_stack_server.cli import main
for arguments in (["--help"], ["serve", "--help"], ["generate", "--help"], ["version", "--short"]):
    with contextlib.suppress(SystemExit):
        main(arguments)
assert "torch" not in sys.modules
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "--max-model-len" in result.stdout


def test_no_command_shows_the_help(run_cli):
    result = run_cli()
    assert result.returncode == 2
    assert "generate" in result.stdout
