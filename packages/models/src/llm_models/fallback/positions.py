"""Owns positions of transformers' models: how many a config allows, and learned ones in packed steps.

Many older classes count positions from 0 in each forward, whatever `position_ids` they are given. Their
positional modules are then asked once for all positions, and a table answers in their place.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

UNBOUNDED = 1 << 20
"""For models whose config sets no limit."""
_LONGEST_TABLE = 1 << 17
_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
    "context_length",
)
_POSITIONAL = re.compile(r"position|(^|_)pos(_|$)|wpe", re.IGNORECASE)


def max_positions(config: Any) -> int:
    """Positions lie below it.

    Ropes that change with the longest sequence of a batch (`dynamic`, `longrope`) are served up to the length
    the model was first trained for: beyond it one row would change another's keys.
    """
    text = config.get_text_config()
    limit = next((v for f in _FIELDS if isinstance(v := getattr(text, f, None), int) and v > 0), UNBOUNDED)
    for rope in _ropes(text):
        if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
            limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionalCall:
    """A call of a positional module in a run over tokens that start at position 0."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    tokens: int

    @property
    def limit(self) -> int:
        """How many positions the module has rows for."""
        if not isinstance(self.module, nn.Embedding):
            return UNBOUNDED
        offset = getattr(self.module, "offset", 0)
        first = [int(v.flatten()[0]) for v in self._values() if _is_count(v)]
        return self.module.num_embeddings - (first[0] if first else int(offset))

    def table(self, count: int) -> Tensor:
        """The module's rows for positions 0 to `count` - 1, [count, E]."""
        args = [self._longer(value, count) for value in self.args]
        kwargs = {name: self._longer(value, count) for name, value in self.kwargs.items()}
        rows: Tensor = self.module(*args, **kwargs)
        return rows.reshape(count, -1)

    def _values(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def _longer(self, value: Any, count: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        if _is_count(value):
            start = int(value.flatten()[0])
            longer = torch.arange(start, start + count, device=value.device, dtype=value.dtype)
            return longer.reshape(*value.shape[:-1], count)
        if value.shape[:2] == (1, self.tokens):  # Ids or embeddings, which only say how many there are.
            return value[:, :1].expand(1, count, *value.shape[2:])
        raise LookupError(f"a positional module takes a tensor of shape {tuple(value.shape)}")


def record_positional(model: nn.Module, tokens: int, run: Callable[[], Any]) -> list[PositionalCall]:
    """The calls that positional modules get in `run`, a pass over one row of `tokens` tokens."""
    found: dict[nn.Module, PositionalCall] = {}

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.numel() == tokens * output.shape[-1]:
            found[module] = PositionalCall(
                module=module, args=args, kwargs=kwargs, output=output, tokens=tokens
            )

    handles = [
        module.register_forward_hook(note, with_kwargs=True)
        for path, module in model.named_modules()
        if _POSITIONAL.search(path.rpartition(".")[2]) or _POSITIONAL.search(type(module).__name__)
        if next(module.children(), None) is None
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


class PositionTables:
    """Positional modules that answer from tables, by the positions of the step that runs.

    Args:
        calls: Of `record_positional`.
        count: Positions that the tables hold.
        positions: Gives the positions of the step's tokens, int64 [T].
    """

    def __init__(
        self, calls: Sequence[PositionalCall], count: int, positions: Callable[[], Tensor | None]
    ) -> None:
        if count > _LONGEST_TABLE:
            raise LookupError(f"a table of {count} positions is too long")
        self._modules = [call.module for call in calls]
        for call in calls:
            call.module.__dict__["forward"] = _Lookup(call.table(count), call.output.dim(), positions)

    def remove(self) -> None:
        """Lets the modules answer for themselves again."""
        for module in self._modules:
            module.__dict__.pop("forward", None)


class _Lookup:
    def __init__(self, table_PE: Tensor, dim: int, positions: Callable[[], Tensor | None]) -> None:
        self._table_PE, self._dim, self._positions = table_PE, dim, positions

    def __call__(self, *_args: Any, **_kwargs: Any) -> Tensor:
        positions_T = self._positions()
        assert positions_T is not None
        rows_TE = self._table_PE[positions_T]
        return rows_TE.reshape(*(1 for _ in range(self._dim - 2)), *rows_TE.shape)


def _is_count(value: Any) -> bool:
    """Whether a tensor holds consecutive numbers."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32) or value.numel() < 2:
        return False
    return value.numel() == value.shape[-1] and bool((value.diff() == 1).all())


def _ropes(config: Any) -> list[dict[str, Any]]:
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, dict):
            found += [value, *(inner for inner in value.values() if isinstance(inner, dict))]
    return found
