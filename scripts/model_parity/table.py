"""Owns the page docs/models.md, written from the results of the sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from . import tiny_models
from .cases import TP_CHECK
from .checks import CHECKS, within

COLUMNS = (*CHECKS, TP_CHECK)
PAGE = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """# Models

<!-- Written by `python -m scripts.model_parity table` from scripts/model_parity/results.jsonl. -->

Every class of transformers' causal-LM mapping (transformers {version}: {classes} classes, {types} model
types) is built as a tiny random model, saved, loaded here, and compared with transformers in float32 on the
CPU. A check passes if the logits differ by at most 1e-4 of the largest one, and if all greedy tokens are the
same.

| standing | classes | meaning |
|---|---|---|
| native | {native} | described by a spec of this repository; all checks pass |
| paged | {paged} | fallback, transformers' module over our paged attention; all checks pass |
| recompute | {recompute} | fallback, the whole sequence is run again in each step; all checks pass |
| failing | {failing} | at least one check fails |
| unsupported | {unsupported} | refused with a reason |
| not built | {not_built} | transformers cannot run the class on token ids alone |

Checks: a prompt in **one pass**; **chunked**, with single tokens between; **batched** with others of
different lengths; a **prefix hit** (blocks, windows and state checkpoints of another sequence);
**preempted**, with all blocks taken away; 32 **greedy** tokens, preempted half way; native ones also on two
ranks (**TP = 2**). Blocks lie at random places; what must not be read is wrong numbers. Caches say what a
token leaves behind: `full` attention, a `window`, a `chunk`, a `latent`, a recurrent `state`, or just its id
(`tokens`). A class with several kinds has a hybrid cache.

`uv run python -m scripts.model_parity check LlamaForCausalLM` runs the checks of one class.

"""


def page(results: Mapping[str, dict[str, Any]]) -> str:
    """The whole page."""
    rows = {name: _merged(name, results) for name in tiny_models.causal_architectures()}
    counts: dict[str, int] = {}
    for row in rows.values():
        counts[row["count"]] = counts.get(row["count"], 0) + 1
    types = tiny_models.causal_architectures()
    head = _HEAD.format(
        version=transformers.__version__,
        classes=len(types),
        types=sum(map(len, types.values())),
        **{kind: counts.get(kind.replace("_", " "), 0)
           for kind in ("native", "paged", "recompute", "failing", "unsupported", "not_built")},
    )  # fmt: skip
    columns = ["architecture", "model types", "standing", "caches", *COLUMNS, "largest error", "notes"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [_line(name, types[name], row) for name, row in rows.items()]
    return head + "\n".join(lines) + "\n"


def _merged(name: str, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One row for a class and its variants: the worst of each."""
    own = [results[case] for case in tiny_models.cases([name]) if case in results]
    if not own:
        return {"standing": "not swept", "count": "not swept", "checks": {}, "caches": [], "notes": ""}
    checks: dict[str, float | str] = {}
    for result in own:
        for check, outcome in result["checks"].items():
            checks[check] = _worse(checks.get(check, 0.0), outcome)
    standings = list(dict.fromkeys(result["standing"] for result in own))
    passed = all(result["passed"] for result in own)
    refused = standings[0] in ("unsupported", "not built")
    notes = [result["reason"] for result in own if result["reason"]]
    notes += [f"{r['case'].partition(':')[2] or 'plain'}: {o}" for r in own for o in r["checks"].values()
              if isinstance(o, str)]  # fmt: skip
    return {
        "standing": ", ".join(standings),
        "count": standings[0] if passed or refused else "failing",
        "checks": checks,
        "caches": list(dict.fromkeys(kind for result in own for kind in result["caches"])),
        "notes": "; ".join(dict.fromkeys(notes)),
    }


def _worse(one: float | str, other: float | str) -> float | str:
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    return max(one, other)


def _line(name: str, types: tuple[str, ...], row: Mapping[str, Any]) -> str:
    marks = [_mark(row["checks"].get(check)) for check in COLUMNS]
    numbers = [row["checks"][check] for check in row["checks"] if check != "greedy"]
    numbers = [outcome for outcome in numbers if not isinstance(outcome, str)]
    largest = f"{max(numbers):.0e}" if numbers else "-"
    notes = row["notes"].replace("|", "/").replace("\n", " ")[:240]
    cells = [name, ", ".join(types), row["standing"], ", ".join(row["caches"]) or "-", *marks, largest, notes]
    return "| " + " | ".join(cells) + " |"


def _mark(outcome: float | str | None) -> str:
    if outcome is None:
        return "-"
    return "yes" if within(outcome) else "**no**"
