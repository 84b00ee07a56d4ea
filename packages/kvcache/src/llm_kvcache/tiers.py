"""Owns the public index of blocks over storage tiers; the native object holds all state.

Tiers are ordered, fastest first ("device", "host", "disk", "remote", or any names). Each has slots, and
each slot holds one block, named by its 16-byte hash (`block_hashes`). An entry is *arriving* while a
transfer writes it, then *resident*; transfers that read it keep its slot from being used again.

A connector does the copying: it calls `begin_store`, `begin_load`, `demote`, `promote` or `begin_move`,
copies what the transfers say, and tells how they ended with `complete` or `fail`. A slot is not used again
before every transfer that holds it was ended, even where its contents were lost meanwhile: those transfers
have failed, and still have to be ended.

Calls on many keys are all or nothing. Keys of a chain are best given in its order: the first of them is
then the last to be evicted. Cost with `T` tiers and `n` keys: O(T n) for every call but `contents` (linear
in slots used), `clear` and `lose_tier` (linear in slots used and transfers in flight), `lose` (linear in
transfers in flight where one holds the entry), and `check` (linear in everything). Memory: 32 bytes for
each slot used so far and 6 to 12 for each block that can be found.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from llm_kvcache import _native
from llm_kvcache.arguments import integer
from llm_kvcache.errors import InvalidArgument
from llm_kvcache.tier_values import Begun, Ended, Entry, Inserted, Outcome, Place, Tier, TierStats, Transfer

__all__ = [
    "Begun",
    "Ended",
    "Entry",
    "Inserted",
    "Outcome",
    "Place",
    "Tier",
    "TierIndex",
    "TierStats",
    "Transfer",
]

_RawPlace: TypeAlias = tuple[int, int]
_RawTransfer: TypeAlias = tuple[int, bytes, _RawPlace | None, _RawPlace | None]


def _key(key: bytes) -> bytes:
    if not isinstance(key, bytes) or len(key) != 16:
        raise InvalidArgument("key", key, "must be 16 bytes")
    return key


def _joined(keys: Sequence[bytes]) -> bytes:
    if isinstance(keys, bytes | str) or not isinstance(keys, Sequence):
        raise InvalidArgument("keys", keys, "must be a sequence of keys of 16 bytes each")
    return b"".join(map(_key, keys))


def _name(field: str, tier: str) -> str:
    if not isinstance(tier, str):
        raise InvalidArgument(field, tier, "must be the name of a tier")
    return tier


def _ids(ids: Iterable[int]) -> list[int]:
    numbers = [integer("ids", transfer) for transfer in ids]
    negative = next((number for number in numbers if number < 0), None)
    if negative is not None:
        raise InvalidArgument("ids", negative, "must not be negative")
    return numbers


class TierIndex:
    """Which blocks are in which tiers, and which transfers are under way.

    Threads may share an object: each call is atomic and runs without the GIL. Refused calls leave the state
    as it was. Every method raises `InvalidArgument` for an unknown tier or a key that is not 16 bytes.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        """Makes an empty index.

        Args:
            tiers: 1 to 16 of them, fastest first.

        Raises:
            InvalidArgument: Too many tiers, none, or two of one name.
        """
        if not isinstance(tiers, Sequence) or not all(isinstance(tier, Tier) for tier in tiers):
            raise InvalidArgument("tiers", tiers, "must be a sequence of Tier")
        self._tiers = tuple(tiers)
        self._native = _native.Tiers([(tier.name, tier.capacity) for tier in self._tiers])

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that the index was made with, fastest first."""
        return self._tiers

    def _place(self, place: _RawPlace) -> Place:
        return Place(self._tiers[place[0]].name, place[1])

    def _transfer(self, raw: _RawTransfer) -> Transfer:
        transfer, key, source, destination = raw
        return Transfer(
            transfer,
            key,
            None if source is None else self._place(source),
            None if destination is None else self._place(destination),
        )

    def _begun(self, raw: tuple[list[_RawTransfer], list[bytes]]) -> Begun:
        transfers, evicted = raw
        return Begun(tuple(map(self._transfer, transfers)), tuple(evicted))

    def _ended(self, raw: list[tuple[_RawTransfer, str]]) -> list[Ended]:
        return [Ended(self._transfer(transfer), cast("Outcome", outcome)) for transfer, outcome in raw]

    def insert(self, key: bytes, tier: str) -> Inserted:
        """Enters contents that are in the tier already, as the most recently used.

        The least recently used idle entry is evicted where no slot is free.

        Raises:
            InvalidArgument: The tier has the key, or it is on its way there.
            NoRoom: Every slot is pinned or held by transfers.
            TierLost: The tier was lost.
        """
        slot, evicted = self._native.insert(_key(key), _name("tier", tier))
        return Inserted(Place(tier, slot), evicted)

    def lookup(self, key: bytes) -> Place | None:
        """Returns the fastest place where the block is resident. It does not count as a use: `touch` does."""
        places = self._native.locate(_key(key))
        return self._place(places[0]) if places else None

    def locate(self, keys: Sequence[bytes]) -> list[Place]:
        """Walks a chain as long as each block is resident somewhere.

        Returns:
            The fastest place of each; as many as there are leading keys that are resident.
        """
        return [self._place(place) for place in self._native.locate(_joined(keys))]

    def entry(self, key: bytes, tier: str) -> Entry | None:
        """Returns what the tier has, or awaits, of a block."""
        found = self._native.entry(_key(key), _name("tier", tier))
        if found is None:
            return None
        slot, is_resident, readers, pins = found
        return Entry(Place(tier, slot), is_resident, readers, pins)

    def begin_store(self, keys: Sequence[bytes], to: str) -> Begun:
        """Begins to copy blocks from outside the index into a tier, all or none.

        Blocks that the tier has, or that are on their way, need no transfer: they are only touched, and are
        not evicted for the others.

        Raises:
            InvalidArgument: A key comes twice.
            NoRoom: The tier cannot hold them all.
            TierLost: The tier was lost.
        """
        return self._begun(self._native.begin_store(_joined(keys), _name("to", to)))

    def begin_load(self, keys: Sequence[bytes], *, source: str | None = None) -> list[Transfer]:
        """Begins to copy blocks out of the index, all or none.

        The slots can be read until the transfers end, whatever happens to the entries, short of their loss.

        Args:
            keys: The blocks; one that comes twice is copied twice.
            source: The tier to read; None for the fastest that has each block.

        Raises:
            NotResident: A block is not there.
        """
        tier = None if source is None else _name("source", source)
        return [self._transfer(raw) for raw in self._native.begin_load(_joined(keys), tier)]

    def begin_move(self, keys: Sequence[bytes], source: str, to: str, *, keep_source: bool = True) -> Begun:
        """Begins to copy blocks from one tier to another, all or none; blocks that `to` has are passed over.

        Args:
            keys: The blocks, each once.
            source: The tier to read. Until a transfer ends its block stays resident there.
            to: The tier to write.
            keep_source: Whether the source stays when the transfer has completed. A pin set meanwhile keeps
                it too.

        Raises:
            InvalidArgument: A key comes twice, `to` is `source`, or a block that is not to be kept is pinned.
            NotResident: A block is not in `source`.
            NoRoom: The tier cannot hold them all.
            TierLost: The tier was lost.
        """
        keys_and_tiers = (_joined(keys), _name("source", source), _name("to", to))
        return self._begun(self._native.begin_move(*keys_and_tiers, bool(keep_source)))

    def demote(self, keys: Sequence[bytes], to: str, *, keep_source: bool = False) -> Begun:
        """`begin_move` to a slower tier, each block from the fastest tier above `to` that has it."""
        return self._begun(self._native.demote(_joined(keys), _name("to", to), bool(keep_source)))

    def promote(self, keys: Sequence[bytes], to: str) -> Begun:
        """`begin_move` to a faster tier, each block from the fastest tier below `to`; sources stay."""
        return self._begun(self._native.promote(_joined(keys), _name("to", to)))

    def transfer(self, id: int) -> Transfer | None:  # noqa: A002 (the name of the field)
        """Returns a transfer in flight; None where it has ended or never began."""
        raw = self._native.transfer(_ids([id])[0])
        return None if raw is None else self._transfer(raw)

    def complete(self, ids: Iterable[int]) -> list[Ended]:
        """Ends transfers whose contents were copied, all or none.

        Returns:
            What came of each, in the order of the ids. They end last first, so that the first of a chain
            becomes the most recently used.

        Raises:
            UnknownTransfer: One is not in flight.
            InvalidArgument: One comes twice.
        """
        return self._ended(self._native.complete(_ids(ids)))

    def fail(self, ids: Iterable[int]) -> list[Ended]:
        """Ends transfers that copied nothing, all or none: destinations are free again, sources stay.

        Raises:
            UnknownTransfer: One is not in flight.
            InvalidArgument: One comes twice.
        """
        return self._ended(self._native.fail(_ids(ids)))

    def lose(self, key: bytes, tier: str) -> list[int]:
        """States that the contents of a block in a tier are bad.

        Returns:
            The transfers in flight that read or write them. They have failed, and still have to be ended.

        Raises:
            NotResident: The tier neither has nor awaits the block.
        """
        return self._native.lose(_key(key), _name("tier", tier))

    def lose_tier(self, tier: str) -> list[int]:
        """States that a tier went away with all that it held; it takes nothing in until restored.

        Returns:
            The transfers in flight into and out of it. They have failed, and still have to be ended: until
            then the slots that they hold in other tiers are not used again.
        """
        return self._native.lose_tier(_name("tier", tier))

    def restore_tier(self, tier: str) -> bool:
        """Opens a lost tier again, empty.

        Returns:
            Whether it was lost.
        """
        return self._native.restore_tier(_name("tier", tier))

    def clear(self) -> list[int]:
        """Voids the contents of every tier, pins included, as after a change of weights.

        Returns:
            The transfers in flight. They have failed, and still have to be ended.
        """
        return self._native.clear()

    def remove(self, keys: Sequence[bytes], *, tier: str | None = None) -> int:
        """Drops blocks, pins included; those that are not there are passed over.

        Transfers that read them may complete, those that would bring them in will fail.

        Args:
            keys: The blocks.
            tier: Where to drop them; None for everywhere.

        Returns:
            Number of entries dropped.
        """
        return self._native.remove(_joined(keys), None if tier is None else _name("tier", tier))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Counts as a use of these blocks wherever they are idle; the first is then the last to go."""
        self._native.touch(_joined(keys))

    def pin(self, keys: Sequence[bytes], tier: str) -> None:
        """Keeps resident blocks from eviction until `unpin` was called as often, all or none.

        Raises:
            NotResident: One is not there.
            InvalidArgument: One comes twice, or has 65,535 pins.
        """
        self._native.pin(_joined(keys), _name("tier", tier))

    def unpin(self, keys: Sequence[bytes], tier: str) -> None:
        """Takes a pin from each of these blocks, all or none.

        Raises:
            NotResident: One is not there.
            InvalidArgument: One comes twice, or has no pin.
        """
        self._native.unpin(_joined(keys), _name("tier", tier))

    def victims(self, tier: str, n: int) -> list[bytes]:
        """Returns the next `n` blocks that the tier would evict, next first, for moving them on before."""
        return self._native.victims(_name("tier", tier), _count("n", n))

    def contents(self, tier: str) -> list[tuple[bytes, int]]:
        """Returns every (block, slot) that is resident in the tier, by slot."""
        return self._native.contents(_name("tier", tier))

    def available(self, tier: str) -> int:
        """Returns how many blocks the tier can take in: free slots and idle entries; 0 where it is lost."""
        return self._native.available(_name("tier", tier))

    @property
    def num_in_flight(self) -> int:
        """Number of transfers in flight."""
        return self._native.num_in_flight()

    def stats(self) -> list[TierStats]:
        """Returns the counters of each tier, in constant time."""
        return [TierStats(*stats) for stats in self._native.stats()]

    def check(self) -> None:
        """Checks every invariant, in time linear in slots and transfers.

        Raises:
            InvariantError: The state contradicts itself.
        """
        self._native.check()


def _count(field: str, value: int) -> int:
    number = integer(field, value)
    if number < 0:
        raise InvalidArgument(field, number, "must not be negative")
    return number
