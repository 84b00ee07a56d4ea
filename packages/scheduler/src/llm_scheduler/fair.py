"""The policy that shares tokens among tenants by weight; knows nothing of how tokens are scheduled."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from llm_scheduler.policy import Policy
from llm_scheduler.request import OrderKey, Request

if TYPE_CHECKING:
    from llm_scheduler.config import SchedulerConfig


@dataclass(slots=True)
class _Account:
    """What a tenant has had: ``used`` is tokens over weight; ``live`` its requests that have not ended."""

    used: float
    live: int = 0


class FairShare(Policy):
    """Weighted fair queueing over tenants: who has had the fewest tokens per weight is served next.

    Each tenant is a lane, by arrival within. A tenant's account grows by its scheduled tokens (prompt and
    output alike; cached prompt tokens cost nothing) over its weight. A tenant that was idle starts at the
    account of the least served active tenant, so that idle time earns nothing; one that left with a higher
    account keeps it.

    Between two tenants that both always have requests waiting, accounts differ by no more than the tokens
    that their requests in the slots can still use, over weight: slots are not taken away for fairness.

    Args:
        weights: By tenant, more than 0; a tenant that is not named has weight 1.
    """

    ages: ClassVar[bool] = False
    _MOST_IDLE_ACCOUNTS = 1024

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._accounts: dict[str, _Account] = {}
        self._active: dict[str, _Account] = {}
        self._floor = 0.0
        self._changed: set[Hashable] = set()

    @classmethod
    def from_config(cls, config: SchedulerConfig) -> FairShare:
        """Make it with ``config.tenant_weights``."""
        return cls(config.tenant_weights)

    def key(self, request: Request) -> OrderKey:
        """Return ``(arrival_s,)``."""
        return (request.arrival_s,)

    def lane(self, request: Request) -> Hashable:
        """Return the tenant."""
        return request.tenant

    def lane_key(self, lane: Hashable) -> float:
        """Return the tenant's tokens per weight."""
        return self._accounts[str(lane)].used

    def changed_lanes(self) -> Collection[Hashable]:
        """Name the tenants charged since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def joined(self, request: Request) -> None:
        """Open the tenant's account, or lift one that was idle to the least active one."""
        tenant = request.tenant
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(0.0)
        if account.live == 0:
            account.used = max(account.used, self._least_active())
            self._active[tenant] = account
        account.live += 1

    def left(self, request: Request) -> None:
        """Count the request out; the last one leaves the account idle."""
        account = self._accounts[request.tenant]
        account.live -= 1
        if account.live == 0:
            del self._active[request.tenant]
            if not self._active:
                self._floor = max(self._floor, account.used)
            if len(self._accounts) - len(self._active) > self._MOST_IDLE_ACCOUNTS:
                self._forget_settled_accounts()

    def charge(self, lane: Hashable, num_tokens: int) -> None:
        """Add tokens over weight to the tenant's account."""
        tenant = str(lane)
        account = self._accounts.get(tenant)
        if account is not None:
            account.used += num_tokens / self._weights.get(tenant, 1.0)
            self._changed.add(tenant)

    def _least_active(self) -> float:
        """Return the account that an idle tenant starts from; it never goes back."""
        if self._active:
            self._floor = max(self._floor, min(account.used for account in self._active.values()))
        return self._floor

    def _forget_settled_accounts(self) -> None:
        """Drop idle accounts that a return would lift anyway, then the lowest: memory stays bounded."""
        floor = self._least_active()
        idle = [(account.used, tenant) for tenant, account in self._accounts.items() if not account.live]
        idle.sort()
        for used, tenant in idle:
            num_idle = len(self._accounts) - len(self._active)
            if used > floor and num_idle <= self._MOST_IDLE_ACCOUNTS // 2:
                break
            del self._accounts[tenant]
