"""Owns attention of transformers' modules over our paged cache; knows nothing about classes or loading.

Two attention implementations are registered with transformers. `llm_stack_record` runs plain attention and
writes down each call: which module, which shapes, which mask pattern. `llm_stack_paged` replays that record:
the n-th call of a step uses the n-th cache. What a step needs reaches the functions through the modules of
its own model, so models do not see each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.ops import AttentionMetadata
from torch import Tensor, nn

from llm_models.caches import KVCacheSpec
from llm_models.fallback.mask_patterns import MaskPattern, pattern_in, pattern_of

RECORD = "llm_stack_record"
PAGED = "llm_stack_paged"
_OWNER = "_llm_stack_attention"
# Tensors that models hand to attention functions for other implementations; they change nothing here.
_HARMLESS = frozenset({"position_ids", "cache_position", "input_ids", "cu_seq_lens_q", "cu_seq_lens_k"})


class NotPageable(Exception):
    """The model's attention does something that the paged path does not do; says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One attention of a forward pass, as recorded."""

    module: nn.Module
    num_kv_heads: int
    head_size: int
    value_size: int
    pattern: MaskPattern

    def cache_spec(self) -> KVCacheSpec:
        """What this attention caches."""
        return KVCacheSpec(
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            value_size=self.value_size,
            window=self.pattern.window,
            chunk=self.pattern.chunk,
        )


@dataclass(slots=True)
class PagedAttention:
    """The record of one model's attention calls, and the step that runs now."""

    calls: list[AttentionCall] = field(default_factory=list)
    recorded_positions: Tensor | None = None
    next_call: int = 0
    metadata: Sequence[AttentionMetadata] = ()
    caches: Sequence[tuple[Tensor, ...]] = ()

    def attach(self, model: nn.Module) -> None:
        """Makes itself known to all modules of `model`, and the functions to transformers."""
        _register()
        for module in model.modules():
            module.__dict__[_OWNER] = self

    def positions(self) -> Tensor | None:
        """Positions of the tokens of the step that runs or is recorded, int64 [T]."""
        return self.metadata[0].positions if self.metadata else self.recorded_positions

    def begin(self, metadata: Sequence[AttentionMetadata], caches: Sequence[tuple[Tensor, ...]]) -> None:
        """Starts a step."""
        if not len(metadata) == len(caches) == len(self.calls):
            need = f"metadata and tensors for {len(self.calls)} caches"
            raise ValueError(f"the model needs {need}, not {len(metadata)} and {len(caches)}")
        self.next_call, self.metadata, self.caches = 0, metadata, caches

    def end(self) -> None:
        """Ends a step and lets go of its tensors."""
        self.metadata, self.caches = (), ()
        if self.next_call != len(self.calls):
            raise NotPageable(f"a step made {self.next_call} attention calls, not {len(self.calls)}")

    def take(self, module: nn.Module) -> int:
        """The number of the call that `module` makes now."""
        index = self.next_call
        if index >= len(self.calls) or self.calls[index].module is not module:
            raise NotPageable(f"attention call {index} of a step is made by another module than recorded")
        self.next_call = index + 1
        return index


def switch_implementation(model: nn.Module, name: str | None) -> None:
    """Sets the attention implementation of every config in `model`."""
    configs = {id(c): c for module in model.modules() if (c := getattr(module, "config", None)) is not None}
    for config in configs.values():
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


def _register() -> None:
    # To register again replaces each function by itself. No mask function for PAGED: transformers then makes
    # no mask, and does not look (with a wait for the device) for packed sequences in the positions.
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(RECORD, _record)
    AttentionInterface.register(PAGED, _paged)
    AttentionMaskInterface.register(RECORD, _record_mask)


def _record_mask(
    *,
    kv_length: int,
    mask_function: Any,
    q_length: int | None = None,
    local_size: int | None = None,
    **rest: Any,
) -> Tensor:
    """Stands for `sdpa_mask` and the like while a model is recorded."""
    if isinstance(rest.get("attention_mask"), Tensor) and not bool(rest["attention_mask"].all()):
        raise NotPageable("it masks tokens by their ids")
    queries, device = q_length or kv_length, rest.get("device") or "cpu"
    pattern = pattern_of(mask_function, local_size, queries, device)
    if pattern is None:  # Some classes make masks that no layer uses; one that does is refused.
        return torch.zeros(1, 1, queries, kv_length, device=device)
    return pattern.tensor(queries, kv_length, device)


def _record(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    owner: PagedAttention = module.__dict__[_OWNER]
    _refuse_unknown(rest)
    if key_1KTD.shape[:3:2] != query_1HTD.shape[:3:2] or query_1HTD.shape[0] != 1:
        raise NotPageable("its keys are not those of the step's tokens")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    pattern = _pattern(attention_mask, causal, rest.get("sliding_window"))
    owner.calls.append(
        AttentionCall(
            module=module,
            num_kv_heads=key_1KTD.shape[1],
            head_size=key_1KTD.shape[3],
            value_size=value_1KTD.shape[3],
            pattern=pattern,
        )
    )
    # Only shapes matter here: the self check compares numbers.
    groups = query_1HTD.shape[1] // key_1KTD.shape[1]
    key_1HTD, value_1HTD = (x.repeat_interleave(groups, dim=1) for x in (key_1KTD, value_1KTD))
    out_1HTD = F.scaled_dot_product_attention(query_1HTD, key_1HTD, value_1HTD, is_causal=True, scale=scaling)
    return out_1HTD.transpose(1, 2).contiguous(), None


def _paged(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    _mask: Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_rest: Any,
) -> tuple[Tensor, None]:
    owner: PagedAttention = module.__dict__[_OWNER]
    index = owner.take(module)
    pattern, metadata = owner.calls[index].pattern, owner.metadata[index]
    key_cache, value_cache = owner.caches[index]
    query_THD, key_TKD, value_TKD = (_packed(x) for x in (query_1HTD, key_1KTD, value_1KTD))
    ops.write_kv(key_TKD, value_TKD, key_cache, value_cache, metadata.slot_mapping)
    # Rows of padding tokens stay zero, so that nothing strange flows on.
    out_THD = query_THD.new_zeros(*query_THD.shape[:2], value_TKD.shape[2])
    extra: dict[str, Any] = {}
    if pattern.chunk is not None:
        extra["chunk"] = pattern.chunk
    if s_aux is not None:
        extra["sinks"] = s_aux.float()
    ops.paged_attention(
        out_THD,
        query_THD,
        key_cache,
        value_cache,
        metadata,
        scale=scaling if scaling is not None else query_THD.shape[2] ** -0.5,
        sliding_window=pattern.window,
        soft_cap=softcap,
        **extra,
    )
    return out_THD[None], None


def _packed(x_1HTD: Tensor) -> Tensor:
    x_THD = x_1HTD[0].transpose(0, 1)
    return x_THD if x_THD.stride(2) == 1 else x_THD.contiguous()


def _pattern(mask: Tensor | None, causal: bool, window: int | None) -> MaskPattern:
    if mask is None:
        if not causal:
            raise NotPageable("a token sees the ones after it")
        return MaskPattern(window=window)
    pattern = pattern_in(mask)
    if pattern is None:
        raise NotPageable("it masks attention in a way of its own")
    return pattern


def _refuse_unknown(rest: dict[str, Any]) -> None:
    known = _HARMLESS | {"s_aux"}
    for name, value in rest.items():
        if isinstance(value, Tensor) and name not in known:
            raise NotPageable(f"its attention takes {name!r}, which is unknown here")
