"""The simulator's pages under docs/: their Python runs, and the example shows what it says."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the package stands without the repository's docs")


@pytest.mark.parametrize("page", ["simulator.md", "examples/compare_policies.md"])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)


@pytest.mark.slow
def test_the_example_compares_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    # A copy, so that the picture is not drawn over the one of the page.
    script = shutil.copy(DOCS / "examples" / "compare_policies.py", tmp_path)
    results = runpy.run_path(str(script))["results"]
    fcfs, prefix, own = (result.report for result in results)
    assert own.name == "ShortestPromptFirst"
    assert prefix.cache.hit_rate > fcfs.cache.hit_rate
    assert prefix.goodput.share > own.goodput.share > fcfs.goodput.share
    assert "prefix hit rate" in capsys.readouterr().out
    assert (tmp_path / "compare_policies.svg").stat().st_size > 10_000
