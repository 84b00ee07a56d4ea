"""The gated delta rule in torch, float32 inside; the meaning of `gated_delta_rule`."""

from __future__ import annotations

from typing import TypeAlias

import torch

from llm_kernels.metadata import AttentionMetadata
from llm_kernels.reference.state_rows import Tokens, run_state_rows
from llm_kernels.reference.state_rows_chunked import CHUNK, decays_between, to_chunks
from llm_kernels.state_checks import check_delta_rule

# A decay a key dimension needs the decays between all pairs of tokens for each: short chunks, short runs.
_KEYWISE_CHUNK = 16
_MAX_SPAN = 256
_KEYWISE_MAX_SPAN = 32
_NORM_EPS = 1e-6

_Inputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def gated_delta_rule(
    out_THV: torch.Tensor,
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    decay: torch.Tensor,
    beta_TH: torch.Tensor,
    state_cache: torch.Tensor,
    metadata: AttentionMetadata,
    block_size: int,
    scale: float,
    l2_norm: bool,
) -> None:
    """Reference of `ops.gated_delta_rule`."""
    check_delta_rule(
        out_THV, query_TGK, key_TGK, value_THV, decay, beta_TH, state_cache, metadata, block_size
    )
    ratio = value_THV.shape[1] // key_TGK.shape[1]
    keywise = decay.ndim == 3

    def inputs(tokens: Tokens) -> _Inputs:
        """Query, key [N, H, K], value [N, H, V], log decay [N, H, 1 or K], beta [N, H, 1]."""
        query, key = query_TGK[tokens].float(), key_TGK[tokens].float()
        if l2_norm:
            query, key = _unit(query), _unit(key)
        if ratio > 1:
            query, key = (x.repeat_interleave(ratio, dim=1) for x in (query, key))
        log_decay = decay[tokens].float()
        if not keywise:
            log_decay = log_decay.unsqueeze(2)
        return query * scale, key, value_THV[tokens].float(), log_decay, beta_TH[tokens].float().unsqueeze(2)

    def step(
        tokens: Tokens, state_RHKV: torch.Tensor, _fresh: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value, log_decay, beta = inputs(tokens)
        state_RHKV *= log_decay.exp().unsqueeze(3)
        state_NKV = state_RHKV.flatten(0, 1)
        query, key = (x.flatten(0, 1).unsqueeze(1) for x in (query, key))
        change = (value - (key @ state_NKV).view_as(value)) * beta
        state_NKV.addcmul_(key.transpose(1, 2), change.flatten(0, 1).unsqueeze(1))
        return (query @ state_NKV).view_as(value), state_RHKV

    def scan(tokens: slice, state_HKV: torch.Tensor, _fresh: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return delta_scan(*inputs(tokens), state_HKV)

    max_span = _KEYWISE_MAX_SPAN if keywise else _MAX_SPAN
    run_state_rows(out_THV, state_cache, metadata, block_size, step, scan, max_span)


def delta_scan(
    query_NHK: torch.Tensor,
    key_NHK: torch.Tensor,
    value_NHV: torch.Tensor,
    log_decay_NHX: torch.Tensor,
    beta_NH1: torch.Tensor,
    state_HKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule over N tokens, chunk by chunk; all float32.

    Within a chunk the changes of the tokens depend on each other by a triangular system; solved once for the
    values and once for what the state before the chunk takes from them, it leaves products of matrices.

    Returns:
        Outputs [N, H, V] and the last state [H, K, V].
    """
    length, value_size = query_NHK.shape[0], value_NHV.shape[2]
    chunk = min(CHUNK if log_decay_NHX.shape[2] == 1 else _KEYWISE_CHUNK, length)
    query, key, value, log_decay, beta = (
        to_chunks(x, chunk).transpose(1, 2) for x in (query_NHK, key_NHK, value_NHV, log_decay_NHX, beta_NH1)
    )
    total_CHLX = log_decay.cumsum(2)
    faded = total_CHLX.exp()
    query_key, key_key = _decayed_products(query, key, total_CHLX)
    wanted = torch.cat((value, key * faded), dim=3) * beta
    solved = torch.linalg.solve_triangular(key_key * beta, wanted, upper=False, unitriangular=True)
    change, taken = solved[..., :value_size], solved[..., value_size:]

    query = query * faded
    key_CHKL = (key * (total_CHLX[:, :, -1:] - total_CHLX).exp()).transpose(2, 3)
    kept_CHX1 = total_CHLX[:, :, -1].exp().unsqueeze(3)
    outs = []
    for at in range(query.shape[0]):
        change_HLV = torch.baddbmm(change[at], taken[at], state_HKV, alpha=-1)
        outs.append(torch.baddbmm(query_key[at] @ change_HLV, query[at], state_HKV))
        state_HKV = torch.baddbmm(state_HKV * kept_CHX1[at], key_CHKL[at], change_HLV)
    out_CLHV = torch.stack(outs).transpose(1, 2)
    return out_CLHV.reshape(-1, *value_NHV.shape[1:])[:length], state_HKV


def _decayed_products(
    query: torch.Tensor, key: torch.Tensor, total_CHLX: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products of query i and of key i with key j, decayed from j to i; 0 for j > i. Both [C, H, L, L]."""
    if total_CHLX.shape[3] == 1:
        decays = decays_between(total_CHLX.squeeze(3))
        return query @ key.transpose(2, 3) * decays, key @ key.transpose(2, 3) * decays
    decays_CHKLL = decays_between(total_CHLX.transpose(2, 3))
    right_CHLKL = (decays_CHKLL * key.transpose(2, 3).unsqueeze(3)).transpose(2, 3)
    both_CHL2K = torch.stack((query, key), dim=3)
    query_key, key_key = (both_CHL2K @ right_CHLKL).unbind(3)
    return query_key, key_key


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + _NORM_EPS)
