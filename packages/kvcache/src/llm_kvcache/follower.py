"""Owns the follower: what one cache holds, rebuilt from its event batches. Knows no log and no transport."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_kvcache.errors import EventGap
from llm_kvcache.event_values import Cleared, Event, EventBatch, Moved, Removed, Stored


@dataclass(slots=True)
class Follower:
    """What one cache holds, rebuilt from its event batches: the reference for routers in other languages.

    Plain Python sets: O(1) for each key of an event. Not for threads to share.

    Attributes:
        epoch: The life of the cache that is followed; None before the first batch.
        next_seq: Number of the event that is wanted next: ask the cache for events since it.
    """

    epoch: int | None = None
    next_seq: int = 0
    _held: dict[tuple[str, int], set[bytes]] = field(default_factory=dict, repr=False)

    def apply(self, batch: EventBatch) -> int:
        """Takes a batch in. What was applied before is passed over, so replays may overlap and come late.

        A snapshot replaces everything. So does the first event of a later epoch.

        Returns:
            Number of events applied.

        Raises:
            EventGap: Events are missing before the batch. Nothing was changed: apply a snapshot next.
        """
        if self.epoch is not None and batch.epoch < self.epoch:
            return 0
        is_new = batch.epoch != self.epoch
        wanted = 0 if is_new else self.next_seq
        if batch.is_snapshot:
            if not is_new and batch.seq < wanted:
                return 0
            events = batch.events
        elif batch.seq > wanted:
            raise EventGap(wanted, batch.seq, batch.next_seq)
        else:
            events = batch.events[wanted - batch.seq :]
        if is_new or batch.is_snapshot:
            self._held.clear()
        for event in events:
            self._apply(event)
        self.epoch, self.next_seq = batch.epoch, max(wanted, batch.next_seq)
        return len(events)

    def _set(self, tier: str, group: int) -> set[bytes]:
        return self._held.setdefault((tier, group), set())

    def _apply(self, event: Event) -> None:
        match event:
            case Stored():
                self._set(event.tier, event.group).update(event.keys)
            case Removed():
                self._set(event.tier, event.group).difference_update(event.keys)
            case Moved():
                self._set(event.to, event.group).update(event.keys)
                if not event.is_copy:
                    self._set(event.source, event.group).difference_update(event.keys)
            case Cleared():
                for (tier, _), keys in self._held.items():
                    if event.tier in (None, tier):
                        keys.clear()

    def keys(self, tier: str, *, group: int = 0) -> frozenset[bytes]:
        """Returns the blocks that a tier holds."""
        return frozenset(self._held.get((tier, group), ()))

    def tiers_of(self, key: bytes, *, group: int = 0) -> frozenset[str]:
        """Returns the tiers that hold a block."""
        held = self._held.items()
        return frozenset(tier for (tier, of), keys in held if of == group and key in keys)

    def prefix(self, keys: Sequence[bytes], *, group: int = 0) -> int:
        """Returns how many leading blocks of a chain are held in some tier: what a router ranks caches by."""
        sets = [held for (_, of), held in self._held.items() if of == group]
        count = 0
        for key in keys:
            if not any(key in held for held in sets):
                break
            count += 1
        return count
