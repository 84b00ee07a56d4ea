"""Owns choosing how a loaded model of transformers is run, by comparing; knows nothing about files."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from llm_models.fallback.attention import RECORD, NotPageable, PagedAttention, switch_implementation
from llm_models.fallback.body import Split, takes_positions
from llm_models.fallback.models import (
    FallbackEmbedding,
    FallbackModel,
    FallbackSpec,
    PagedModel,
    RecomputeModel,
)
from llm_models.fallback.position_watch import PositionWatch
from llm_models.fallback.positions import PositionalCall, PositionTables, record_positional
from llm_models.fallback.probe_steps import LENGTHS, STEPS, run_steps
from llm_models.fallback.swap import swap_modules
from llm_models.fallback.verdict import Verdict

# Relative error of the paged run against the plain one. In float32 it is about 1e-6, and a few times that of
# the plain run of a shorter row; in 16 bit a median over tokens counts, since rounding may send a token to
# another expert.
_ROOM, _MOST_ROOM, _ROOM_16_BIT = 1e-4, 1e-2, 0.1
_NOT_CAUSAL = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """What the plain run of a model gives."""

    split: Split
    ids: Mapping[int, Tensor]
    logits: Mapping[int, Tensor]
    noise: float
    positional: list[PositionalCall]


@torch.inference_mode()
def choose(model: Any, architecture: str, expected: Verdict, max_positions: int) -> FallbackModel:
    """Wraps a loaded model of transformers.

    If `expected` is `paged`, the paged run is compared with the plain one on a few tokens. Where they differ
    the model is wrapped for recomputing, with a warning that says why.
    """
    plain = _run_plain(model)
    spec = FallbackSpec(
        architecture=architecture,
        hidden_size=plain.split.hidden_size,
        max_positions=min([max_positions, *(call.limit for call in plain.positional)]),
        embedding=FallbackEmbedding(vocab_size=plain.split.vocab_size),
    )
    verdict = expected
    if expected.kind == "paged":
        usual, swaps = model.config._attn_implementation, swap_modules(model)
        try:
            return _paged(model, spec, expected, plain)
        except NotPageable as error:
            verdict = Verdict("recompute", str(error))
            swaps.undo()
            switch_implementation(model, usual)
            warnings.warn(f"{architecture} runs without a cache, slowly: {error}", stacklevel=2)
    if plain.noise > _NOT_CAUSAL:
        verdict = replace(verdict, reason=f"{verdict.reason}; a token's scores depend on later tokens")
    return RecomputeModel(model, plain.split, spec, verdict)


def _run_plain(model: Any) -> _Plain:
    ids = _ids(model)
    split = Split(model, ids[0][None], None)
    logits = {row: split.logits(split.hidden(of_row[None], None)[0]) for row, of_row in ids.items()}
    shorter = ids[0][: LENGTHS[1]]
    part = split.logits(split.hidden(shorter[None], None)[0])
    positional = record_positional(model, LENGTHS[0], lambda: split.hidden(ids[0][None], None))
    return _Plain(
        split=split,
        ids=ids,
        logits=logits,
        noise=_error(part, logits[0][: len(part)], model.dtype),
        positional=positional,
    )


def _paged(model: Any, spec: FallbackSpec, verdict: Verdict, plain: _Plain) -> PagedModel:
    """Tries the ways in which a class may be told the positions, and returns the first that is right."""
    if plain.noise > _NOT_CAUSAL:
        raise NotPageable("a token's scores depend on later tokens")
    reason = None
    for by_id, by_table in _ways(model, plain):
        attention = PagedAttention()
        attention.attach(model)
        tables = None
        try:
            if by_table:
                tables = PositionTables(plain.positional, spec.max_positions, attention.positions)
            return _try(model, spec, verdict, plain, attention, by_id, by_table)
        except NotPageable as error:
            reason = reason or error
        except Exception as error:  # noqa: BLE001 A class may raise anything with attention it does not know.
            found = NotPageable(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            reason = reason or found
        if tables is not None:
            tables.remove()
    raise reason or NotPageable("its forward takes no positions")


def _ways(model: Any, plain: _Plain) -> Iterator[tuple[bool, bool]]:
    """Whether positions are passed as an argument, and whether positional modules look them up."""
    if takes_positions(model):
        yield True, False
        if plain.positional:
            yield True, True
    if plain.positional:
        yield False, True
    yield False, False  # Right for models without positions.


def _try(
    model: Any,
    spec: FallbackSpec,
    verdict: Verdict,
    plain: _Plain,
    attention: PagedAttention,
    by_id: bool,
    by_table: bool,
) -> PagedModel:
    ids_1T = plain.ids[0][None]
    attention.recorded_positions = torch.arange(LENGTHS[0], device=ids_1T.device)
    positions_1T = attention.recorded_positions[None] if by_id else None
    switch_implementation(model, RECORD)
    split = Split(model, ids_1T, positions_1T)
    attention.calls.clear()
    split.hidden(ids_1T, positions_1T)
    attention.recorded_positions = None
    if not attention.calls:
        raise NotPageable("its attention does not go through transformers' attention interface")
    paged = PagedModel(model, split, spec, verdict, attention, by_id)
    with PositionWatch(sum(STEPS[0].values())) as watch:
        found = run_steps(paged, plain.ids)
    if watch.found and not by_table:
        raise NotPageable(f"it counts positions by itself ({watch.found})")
    worst = max(_error(found[row], plain.logits[row], paged.dtype) for row in plain.ids)
    room = min(max(_ROOM, 4 * plain.noise), _MOST_ROOM) if paged.dtype == torch.float32 else _ROOM_16_BIT
    if not worst <= room:
        raise NotPageable(f"paged and plain logits differ by {worst:.1e}")
    return paged


def _error(found_TV: Tensor, wanted_TV: Tensor, dtype: torch.dtype) -> float:
    wanted_TV = wanted_TV.float()
    error_T = (found_TV.float() - wanted_TV).abs().amax(-1) / wanted_TV.abs().amax().clamp_min(1e-6)
    return float(error_T.max() if dtype == torch.float32 else error_T.median())


def _ids(model: Any) -> dict[int, Tensor]:
    """Seeded ids for each row of the made-up steps, none of them a special one."""
    device = next(model.parameters()).device
    special = _special_ids(model.config)
    usual = [i for i in range(min(_vocab_size(model), 30_000)) if i not in special]
    generator = torch.Generator().manual_seed(0)
    return {
        row: torch.tensor(usual)[torch.randint(len(usual), (count,), generator=generator)].to(device)
        for row, count in LENGTHS.items()
    }


def _vocab_size(model: Any) -> int:
    embedding = model.get_input_embeddings()
    counts = getattr(embedding, "num_embeddings", None), getattr(model.config, "vocab_size", None)
    return min([count for count in counts if isinstance(count, int)] or [256])


def _special_ids(config: Any) -> set[int]:
    found: set[int] = set()
    for part in (config, config.get_text_config()):
        for name, value in part.to_dict().items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                found.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    return found
