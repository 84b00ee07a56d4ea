"""Owns choosing how a loaded model of transformers is run, by comparing; knows nothing about files."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from llm_models.fallback.attention import (
    RECORD,
    NotPageable,
    PagedAttention,
    switch_implementation,
)
from llm_models.fallback.body import Split, takes_positions
from llm_models.fallback.models import (
    FallbackEmbedding,
    FallbackModel,
    FallbackSpec,
    PagedModel,
    RecomputeModel,
)
from llm_models.fallback.probe_steps import LENGTHS, run_steps
from llm_models.fallback.verdict import Verdict

# Relative error of the paged run against the plain one. In float32 it is about 1e-6; in 16 bit a median over
# tokens counts, since rounding may send a token to another expert.
_ROOM = {torch.float32: 1e-4}
_ROOM_16_BIT = 0.1


@torch.inference_mode()
def choose(model: Any, architecture: str, expected: Verdict, max_positions: int) -> FallbackModel:
    """Wraps a loaded model of transformers.

    If `expected` is `paged`, the paged run is compared with the plain one on a few tokens. Where they differ
    the model is wrapped for recomputing, with a warning that says why.
    """
    ids = _ids(model)
    plain = Split(model, ids[0][None], None)
    spec = FallbackSpec(
        architecture=architecture,
        hidden_size=plain.hidden_size,
        max_positions=max_positions,
        embedding=FallbackEmbedding(vocab_size=plain.vocab_size),
    )
    reason = expected.reason
    if expected.kind == "paged":
        wanted = {row: plain.logits(plain.hidden(of_row[None], None)[0]) for row, of_row in ids.items()}
        usual = model.config._attn_implementation
        try:
            return _paged(model, spec, expected, ids, wanted)
        except NotPageable as error:
            reason = str(error)
            switch_implementation(model, usual)
            warnings.warn(f"{architecture} runs without a cache, slowly: {reason}", stacklevel=2)
    return RecomputeModel(model, plain, spec, Verdict("recompute", reason))


def _paged(
    model: Any,
    spec: FallbackSpec,
    verdict: Verdict,
    ids: Mapping[int, Tensor],
    wanted: Mapping[int, Tensor],
) -> PagedModel:
    if not takes_positions(model):
        raise NotPageable("its forward takes no positions")
    attention = PagedAttention()
    attention.attach(model)
    positions = torch.arange(LENGTHS[0], device=ids[0].device)[None]
    switch_implementation(model, RECORD)
    try:
        split = Split(model, ids[0][None], positions)
        attention.calls.clear()
        split.hidden(ids[0][None], positions)
        if not attention.calls:
            raise NotPageable("its attention does not go through transformers' attention interface")
        paged = PagedModel(model, split, spec, verdict, attention)
        found = run_steps(paged, ids)
    except NotPageable:
        raise
    except Exception as error:
        raise NotPageable(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    worst = max(_error(found[row], wanted[row], paged.dtype) for row in ids)
    if not worst <= _ROOM.get(paged.dtype, _ROOM_16_BIT):
        raise NotPageable(f"paged and plain logits differ by {worst:.1e}")
    return paged


def _error(found_TV: Tensor, wanted_TV: Tensor, dtype: torch.dtype) -> float:
    wanted_TV = wanted_TV.float()
    error_T = (found_TV - wanted_TV).abs().amax(-1) / wanted_TV.abs().amax().clamp_min(1e-6)
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
    count = getattr(embedding, "num_embeddings", None) or getattr(model.config, "vocab_size", None)
    return int(count or 256)


def _special_ids(config: Any) -> set[int]:
    found: set[int] = set()
    for part in (config, config.get_text_config()):
        for name, value in part.to_dict().items():
            if name.endswith(("token_id", "token_index", "token_ids")):
                found.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    return found
