"""Runs one set of tests in several pytest processes side by side and sums up.

    python scripts/share_tests.py WORKERS [--by test|file] [--under COMMAND] [--seconds S] PYTEST_ARGUMENTS...

Every test runs in exactly one process. It fails (exit code 1) when a test fails, when one was taken and has
no outcome (its process died), when some were taken by none, and when compute-sanitizer, named with `--under`,
finds errors. What failed comes first, a line a file last.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


@dataclass(slots=True)
class Outcomes:
    """Of all processes together: what each test came to, why it failed, its seconds, and what was to run."""

    of: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    collected: set[str] = field(default_factory=set)
    num_finished: int = 0

    def add(self, path: Path) -> None:
        """Reads the lines of one process, which may have died while it wrote the last one."""
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                note = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "collected" in note:
                self.collected.update(note["collected"])
            elif "finished" in note:
                self.num_finished += 1
            elif "when" not in note:
                self.of[note["test"]] = "died"
            else:
                self._add_phase(**note)

    def _add_phase(self, test: str, when: str, outcome: str, seconds: float, text: str) -> None:
        self.seconds[test] += seconds
        if text:
            self.texts[test] = text
        is_first = self.of.get(test, "died") == "died" and (when == "call" or outcome != "passed")
        if is_first or outcome == "failed":
            self.of[test] = outcome

    def wrong(self) -> dict[str, str]:
        """Tests that failed, died or were not run."""
        wrong = {test: outcome for test, outcome in self.of.items() if outcome in {"failed", "died"}}
        return wrong | dict.fromkeys(self.collected - self.of.keys(), "not run")


def start(
    arguments: argparse.Namespace, rest: list[str], folder: Path, worker: int
) -> subprocess.Popen[bytes]:
    """One pytest process, with its share of the processors, and its output in a file."""
    scripts = str(Path(__file__).resolve().parent)
    variables = {
        "PYTHONPATH": os.pathsep.join([scripts, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // arguments.workers)),
    }
    command = [
        *shlex.split(arguments.under),
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "share_tests_plugin",
        f"--share-folder={folder}",
        f"--share-worker={worker}",
        f"--share-workers={arguments.workers}",
        f"--share-by={arguments.by}",
        *rest,
    ]
    with (folder / f"log{worker}").open("wb") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )


def wait(processes: list[subprocess.Popen[bytes]], seconds: float, folder: Path, by: str) -> list[int]:
    """Exit codes; those that are not done in time are ended, with what they started."""
    begin = time.monotonic()
    said = 0
    while any(process.poll() is None for process in processes):
        passed = time.monotonic() - begin
        if passed > seconds:
            break
        if passed // 60 > said:
            said = int(passed // 60)
            print(f"{said} min: {len(list((folder / 'taken').iterdir()))} {by}s taken", flush=True)
        time.sleep(0.2)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.returncode = 124
    return [process.returncode for process in processes]


def print_table(outcomes: Outcomes) -> None:
    """A line for each file: how many tests came to what, and their seconds."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for test in outcomes.collected | outcomes.of.keys():
        file = test.split("::")[0]
        files[file][outcomes.of.get(test, "not run")] += 1
        seconds[file] += outcomes.seconds[test]
    for file, counts in sorted(files.items()):
        text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{Path(file).name}: {text}; {seconds[file]:.1f} s")


def sanitizer_errors(folder: Path, workers: int) -> list[str]:
    """For each process with something to say: what compute-sanitizer found, or that it came to no end."""
    found = []
    for worker in range(workers):
        text = (folder / f"log{worker}").read_text(errors="replace")
        summaries = SUMMARY.findall(text)
        if not summaries:
            found.append(f"process {worker}: no summary of compute-sanitizer")
        elif any(int(count) for count in summaries):
            first = [line for line in text.splitlines() if line.startswith("=========")][:12]
            found.append(f"process {worker}: {summaries[-1]} errors\n" + "\n".join(first))
    return found


def main() -> int:
    """Parses the command line, runs, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workers", type=int)
    parser.add_argument("--by", choices=["test", "file"], default="test", help="what is taken at a time")
    parser.add_argument("--under", default="", help="a command that runs each pytest")
    parser.add_argument("--seconds", type=float, default=3600.0, help="limit for all")
    parser.add_argument("--logs", type=Path, help="a folder that keeps the outputs and outcomes")
    parser.add_argument("--slowest", type=int, default=5, help="how many tests to name with their seconds")
    arguments, rest = parser.parse_known_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it behind "&"
    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="share-tests-"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "taken").mkdir()
    begin = time.monotonic()
    workers = range(arguments.workers)
    processes = [start(arguments, rest, folder, worker) for worker in workers]
    codes = wait(processes, arguments.seconds, folder, arguments.by)
    shutil.rmtree(folder / "taken")
    outcomes = Outcomes()
    for worker in workers:
        outcomes.add(folder / f"outcomes{worker}.jsonl")
        if codes[worker] not in {0, 1}:
            print(f"== process {worker}: exit code {codes[worker]}")
            print("\n".join((folder / f"log{worker}").read_text(errors="replace").splitlines()[-40:]))
    wrong = outcomes.wrong()
    for test, text in list(outcomes.texts.items())[:12]:
        print(f"== {test}\n{text}\n")
    errors = sanitizer_errors(folder, arguments.workers) if "sanitizer" in arguments.under else []
    for test, seconds in outcomes.seconds.most_common(arguments.slowest):
        print(f"{seconds:8.1f} s {test}")
    print_table(outcomes)
    for line in [*(f"{outcome}: {test}" for test, outcome in sorted(wrong.items())[:40]), *errors]:
        print(line)
    counts = Counter(outcomes.of.values())
    print(
        f"{arguments.workers} processes, {time.monotonic() - begin:.0f} s: {counts['passed']} passed, "
        f"{counts['skipped']} skipped, {len(wrong)} wrong of {len(outcomes.collected)}"
        + (f", {len(errors)} processes with errors of the sanitizer" if arguments.under else "")
    )
    return int(any(codes) or bool(wrong or errors) or not counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
