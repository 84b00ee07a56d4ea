"""The script behind the table of JSON-schema keywords, on a suite of two files."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "json_schema_support.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("json_schema_support", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_tells_what_is_enforced(script, tmp_path):
    tests = [
        {"description": "whole", "data": 5, "valid": True},
        {"description": "text", "data": "x", "valid": False},
        {"description": "a mistake of the suite", "data": 7, "valid": False},
    ]
    groups = [{"description": "integers", "schema": {"type": "integer"}, "tests": tests}]
    (tmp_path / "type.json").write_text(json.dumps(groups))
    refused = [{"description": "none", "schema": {"not": {}}, "tests": tests}]
    (tmp_path / "not.json").write_text(json.dumps(refused))
    rows = list(script.measure(tmp_path))
    other = list(script.measure(tmp_path, "xgrammar")) if importlib.util.find_spec("xgrammar") else rows
    assert list(script.table({"llguidance": rows, "xgrammar": other}))[2:] == [
        "| `not` | 0, 3 | 0 of 0 | 0 of 0 | 0, 3 | 0 of 0 | 0 of 0 |",
        "| `type` | 1, 0 | 1 of 1 | 1 of 2 | 1, 0 | 1 of 1 | 1 of 2 |",
    ]
    assert rows[1].wrong == ["integers: a mistake of the suite"]
    assert "not" in rows[0].refused[0]
    with pytest.raises(FileNotFoundError):
        list(script.measure(tmp_path / "empty"))
