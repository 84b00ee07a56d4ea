"""Who is short of blocks by its tenant's quota rather than the pool; knows nothing of steps or order."""

from __future__ import annotations

from dataclasses import dataclass

from llm_kvcache import KVCache

from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.request import RequestState
from llm_scheduler.slots import LIVE, SlotTable


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A request that its tenant's quota kept out, and what there was then."""

    state: RequestState
    room: int
    num_running: int


class Quotas:
    """Tells shortage by quota from shortage of the pool, so that a tenant at its quota harms nobody else.

    Args:
        cache: Keeps the quotas; see ``KVCache.set_quota``.
        table: The slots.
        running: The running requests by rank.
    """

    def __init__(self, cache: KVCache, table: SlotTable, running: OrderedRequests) -> None:
        self._cache = cache
        self._table = table
        self._running = running
        self._refusals: dict[str, _Refusal] = {}

    def is_short(self, state: RequestState, num_reserved: int, num_tokens: int) -> bool:
        """Tell whether the quota alone forbids to reserve so many tokens where so many are reserved."""
        needed = self._num_blocks(num_tokens) - self._num_blocks(num_reserved)
        return max(needed, 1) > self._cache.quota_room(state.request.tenant)

    def would_thrash(self, state: RequestState) -> bool:
        """Tell whether a preempted request would lose its blocks to the next growth of its own tenant."""
        tenant = state.request.tenant
        return state.was_preempted and self._cache.quota_room(tenant) < self._num_running(tenant)

    # Waiting requests

    def refuse(self, state: RequestState) -> None:
        """Take note that the quota keeps a waiting request out."""
        tenant = state.request.tenant
        self._refusals[tenant] = _Refusal(state, self._cache.quota_room(tenant), self._num_running(tenant))

    def forget(self, state: RequestState) -> None:
        """Forget a request that ended or moved in."""
        refusal = self._refusals.get(state.request.tenant)
        if refusal is not None and refusal.state is state:
            del self._refusals[state.request.tenant]

    def refuses(self, state: RequestState) -> bool:
        """Tell whether the request was refused and nothing has come back to its tenant since."""
        tenant = state.request.tenant
        refusal = self._refusals.get(tenant)
        if refusal is None or refusal.state is not state:
            return False
        return (
            self._cache.quota_room(tenant) <= refusal.room
            and self._num_running(tenant) >= refusal.num_running
        )

    def keeps_out(self, state: RequestState) -> bool:
        """Tell whether the quota keeps a waiting request out now, as far as is known without trying."""
        return self.refuses(state) or self.is_short(state, 0, state.num_known_tokens)

    def refused(self) -> list[RequestState]:
        """Return the waiting requests that were refused, at most one of each tenant."""
        return [refusal.state for refusal in self._refusals.values() if self.refuses(refusal.state)]

    # Who gives way

    def last_of(self, tenant: str) -> RequestState | None:
        """Return the last running request of a tenant."""
        return next((state for state in reversed(self._running) if state.request.tenant == tenant), None)

    def victim_for(self, state: RequestState) -> RequestState | None:
        """Return who of its tenant makes room for a waiting request; None where that does not help."""
        tenant = state.request.tenant
        room = self._cache.quota_room(tenant)
        victims = [
            other for other in self._running if other.request.tenant == tenant and other.yields_to(state)
        ]
        room += sum(self._num_blocks(int(self._table.reserved[victim.slot])) for victim in victims)
        if not victims or room < self._num_blocks(state.num_known_tokens) or self.has_ended(tenant):
            return None
        return victims[-1]

    def has_ended(self, tenant: str) -> bool:
        """Tell whether a request of the tenant ended and still holds blocks: they come back by themselves."""
        return bool(self._table.num_ended) and any(
            state.request.tenant == tenant and self._table.ended[state.slot] != LIVE
            for state in self._table.occupants()
        )

    def _num_running(self, tenant: str) -> int:
        return sum(state.request.tenant == tenant for state in self._running)

    def _num_blocks(self, num_tokens: int) -> int:
        return sum(-(-num_tokens // group.block_size) for group in self._cache.groups)
