"""Owns the page docs/models.md, written from the results of the sweep."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from llm_models import known_architectures

from . import tiny_models
from .cases import TP_CHECK
from .checks import CHECKS, within
from .encoder_decoder_checks import CHECKS as ENCODER_DECODER_CHECKS
from .tiny_configs import CLASSIFIERS, ENCODERS

COLUMNS = (*CHECKS, TP_CHECK)
_POOLING_COLUMNS = ("one text", "several texts", "token types")
_COUNTED = ("native", "paged", "recompute", "failing", "unsupported", "not built")
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


_POOLING = """
## Encoders, embedders and classifiers

Vectors and scores of a text alone, of several texts in one pass, and of pairs told apart by token types.

"""
_ENCODER_DECODERS = """
## Encoder-decoders

The checks of decoders, over cross caches that the encoder's states fill; a preempted one is encoded again.

"""
_OTHERS = """
## Other names

These architectures have a native spec too, but are none of transformers' causal classes (code in the
checkpoint, older names, parts of larger models), so that the sweep builds no tiny model for them: {names}.
"""


def page(results: Mapping[str, dict[str, Any]]) -> str:
    """The whole page."""
    types = tiny_models.causal_architectures()
    rows = {name: _merged(name, results) for name in types}
    counts = collections.Counter(row["count"] for row in rows.values())
    head = _HEAD.format(
        version=transformers.__version__,
        classes=len(types),
        types=sum(map(len, types.values())),
        **{kind.replace(" ", "_"): counts[kind] for kind in _COUNTED},
    )
    pooling = [name for name in (*ENCODERS, *CLASSIFIERS) if name in results]
    both = [name for name in tiny_models.encoder_decoder_cases() if name in results]
    others = sorted(set(known_architectures()) - types.keys() - set(pooling) - set(both))
    return "".join(
        (
            head,
            _table(
                ("architecture", "model types", "standing", "caches", "configs", *COLUMNS, "error", "notes"),
                [_line(name, types[name], row) for name, row in rows.items()],
            ),
            _POOLING,
            _table(
                ("architecture", "standing", *_POOLING_COLUMNS, "error", "notes"),
                [_pooling_line(name, _merged(name, results)) for name in pooling],
            ),
            _ENCODER_DECODERS,
            _table(
                ("architecture", "standing", "caches", *ENCODER_DECODER_CHECKS, "error", "notes"),
                [_encoder_decoder_line(name, _merged(name, results)) for name in both],
            ),
            _OTHERS.format(names=", ".join(others)),
        )
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _merged(name: str, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One row for a class and its variants: the worst of each."""
    own = [results[case] for case in tiny_models.cases([name]) if case in results]
    if not own:
        return {
            "standing": "not swept",
            "count": "not swept",
            "checks": {},
            "caches": [],
            "notes": "",
            "configs": 0,
        }
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
        "configs": len(own),
        "caches": list(dict.fromkeys(kind for result in own for kind in result["caches"])),
        "notes": "; ".join(dict.fromkeys(notes)),
    }


def _worse(one: float | str, other: float | str) -> float | str:
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else other
    return max(one, other)


def _line(name: str, types: tuple[str, ...], row: Mapping[str, Any]) -> list[str]:
    facts = [row["standing"], ", ".join(row["caches"]) or "-", str(row["configs"])]
    return [name, ", ".join(types), *facts, *_marks(row, COLUMNS), _largest(row), _notes(row)]


def _pooling_line(name: str, row: Mapping[str, Any]) -> list[str]:
    return [name, row["standing"], *_marks(row, _POOLING_COLUMNS), _largest(row), _notes(row)]


def _encoder_decoder_line(name: str, row: Mapping[str, Any]) -> list[str]:
    facts = [row["standing"], ", ".join(row["caches"]) or "-"]
    return [name, *facts, *_marks(row, list(ENCODER_DECODER_CHECKS)), _largest(row), _notes(row)]


def _marks(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    return [_mark(row["checks"].get(check)) for check in columns]


def _largest(row: Mapping[str, Any]) -> str:
    outcomes = [outcome for check, outcome in row["checks"].items() if check != "greedy"]
    numbers = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    return f"{max(numbers):.0e}" if numbers else "-"


def _notes(row: Mapping[str, Any]) -> str:
    return " ".join(row["notes"].replace("|", "/").split())[:240]


def _mark(outcome: float | str | None) -> str:
    if outcome is None:
        return "-"
    return "yes" if within(outcome) else "**no**"
