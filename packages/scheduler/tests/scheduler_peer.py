"""A connector for KV from elsewhere; it writes what the simulated worker would have, on command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llm_scheduler import Request, TokenBudgetScheduler
from scheduler_simulation import SimulatedWorker, extend_digest, first_digest


@dataclass(frozen=True)
class Load:
    request: Request
    blocks: list[int]
    start: int
    num_tokens: int


@dataclass
class SimulatedPeer:
    """Brings up to ``num_tokens`` first tokens of any prompt."""

    num_tokens: int
    block_size: int
    can_cancel: bool = False
    loads: dict[str, Load] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    scheduler: TokenBudgetScheduler | None = None
    worker: SimulatedWorker | None = None

    def connect(self, scheduler: TokenBudgetScheduler, worker: SimulatedWorker) -> None:
        self.scheduler, self.worker = scheduler, worker

    def find(self, request: Request, num_local_tokens: int) -> int:
        return max(0, self.num_tokens - num_local_tokens)

    def load(self, request: Request, block_tables: Any, num_local_tokens: int, num_tokens: int) -> None:
        assert request.request_id not in self.loads
        assert 0 < num_tokens < len(request.token_ids) + request.max_tokens
        blocks = block_tables[0].tolist()
        self.loads[request.request_id] = Load(request, blocks, num_local_tokens, num_tokens)

    def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        if self.can_cancel:
            del self.loads[request_id]
        return self.can_cancel

    def finish(self, request_id: str, num_tokens: int | None = None) -> bool:
        """Write the KV of a load and report it."""
        assert self.scheduler is not None
        assert self.worker is not None
        load = self.loads.pop(request_id)
        num_tokens = load.num_tokens if num_tokens is None else num_tokens
        tokens = np.asarray(load.request.token_ids).tolist()
        digest = first_digest(load.request.salt, load.request.lora)
        is_told = self.scheduler._table.is_told  # the worker learns of slots given back in the next plan
        views = self.worker.views.items()
        held = {block for slot, view in views if is_told[slot] for block in view.blocks}
        for position, token in enumerate(tokens[: load.start + num_tokens]):
            digest = extend_digest(digest, token)
            if position >= load.start:
                block = load.blocks[position // self.block_size]
                assert block not in held, "a block that a transfer writes was given away"
                self.worker._kv[block * self.block_size + position % self.block_size] = digest
        return self.scheduler.kv_arrived(request_id, num_tokens)
