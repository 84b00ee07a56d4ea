"""Chunk layout and the decayed linear scan, which Mamba 2 and linear attention share; knows no op."""

from __future__ import annotations

import torch

CHUNK = 64
"""Tokens of a chunk: within one, products of matrices replace the recurrence."""


def to_chunks(x_NX: torch.Tensor, chunk: int) -> torch.Tensor:
    """[N, ...] to [chunks, chunk, ...], zeros behind the last token."""
    length = x_NX.shape[0]
    missing = -length % chunk
    if missing:
        x_NX = torch.cat((x_NX, x_NX.new_zeros(missing, *x_NX.shape[1:])))
    return x_NX.view(-1, chunk, *x_NX.shape[1:])


def decays_between(total_CXL: torch.Tensor) -> torch.Tensor:
    """exp(total_i - total_j) for j <= i, else 0: [..., L] to [..., L, L].

    Args:
        total_CXL: Running sums of log decays, each at most 0, so that no exponent is above 0.
    """
    size = total_CXL.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total_CXL.device).triu_(1)
    gaps = total_CXL.unsqueeze(-1) - total_CXL.unsqueeze(-2)
    return gaps.masked_fill_(later, float("-inf")).exp_()


def decayed_scan(
    query_NGK: torch.Tensor,
    key_NGK: torch.Tensor,
    value_NHV: torch.Tensor,
    log_decay_NH: torch.Tensor,
    state_HKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S_t = exp(g_t) S_(t-1) + k_t v_t^T and o_t = q_t^T S_t over N tokens; all float32.

    Heads of a group share query and key: their products are made once, and their values lie side by side.

    Returns:
        Outputs [N, H, V] and the last state [H, K, V].
    """
    length, groups, key_size = query_NGK.shape
    heads, value_size = value_NHV.shape[1:]
    ratio = heads // groups
    chunk = min(CHUNK, length)
    query_CGLK, key_CGLK = (to_chunks(x, chunk).transpose(1, 2) for x in (query_NGK, key_NGK))
    chunks = query_CGLK.shape[0]
    value_CGRLV = to_chunks(value_NHV, chunk).view(chunks, chunk, groups, ratio, value_size)
    value_CGRLV = value_CGRLV.permute(0, 2, 3, 1, 4)
    total_CGRL = (
        to_chunks(log_decay_NH, chunk).cumsum(1).view(chunks, chunk, groups, ratio).permute(0, 2, 3, 1)
    )

    scores_CG1LL = (query_CGLK @ key_CGLK.transpose(2, 3)).unsqueeze(2)
    out_CGRLV = (scores_CG1LL * decays_between(total_CGRL)) @ value_CGRLV

    left_CGRL1 = (total_CGRL[..., -1:] - total_CGRL).exp_().unsqueeze(-1)
    fed_CGLU = (value_CGRLV * left_CGRL1).transpose(2, 3).reshape(chunks, groups, chunk, ratio * value_size)
    fed_CGKU = key_CGLK.transpose(2, 3) @ fed_CGLU
    kept_CGR = total_CGRL[..., -1].exp()

    state_GKRV = state_HKV.view(groups, ratio, key_size, value_size).transpose(1, 2).contiguous()
    before = []
    for kept_GR, fed_GKU in zip(kept_CGR.unbind(), fed_CGKU.unbind(), strict=True):
        before.append(state_GKRV)
        fed_GKRV = fed_GKU.view(groups, key_size, ratio, value_size)
        state_GKRV = fed_GKRV.addcmul_(state_GKRV, kept_GR[:, None, :, None])
    before_CGKU = torch.stack(before).flatten(3)
    read_CGLRV = (query_CGLK @ before_CGKU).view(chunks, groups, chunk, ratio, value_size)
    out_CGRLV += read_CGLRV.transpose(2, 3) * total_CGRL.exp().unsqueeze(-1)

    out_NHV = out_CGRLV.permute(0, 3, 1, 2, 4).reshape(-1, heads, value_size)[:length]
    return out_NHV, state_GKRV.transpose(1, 2).reshape(state_HKV.shape)
