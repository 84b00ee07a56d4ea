"""Owns the prompt beginnings that stay in the prefix cache for a time; knows nothing of steps or messages.

Of each beginning there is one pin. A longer one of the same prompt that lasts as long takes its place, so a
conversation that grows turn by turn is counted once against the quota.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from llm_kvcache import KVCache, Pin, PinQuotaExceeded, block_hashes

from llm_engine.cache_pins import CachePin

Int32: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]

_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Kept:
    pin: Pin
    tenant: str
    expires_s: float


class PrefixPins:
    """Pins beginnings of prompts whose KV is in the cache, within a quota.

    Args:
        cache: Whose blocks are kept.
        share: Share of the blocks that all pins together may hold, 0 to 1.
        tenant_share: The same of one tenant; the tenant "" is nobody in particular and has no such limit.
        now_s: The clock's time at the start.
    """

    def __init__(self, cache: KVCache, share: float, tenant_share: float, now_s: float) -> None:
        self._cache = cache
        self._alignment = int(np.lcm.reduce([group.block_size for group in cache.groups]))
        self._tenant_quota = int(cache.num_blocks * tenant_share)
        self._tenants: set[str] = set()
        self._kept: dict[bytes, _Kept] = {}
        self._ticked_s = now_s
        cache.set_pin_quota(int(cache.num_blocks * share))
        cache.set_time(now_s)

    def __len__(self) -> int:
        """Beginnings that are kept."""
        return len(self._kept)

    def keep(
        self,
        token_ids: Int32,
        wishes: Sequence[CachePin],
        *,
        salt: bytes | None,
        tenant: str,
        now_s: float,
    ) -> list[int]:
        """Pin beginnings of a prompt that was computed.

        Args:
            token_ids: int32[n], the prompt.
            wishes: What to keep.
            salt: The prompt's in the cache.
            tenant: Whose quota counts.
            now_s: The time.

        Returns:
            The tokens kept for each wish: whole blocks; 0 where the quota has no room, or nothing is cached.
        """
        self.tick(now_s, at_once=True)
        if tenant and tenant not in self._tenants:
            self._tenants.add(tenant)
            self._cache.set_pin_quota(self._tenant_quota, tenant=tenant)
        return [self._keep(token_ids, wish, salt, tenant, now_s) for wish in wishes]

    def tick(self, now_s: float, *, at_once: bool = False) -> None:
        """Tell the time about once a second: pins that ran out are lifted."""
        if not self._kept or not (at_once or now_s - self._ticked_s >= _TICK_S):
            return
        self._ticked_s = now_s
        self._cache.set_time(now_s)
        for key in [key for key, kept in self._kept.items() if kept.expires_s <= now_s]:
            del self._kept[key]
        self._forget_tenants()

    def lift_one(self) -> bool:
        """Lift the pin that runs out first; False when there is none."""
        if not self._kept:
            return False
        self._lift(min(self._kept, key=lambda key: self._kept[key].expires_s))
        return True

    def _keep(self, token_ids: Int32, wish: CachePin, salt: bytes | None, tenant: str, now_s: float) -> int:
        beginning = token_ids[: wish.num_tokens - wish.num_tokens % self._alignment]
        if not len(beginning):
            return 0
        chain = block_hashes(beginning, self._alignment, salt=salt)
        expires_s = now_s + wish.ttl_s
        lifted = self._lift_shorter(chain, tenant, expires_s)
        seq = self._cache.open(beginning, salt=salt, tenant=tenant)
        try:
            pin = self._pin(seq, len(beginning), wish.ttl_s)
            key = chain[max(pin.num_tokens // self._alignment, 1) - 1]
            if not pin.num_tokens:
                for lost, kept in lifted:  # the quota has no room for all of it: what was kept stays
                    again = self._pin(seq, kept.pin.num_tokens, kept.expires_s - now_s)
                    if again.num_tokens:
                        self._kept[lost] = _Kept(again, tenant, kept.expires_s)
            elif (same := self._kept.get(key)) is not None and same.expires_s >= expires_s:
                self._cache.unpin(pin.id)  # a longer time was asked for before
            else:
                if same is not None:
                    self._lift(key)
                self._kept[key] = _Kept(pin, tenant, expires_s)
            return pin.num_tokens
        finally:
            self._cache.release(seq)

    def _lift_shorter(
        self, chain: Sequence[bytes], tenant: str, expires_s: float
    ) -> list[tuple[bytes, _Kept]]:
        """Lift what a new pin takes the place of; the blocks stay in the cache until it is there."""
        lifted = []
        for key in chain:
            kept = self._kept.get(key)
            if kept is not None and kept.tenant == tenant and kept.expires_s <= expires_s:
                self._lift(key)
                lifted.append((key, kept))
        return lifted

    def _pin(self, seq: int, num_tokens: int, ttl_s: float) -> Pin:
        """A pin; of no tokens where nothing is cached or the quota has no room."""
        try:
            pin = self._cache.pin(seq, num_tokens, ttl_s=ttl_s)
        except PinQuotaExceeded:
            return Pin(-1, 0)
        if not pin.num_tokens:
            self._cache.unpin(pin.id)
        return pin

    def _lift(self, key: bytes) -> None:
        self._cache.unpin(self._kept.pop(key).pin.id)

    def _forget_tenants(self) -> None:
        """Keep no record of tenants that have no pin, so that names do not pile up."""
        for tenant in self._tenants - {kept.tenant for kept in self._kept.values()}:
            self._tenants.remove(tenant)
            self._cache.set_pin_quota(None, tenant=tenant)
