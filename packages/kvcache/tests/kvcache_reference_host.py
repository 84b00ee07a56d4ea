"""Owns the model's host tier: what it holds, what is on its way, and what it gives up for new contents."""

from dataclasses import dataclass, field

from llm_kvcache import COPY, LOAD, STORE


@dataclass(eq=False)
class HostSlot:
    """A place in the host's memory. Its number is learnt when the cache first names it."""

    number: int | None = None
    transfers: int = 0  # in flight, that read or write it


@dataclass(eq=False)
class HostEntry:
    slot: HostSlot
    is_there: bool = False


@dataclass
class Moves:
    """Transfers that are due: (kind, source, destination), places of the host as entries."""

    due: list = field(default_factory=list)

    def copy(self, source, destination):
        self.due.append((COPY, source, destination))


class ReferenceHost:
    def __init__(self, capacity, moves):
        self.capacity = capacity
        self.moves = moves
        self.entries = {}  # name -> entry
        self.idle = []  # names that nobody reads, least recently used first
        self.slots = []  # that hold something, or are held by a transfer
        self.flights = {}  # batch -> transfers

    def holds(self, name):
        return name in self.entries and self.entries[name].is_there

    def store(self, name, block):
        """An evicted block: sent there, unless it is there or on its way, or there is no room."""
        if name in self.entries:
            if name in self.idle:
                self.idle.remove(name)
                self.idle.append(name)
            return
        if len(self.slots) < self.capacity:
            self.slots.append(HostSlot())
            slot = self.slots[-1]
        elif self.idle:
            slot = self.entries.pop(self.idle.pop(0)).slot
        else:
            return
        slot.transfers = 1
        self.entries[name] = HostEntry(slot)
        self.moves.due.append((STORE, block, (name, self.entries[name])))

    def hold(self, name):
        self.entries[name].slot.transfers += 1
        if name in self.idle:
            self.idle.remove(name)

    def load(self, name, block):
        """Contents that are held for this."""
        self.moves.due.append((LOAD, (name, self.entries[name]), block))

    def bind(self, entry, number):
        """The cache named the place of an entry: always the same, and nobody else's."""
        if entry.slot.number is None:
            assert 0 <= number < self.capacity
            assert all(slot.number != number for slot in self.slots), f"host slot {number} is taken"
            entry.slot.number = number
        assert entry.slot.number == number, f"host slot {number} is not where the contents are"

    def take(self, batch, moves):
        self.flights[batch] = [move for move in moves if move[0] != COPY]

    def finish(self, batch, succeeded):
        for kind, source, destination in self.flights.pop(batch):
            name, entry = destination if kind == STORE else source
            entry.slot.transfers -= 1
            known = self.entries.get(name) is entry
            if kind == STORE and known:
                entry.is_there = succeeded
                if not succeeded:
                    del self.entries[name]
                    known = False
            if entry.slot.transfers == 0:
                if known:
                    self.idle.append(name)
                else:
                    self.slots.remove(entry.slot)

    def clear(self):
        for name in self.idle:
            self.slots.remove(self.entries[name].slot)
        self.idle.clear()
        self.entries.clear()
