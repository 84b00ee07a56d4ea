"""How the token budget of a step is shared among running rows; knows nothing of requests or blocks."""

from __future__ import annotations

import numpy as np

from llm_scheduler.plan import Int64


def share_budget(wanted: Int64, budget: int, most_per_row: int, num_drafts: Int64 | None = None) -> Int64:
    """Share a step's tokens.

    Rows that want one token, drafts not counted, come first, so that a long chunk never makes a decode wait;
    then the others. Within both, earlier rows are served before later ones.

    Args:
        wanted: int64[R], tokens each row could take, in order of service.
        budget: Tokens to share.
        most_per_row: Cap of a row.
        num_drafts: int64[R], how many of the wanted tokens are drafts, or None for none.

    Returns:
        int64[R], tokens each row gets, 0 where the budget ran out.
    """
    capped = np.minimum(wanted, most_per_row)
    if capped.sum() <= budget:
        return capped
    order = np.argsort((capped if num_drafts is None else capped - num_drafts) > 1, kind="stable")
    in_order = capped[order]
    before = np.cumsum(in_order) - in_order
    granted = np.empty_like(capped)
    granted[order] = np.clip(budget - before, 0, in_order)
    return granted
