"""How long a step takes as a function of what it computes; knows nothing of schedulers or fitting.

A recorded run is a JSONL file with one step a line, the fields of ``StepLoad`` and ``seconds``:

    {"num_prefill_tokens": 512, "num_decode_rows": 31, "context_tokens": 20480, "prefill_pairs": 131328,
     "seconds": 0.0123}

(on one line). ``prefill_pairs`` may be left out (0). Other fields are passed over, and so is a line whose
``kind`` is there and not "step".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

import numpy as np

from llm_scheduler.plan import StepPlan
from llm_scheduler.sim.errors import InvalidStepTime, TraceError


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step computes, as the numbers that its time depends on.

    Attributes:
        num_prefill_tokens: Tokens of rows that compute several.
        num_decode_rows: Rows that compute one token.
        context_tokens: Tokens that those rows attend to, themselves included: keys and values to read.
        prefill_pairs: Over rows that compute several tokens, pairs of a token and one it attends to.
    """

    num_prefill_tokens: int
    num_decode_rows: int
    context_tokens: int
    prefill_pairs: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed over all rows."""
        return self.num_prefill_tokens + self.num_decode_rows

    @classmethod
    def of_plan(cls, plan: StepPlan) -> StepLoad:
        """Count what a plan computes."""
        tokens, before = plan.num_tokens, plan.num_computed
        num_rows, total = len(tokens), int(tokens.sum())
        if total == num_rows:
            return cls(0, num_rows, int(before.sum()) + num_rows)
        chunks = tokens > 1
        n, c = tokens[chunks].astype(np.int64), before[chunks].astype(np.int64)
        num_chunks, prefill = len(n), int(n.sum())
        decodes = num_rows - num_chunks
        context = int(before.sum()) - int(c.sum()) + decodes
        return cls(prefill, decodes, context, int((n * c + n * (n + 1) // 2).sum()))


class StepTime(Protocol):
    """Anything that knows how long a step takes."""

    def seconds(self, load: StepLoad) -> float:
        """Return the seconds of a step; positive, and the same for the same load."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """A sum of constants times what the step computes.

    Attributes:
        per_step_s: Of any step: launches, and reading the weights.
        per_prefill_token_s: Of a token of a row that computes several.
        per_decode_row_s: Of a row that computes one token.
        per_context_token_s: Of a token that such a row attends to.
        per_prefill_pair_s: Of a pair of tokens in the attention of a row that computes several.
    """

    per_step_s: float
    per_prefill_token_s: float = 0.0
    per_decode_row_s: float = 0.0
    per_context_token_s: float = 0.0
    per_prefill_pair_s: float = 0.0

    def __post_init__(self) -> None:
        for constant in fields(self):
            value = getattr(self, constant.name)
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if not real or not 0 <= value < math.inf:
                raise InvalidStepTime(constant.name, f"expected a finite number, at least 0, got {value!r}")
        if self.per_step_s == 0 and (self.per_prefill_token_s == 0 or self.per_decode_row_s == 0):
            raise InvalidStepTime("per_step_s", "expected a positive number: a step must take time")

    def seconds(self, load: StepLoad) -> float:
        """Return the seconds of a step."""
        return (
            self.per_step_s
            + self.per_prefill_token_s * load.num_prefill_tokens
            + self.per_decode_row_s * load.num_decode_rows
            + self.per_context_token_s * load.context_tokens
            + self.per_prefill_pair_s * load.prefill_pairs
        )

    def to_json(self) -> str:
        """Return the constants as a JSON object."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> StepTimeModel:
        """Read constants as ``per_step_s=0.005,per_prefill_token_s=2e-5``.

        Raises:
            InvalidStepTime: A name is unknown or comes twice, or a value is no number or outside its range.
        """
        found: dict[str, float] = {}
        names = [constant.name for constant in fields(cls)]
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            InvalidStepTime.require(name, name in names, f"expected one of {', '.join(names)}")
            InvalidStepTime.require(name, name not in found, "comes twice")
            try:
                found[name] = float(value)
            except ValueError:
                raise InvalidStepTime(name, f"expected a number, got {value!r}") from None
        InvalidStepTime.require("per_step_s", "per_step_s" in found, "is missing")
        return cls(**found)

    @classmethod
    def from_file(cls, path: str | Path) -> StepTimeModel:
        """Read what ``to_json`` wrote.

        Raises:
            TraceError: The file cannot be read, or is no JSON object of the constants.
            InvalidStepTime: A constant is outside its range.
        """
        try:
            found: object = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TraceError(str(path), 0, "", str(error)) from error
        names = {constant.name for constant in fields(cls)}
        if not isinstance(found, dict) or "per_step_s" not in found:
            raise TraceError(str(path), 0, "per_step_s", "expected an object with this constant")
        for name in found:
            if name not in names:
                raise TraceError(str(path), 0, str(name), f"expected one of {', '.join(sorted(names))}")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a recorded run.

    Attributes:
        load: What it computed.
        seconds: How long it took.
    """

    load: StepLoad
    seconds: float


def write_step_records(path: str | Path, records: Iterable[StepRecord]) -> None:
    """Write a recorded run, one step a line."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({**asdict(record.load), "seconds": record.seconds}) + "\n" for record in records
        )


def read_step_records(path: str | Path) -> list[StepRecord]:
    """Read a recorded run.

    Raises:
        TraceError: The file cannot be read, has no step, or a line is malformed.
    """
    records: list[StepRecord] = []
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    record = _parse_record(str(path), number, line)
                    records += [record] if record else []
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(str(path), 0, "", str(error)) from error
    if not records:
        raise TraceError(str(path), 0, "", "holds no step")
    return records


def _parse_record(path: str, number: int, line: str) -> StepRecord | None:
    try:
        found: object = json.loads(line)
    except ValueError as error:
        raise TraceError(path, number, "", f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise TraceError(path, number, "", "expected an object")
    if found.get("kind", "step") != "step":
        return None
    counts = [_count(path, number, found, name) for name in ("num_prefill_tokens", "num_decode_rows")]
    counts.append(_count(path, number, found, "context_tokens"))
    counts.append(_count(path, number, {"prefill_pairs": 0, **found}, "prefill_pairs"))
    seconds = found.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise TraceError(path, number, "seconds", f"expected a positive number, got {seconds!r}")
    return StepRecord(StepLoad(*counts), float(seconds))


def _count(path: str, number: int, found: Mapping[str, object], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(path, number, name, f"expected an integer, at least 0, got {value!r}")
    return value
