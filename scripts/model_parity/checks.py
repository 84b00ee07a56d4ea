"""Owns the parity checks of decoders: our logits and tokens against those of transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from llm_models import load_model, resolve
from llm_models.fallback import load_fallback
from llm_models.model import Model

from . import reference, tiny_models
from .paged_run import PagedRun
from .reference import relative_error
from .tiny_models import tokens
from .two_ranks import TwoRanks

TOLERANCE = 1e-4
STEPS = 32


def within(outcome: float | str) -> bool:
    """Whether a check passed."""
    return not isinstance(outcome, str) and outcome <= TOLERANCE


@dataclass(slots=True)
class Pair:
    """A tiny model in transformers and here.

    Attributes:
        theirs: Transformers'.
        ours: Ours.
        causal: Whether tokens do not depend on later ones in transformers; if they do, only the logits of a
            step's last token are compared, as the others' change with what follows.
    """

    theirs: transformers.PreTrainedModel
    ours: Model
    causal: bool = True

    def error(self, ours: torch.Tensor, ids: list[int], start: int = 0) -> float:
        """Relative error of our logits of the tokens from `start` on, of a sequence that ends with `ids`."""
        expected = reference.logits(self.theirs, ids)[start:]
        if not self.causal:
            return relative_error(ours[-1:], expected[-1:])
        return relative_error(ours, expected)


Check = Callable[[Pair], float]


class NearTie(Exception):
    """The reference's best tokens hardly lead, so that greedy tokens say nothing."""


def one_pass(pair: Pair) -> float:
    """All tokens of a prompt in one step."""
    ids = tokens(41, 1)
    return pair.error(PagedRun(pair.ours).step({"a": ids})["a"], ids)


def chunked(pair: Pair) -> float:
    """A prompt in parts, single tokens among them."""
    ids, run, parts, start = tokens(41, 2), PagedRun(pair.ours, seed=3), [], 0
    for size in (7, 1, 1, 16, 2, 1, 13):
        parts.append(run.step({"a": ids[start : start + size]})["a"])
        start += size
    return pair.error(torch.cat(parts), ids)


def batched(pair: Pair) -> float:
    """Sequences of different lengths, each at its own pace."""
    texts = {name: tokens(length, length) for name, length in (("a", 30), ("b", 5), ("c", 19), ("d", 1))}
    run, rest = PagedRun(pair.ours, seed=4), dict(texts)
    got: dict[str, list[torch.Tensor]] = {name: [] for name in texts}
    for step in range(60):
        rows = {}
        for row, name in enumerate(texts):
            size = (1, 4, 9)[(step + row) % 3]
            if rest[name] and (step + row) % 4:  # Rows pause now and then.
                rows[name], rest[name] = rest[name][:size], rest[name][size:]
        if rows:
            for name, scores in run.step(rows).items():
                got[name].append(scores)
    return max(pair.error(torch.cat(got[name]), ids) for name, ids in texts.items())


def prefix_hit(pair: Pair) -> float:
    """A second sequence goes on from another's first blocks or checkpoint; then the first goes on."""
    ids, run = tokens(45, 6), PagedRun(pair.ours, seed=7)
    run.keep("a")
    first = [
        run.step({"a": part})["a"] for part in (ids[:21], ids[21:22], ids[22:23], ids[23:24], ids[24:35])
    ]
    errors = []
    for shared, seed in ((16, 8), (24, 9), (8, 10)):
        other = ids[:shared] + tokens(13, seed)
        name = f"b{shared}"
        run.fork(name, "a", shared)
        parts = [run.step({name: part})[name] for part in (other[shared:-1], other[-1:])]
        errors.append(pair.error(torch.cat(parts), other, shared))
    first.append(run.step({"a": ids[35:]})["a"])
    return max(*errors, pair.error(torch.cat(first), ids))


def preempted(pair: Pair) -> float:
    """A sequence loses its blocks while it decodes, and is computed anew beside another."""
    ids, run = tokens(33, 11), PagedRun(pair.ours, seed=12)
    run.step({"a": ids[:17], "b": tokens(6, 13)})
    run.step({"a": ids[17:18], "b": [7]})
    run.preempt("a")
    run.step({"b": [9, 8, 7, 6]})
    parts = [
        run.step({"a": ids[:18], "b": [5]})["a"],
        run.step({"a": ids[18:19]})["a"],
        run.step({"a": ids[19:]})["a"],
    ]
    return pair.error(torch.cat(parts), ids)


def greedy(pair: Pair) -> float:
    """Greedy tokens, with a preemption in the middle; 0 if all are the same, else how many differ."""
    clear = reference.clear_greedy(pair.theirs, 9, STEPS)
    prompt, expected = clear.prompt, clear.produced
    if len(expected) < STEPS // 2:
        raise NearTie(f"after {len(expected)} tokens in the best of many prompts")
    run, half = PagedRun(pair.ours, seed=14), len(expected) // 2
    produced = run.greedy("a", prompt, half)
    run.preempt("a")
    produced += run.greedy("a", prompt + produced, len(expected) - half)
    return float(sum(ours != theirs for ours, theirs in zip(produced, expected, strict=True)))


def two_ranks(pair: Pair, ranks: TwoRanks, folder: Path) -> float:
    """The model of a folder shared between two ranks."""
    ids = tokens(41, 1)
    ours = ranks.logits(folder, [ids[:29], ids[29:30], ids[30:]])
    return pair.error(ours, ids)


CHECKS: dict[str, Check] = {
    "one pass": one_pass,
    "chunked": chunked,
    "batched": batched,
    "prefix hit": prefix_hit,
    "preempted": preempted,
    "greedy": greedy,
}


def load_pair(case: str, folder: Path, *, fallback: bool = False) -> Pair:
    """Builds a case in transformers, saves it to an empty folder and loads it here.

    Raises:
        CannotBuild: Transformers cannot.
        ModelError: It is not served.
    """
    theirs = tiny_models.build(case)
    tiny_models.save(theirs, folder)
    return Pair(theirs, load_ours(folder, fallback=fallback)[0])


def load_ours(folder: Path, *, fallback: bool = False) -> tuple[Model, str, str]:
    """Our model, its standing, and why the fallback serves it as it does.

    Raises:
        ModelError: It is not served.
    """
    files = resolve(str(folder))
    load = load_fallback if fallback else load_model
    model = load(files, dtype=torch.float32, device="cpu")
    verdict = getattr(model, "verdict", None)
    if verdict is None:
        return model, "native", ""
    return model, verdict.kind, verdict.reason
