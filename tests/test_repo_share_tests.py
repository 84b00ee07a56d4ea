"""Tests shared among processes: each runs once, and nothing that goes wrong is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/share_tests.py"
GOOD = """
import pathlib, pytest
@pytest.fixture(scope="module")
def shared(): return []
@pytest.mark.parametrize("n", range(7))
def test_it(n, shared):
    with (pathlib.Path(__file__).parent / "ran").open("a") as file:
        file.write(f"{__name__} {n}\\n")
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.parametrize("n", [1], ids=[str(object())])
def test_whose_id_holds_an_address(n): pass
"""


@pytest.fixture
def share(tmp_path):
    """Writes test files and runs them with two processes; returns the exit code and what was printed."""

    def run(*options, **files):
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, str(SCRIPT), "2", *options, str(tmp_path), "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("by", ["test", "file"])
def test_each_test_runs_once(share, tmp_path, by):
    code, text = share("--by", by, a=GOOD, b=GOOD, c=GOOD)
    assert code == 0, text
    assert "24 passed, 3 skipped, 0 wrong of 27" in text
    assert "test_a.py: 8 passed, 1 skipped" in text
    ran = (tmp_path / "ran").read_text().split("\n")[:-1]
    assert len(ran) == len(set(ran)) == 21


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("def test_bad(): assert 1 == 2", "failed: "),
        ("import os\ndef test_bad(): os._exit(0)", "died: "),
        ("import time\ndef test_bad(): time.sleep(1000)", "died: "),
    ],
    ids=["fails", "dies", "hangs"],
)
def test_a_bad_test_is_named(share, bad, expected):
    limit = ["--seconds", "25"] if "sleep" in bad else []
    code, text = share(*limit, a=GOOD, b=bad)
    assert code == 1
    assert f"{expected}test_b.py::test_bad" in text
    assert "1 wrong of 10" in text or "not run" in text


def test_what_cannot_be_collected_fails(share):
    code, text = share(a="import nothing_of_this_name")
    assert code == 1
    assert "nothing_of_this_name" in text


def test_errors_of_the_sanitizer_count(share, tmp_path):
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\n"$@"\necho "========= ERROR SUMMARY: 3 errors"\n')
    sanitizer.chmod(0o755)
    code, text = share("--under", str(sanitizer), a=GOOD)
    assert code == 1
    assert "8 passed, 1 skipped, 0 wrong of 9, 2 processes with errors of the sanitizer" in text
    sanitizer.write_text('#!/bin/sh\n"$@"\necho "========= ERROR SUMMARY: 0 errors"\n')
    code, text = share("--under", str(sanitizer), a=GOOD)
    assert code == 0, text
