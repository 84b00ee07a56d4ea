"""docs/fault-cases.md decides every fault case once, and each test that it names is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "fault-cases.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (C\d{3}) \| ([^|]+) \| ([^|]+) \| (.*) \|$", re.MULTILINE)
COUNT = re.compile(r"^\| (passes|refused|in part|open|not here) \| (\d+) \|", re.MULTILINE)
NAMED = re.compile(r"`([a-z0-9_]+\.py)::([a-z0-9_]+)`")
NEED_TESTS = {"passes", "refused", "in part"}
NEED_NOTES = {"refused", "in part", "open", "not here"}

# The numbers of the collection, which has gaps.
NUMBERS = """
001 003 005 006 007 008 010 011 012 013 014 016 018 020 021 022 024 025 028 030 031 032 034 035 036
037 039 040 041 042 044 046 048 050 052 053 055 056 058 060 061 063 065 066 067 068 070 072 073 075
077 079 080 081 083 084 086 089 090 091 092 094 096 097 098 100 102 103 104 106 107 109 110 112 114
115 116 117 119 121 122 124 125 126 128 131 132 133 135 136 138 140 141 142 144 145 146 147 148 151
153 154 157 158 159 160 163 164 166 167 168 170 172 173 174 176 177 178 180 181
"""


def rows() -> list[tuple[str, str, str]]:
    """Number, decision, notes of each case."""
    return [(number, decision.strip(), notes) for number, _, decision, notes in ROW.findall(PAGE)]


def test_every_case_is_decided_once():
    numbers = NUMBERS.split()
    assert len(numbers) == 120
    assert [number for number, *_ in rows()] == [f"C{number}" for number in numbers]
    assert len(re.findall(r"^\| C", PAGE, re.MULTILINE)) == 120


def test_the_counts_are_right():
    counted = Counter(decision for _, decision, _ in rows())
    assert {name: int(count) for name, count in COUNT.findall(PAGE)} == counted


def test_decisions_have_their_tests_and_reasons():
    for number, decision, notes in rows():
        named = NAMED.findall(notes)
        reason = NAMED.sub("", notes).strip(" ,;")
        assert named or decision not in NEED_TESTS, f"{number} names no test"
        assert reason or decision not in NEED_NOTES, f"{number} gives no reason"


def test_every_test_named_is_there():
    texts: dict[str, list[str]] = {}
    for folder in (*ROOT.glob("packages/*/tests"), ROOT / "tests"):
        for path in folder.rglob("test_*.py"):
            texts.setdefault(path.name, []).append(path.read_text(encoding="utf-8"))
    for number, _, notes in rows():
        for file, name in NAMED.findall(notes):
            assert len(texts.get(file, ())) == 1, f"{number}: there is no single file {file}"
            found = re.search(rf"^(async )?def {name}\(", texts[file][0], re.MULTILINE)
            assert found, f"{number}: {file} has no test {name}"
