"""The root README's Python example runs, and its command line prints the model's answer."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip()


def test_the_python_example_answers():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert run([sys.executable, "-c", example]) == "The capital of France is Paris."


def test_the_first_command_answers():
    command, answer = re.search(
        r"```console\n\$ uv run (llm-stack .*)\n(.*)\n```", (ROOT / "README.md").read_text()
    ).groups()
    prompt = re.search(r'"(.*)"', command)[1]
    assert command.startswith("llm-stack generate ")
    assert run([str(Path(sys.executable).parent / "llm-stack"), "generate", prompt]) == answer
