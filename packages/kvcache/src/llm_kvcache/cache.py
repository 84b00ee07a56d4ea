"""Owns the public cache class: argument checks around the native object, which holds all state and its lock.

A sequence has three lengths. *Known* tokens have an id (`open`, `append`). *Reserved* tokens have room in the
block table (`match`, `grow`). *Computed* tokens have their keys and values written (`match`, `commit`). A
prompt not yet scheduled has more known than reserved tokens; a token in flight is reserved before it is
known.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_kvcache import _native
from llm_kvcache.arguments import IntArray, chain_keys, int32_array, int64_array, integer, seconds, text
from llm_kvcache.errors import InvalidArgument
from llm_kvcache.event_tuples import batch_from_native, uint
from llm_kvcache.event_values import EventBatch
from llm_kvcache.groups import Group, native_group
from llm_kvcache.policies import EvictionPolicy, resolve_policy
from llm_kvcache.results import Growth, Pin, Stats, Transfers


class KVCache:
    """Block tables for sequences over one pool of blocks, with prefix caching.

    It hands out block ids and never touches keys or values. Threads may share an object: each call is atomic
    and runs without the GIL. Every method raises `UnknownSequence` for an id that is not open and
    `InvalidArgument` for a bad argument; the state is then as before.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        num_blocks: int,
        *,
        policy: str | EvictionPolicy = "lru",
        enable_prefix_caching: bool = True,
        partial_reuse: bool = False,
        host_blocks: int = 0,
        events_capacity: int = 0,
    ) -> None:
        """Makes a cache whose blocks are all free.

        Args:
            groups: The KV groups of the model, one at least that is not `CrossAttention`. Hits are multiples
                of the least common multiple of their block sizes.
            num_blocks: Blocks of the pool, 1 to 2**31 - 1. It serves all groups: a block of each has the same
                bytes.
            policy: Which cached block is evicted first: a name of `POLICIES`, an `EvictionPolicy`, the name
                of an entry point of `llm_stack.eviction_policies`, or `module:Class`.
            enable_prefix_caching: Whether full blocks are kept to be found again by their tokens.
            partial_reuse: Whether the first tokens of a cached block are found too, and copied. For one
                `FullAttention` or `MLALatent` group; costs the memory of the cached blocks' token ids.
            host_blocks: Blocks of a host tier, to which evicted contents go and from which `match` brings
                them back; 0 for none. The copying is the caller's (`take_transfers`).
            events_capacity: Blocks that the kept events may name together (`events`); 0 keeps none and costs
                nothing.

        Raises:
            InvalidArgument: An argument is outside what it may be, or contradicts another.
        """
        if not isinstance(groups, Sequence) or isinstance(groups, str):
            raise InvalidArgument("groups", groups, "must be a sequence of KV groups")
        self._groups = tuple(groups)
        self._num_blocks = integer("num_blocks", num_blocks)
        self._native = _native.Cache(
            [native_group(group) for group in self._groups],
            self._num_blocks,
            resolve_policy(policy, self._num_blocks),
            bool(enable_prefix_caching),
            bool(partial_reuse),
            integer("host_blocks", host_blocks),
        )
        if capacity := uint("events_capacity", events_capacity, 63):
            self._native.keep_events(capacity, time.time_ns())

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the pool."""
        return self._num_blocks

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups that the cache was made with."""
        return self._groups

    def open(
        self,
        token_ids: IntArray,
        *,
        salt: bytes | None = None,
        lora: str | None = None,
        media: Sequence[tuple[int, bytes]] = (),
        tenant: str = "",
        encoder_tokens: int = 0,
    ) -> int:
        """Opens a sequence with these known tokens and nothing reserved; hashes its full blocks once.

        Args:
            token_ids: int32 `[n]`, not negative; may be empty.
            salt: Sequences of different salts never share blocks.
            lora: Content version of the adapter; sequences of different adapters never share blocks.
            media: (position of the first placeholder token, digest of the contents) of each image or sound.
            tenant: Who is charged for its blocks (`set_quota`). Tenants share blocks unless their salts
                differ.
            encoder_tokens: Tokens that `CrossAttention` groups hold for it.

        Returns:
            The id of the sequence. Ids are not used twice.
        """
        keys = chain_keys(salt, lora, media)
        encoder_tokens = integer("encoder_tokens", encoder_tokens)
        tokens = int32_array("token_ids", token_ids)
        return self._native.open(tokens, keys, text("tenant", tenant), encoder_tokens)

    def match(self, seq: int, *, max_tokens: int | None = None) -> int:
        """Attaches the cached blocks that hold the sequence's first tokens.

        They are then reserved and computed. All groups agree on one length: a multiple of the least common
        multiple of their block sizes, at which each still has what the next token sees. The last known token
        is never among them: its logits must be computed. All known tokens count as queries of `stats` at each
        call.

        With `partial_reuse`, the first tokens of one more block are found and a copy is due. With a host
        tier, contents that went there come back where all known tokens have room, and loads are due
        (`take_transfers`).

        Args:
            seq: A sequence with nothing reserved.
            max_tokens: The most tokens to attach.

        Returns:
            Number of tokens attached.
        """
        limit = None if max_tokens is None else integer("max_tokens", max_tokens)
        return self._native.match(integer("seq", seq), limit)

    def lookup(self, seq: int) -> int:
        """Number of tokens that `match` would attach or load now, were there room; it changes nothing.

        Partial blocks are not looked for. The sequence may have tokens reserved.
        """
        return self._native.lookup(integer("seq", seq))

    def grow(self, seq: int, n: int) -> bool:
        """Makes room for `n` more tokens beyond those reserved.

        Returns:
            Whether it was granted; where the free and cached blocks do not suffice nothing changes.
        """
        return self._native.grow(integer("seq", seq), integer("n", n))

    def grow_many(self, seqs: IntArray, ns: IntArray) -> Growth:
        """Grows rows in their order, each all or nothing; one call for a whole step.

        Args:
            seqs: int64 `[R]`; an id may come more than once.
            ns: int32 `[R]`, tokens to make room for.
        """
        ok, new_blocks, offsets, replaced = self._native.grow_many(
            int64_array("seqs", seqs), int32_array("ns", ns)
        )
        return Growth(ok, new_blocks, offsets, replaced.reshape(-1, 4))

    def append(self, seq: int, token_ids: IntArray) -> None:
        """Adds tokens that are now known, such as sampled ones; hashes the blocks that become full.

        It reserves nothing: that is `grow`.
        """
        self._native.append(integer("seq", seq), int32_array("token_ids", token_ids))

    def append_many(self, seqs: IntArray, token_ids: IntArray, offsets: IntArray) -> None:
        """Appends to many sequences, all or none.

        Args:
            seqs: int64 `[R]`.
            token_ids: int32 `[M]`.
            offsets: int32 `[R + 1]`; row `i` gets `token_ids[offsets[i]:offsets[i + 1]]`.
        """
        self._native.append_many(
            int64_array("seqs", seqs), int32_array("token_ids", token_ids), int32_array("offsets", offsets)
        )

    def commit(self, seq: int, num_computed: int) -> None:
        """States that the first `num_computed` tokens are written in the cache.

        Their full blocks can be found from now on, and blocks that no later token sees are given back. Call
        it only after the step that wrote the tokens has run. A number below an earlier one does not
        lower it.
        Where the same contents are cached under another block, that block stays the one to be found.

        Args:
            seq: A sequence.
            num_computed: At most the reserved tokens.
        """
        self._native.commit(integer("seq", seq), integer("num_computed", num_computed))

    def commit_many(self, seqs: IntArray, num_computed: IntArray) -> None:
        """Commits many sequences, all or none.

        Args:
            seqs: int64 `[R]`.
            num_computed: int32 `[R]`.
        """
        self._native.commit_many(int64_array("seqs", seqs), int32_array("num_computed", num_computed))

    def truncate(self, seq: int, n: int) -> int:
        """Keeps the first `n` tokens: known, reserved and computed are lowered to `n`; blocks beyond go back.

        A published block is never overwritten while it can be found: growing into a partial one copies it
        where others hold it, and takes it out of the prefix index where nobody does.

        Returns:
            Tokens reserved now, see `shrink`.
        """
        return self._native.truncate(integer("seq", seq), integer("n", n))

    def shrink(self, seq: int, n: int) -> int:
        """Gives back the room beyond the first `n` tokens, but keeps them known: the reverse of `grow`.

        `shrink(seq, 0)` preempts a sequence: it can be matched and grown again, without hashing anew.

        Returns:
            Tokens reserved now: `n`, or fewer where fewer were, or 0 where a group no longer has what the
            token after `n` would see: a window that moved on, or a state that was not kept. Match and grow it
            then as after a preemption.
        """
        return self._native.shrink(integer("seq", seq), integer("n", n))

    def fork(self, seq: int) -> int:
        """Opens a copy of a sequence that shares its blocks.

        The copy has `min(reserved, known)` tokens reserved: room for tokens in flight stays with the
        original. A partial last block is shared until one of the two grows into it. That one gets a block of
        its own: its block table entry changes (`Growth.replaced`, `block_table`) and a copy of the contents
        is due (`take_transfers`).

        Returns:
            The id of the copy.
        """
        return self._native.fork(integer("seq", seq))

    def release(self, seq: int) -> None:
        """Closes a sequence. Published blocks stay cached, and the deepest of them is evicted first."""
        self._native.release(integer("seq", seq))

    def release_many(self, seqs: IntArray) -> None:
        """Closes many sequences, all or none.

        Args:
            seqs: int64 `[R]`, no id twice.
        """
        self._native.release_many(int64_array("seqs", seqs))

    def block_table(self, seq: int, group: int = 0) -> NDArray[np.int32]:
        """Returns the sequence's blocks in a group, in order, as a read-only int32 `[n]` that stays as it is.

        Entries that no later token sees are -1.
        """
        table = self._native.block_table(integer("seq", seq), integer("group", group))
        table.flags.writeable = False
        return table

    def take_transfers(self) -> Transfers:
        """Hands over the copies due before the next step writes anything; carry them out in order."""
        batch, moves = self._native.take_transfers()
        return Transfers(None if batch < 0 else batch, moves.reshape(-1, 3))

    def finish_transfers(self, batch: int, succeeded: bool = True) -> list[int]:
        """Tells how a batch of `take_transfers` ended; what it stored can be found only then.

        After a failure the host forgets what was on its way.

        Returns:
            Open sequences that hold blocks which were not loaded, empty after a success: release them, or
            shrink them to 0, and do not commit them.
        """
        return self._native.finish_transfers(integer("batch", batch), bool(succeeded))

    def set_retention(self, seq: int, *, priority: int = 0, ttl_s: float | None = None) -> None:
        """States how the sequence's blocks are kept once nobody holds them, under policies that look at it.

        Args:
            seq: A sequence.
            priority: Blocks of lower priority are evicted first.
            ttl_s: Seconds after the last owner left until the priority runs out; None: never.
        """
        priority = integer("priority", priority)
        if not -(2**31) <= priority < 2**31:
            raise InvalidArgument("priority", priority, "does not fit into 32 bits")
        self._native.set_retention(integer("seq", seq), priority, seconds("ttl_s", ttl_s))

    def pin(self, seq: int, num_tokens: int | None = None, *, ttl_s: float | None = None) -> Pin:
        """Keeps what a hit on the sequence's first tokens needs from eviction, also after its release.

        Args:
            seq: A sequence.
            num_tokens: Leading tokens; None for all known. As many are pinned as can be found now, rounded
                down to the least common multiple of the block sizes.
            ttl_s: Seconds until the pin lifts itself, at the `set_time` that reaches it; None: never.

        Raises:
            PinQuotaExceeded: See `set_pin_quota`.
        """
        n = None if num_tokens is None else integer("num_tokens", num_tokens)
        return Pin(*self._native.pin(integer("seq", seq), n, seconds("ttl_s", ttl_s)))

    def unpin(self, pin: int) -> None:
        """Lifts a pin, named by `Pin.id`.

        Raises:
            UnknownPin: It was lifted, or ran out.
        """
        self._native.unpin(integer("pin", pin))

    def set_pin_quota(self, blocks: int | None, *, tenant: str | None = None) -> None:
        """Limits the references that pins hold: of one tenant, or of all together. None: no limit.

        Pins that are there stay.
        """
        of = None if tenant is None else text("tenant", tenant)
        self._native.set_pin_quota(of, None if blocks is None else integer("blocks", blocks))

    def set_quota(self, tenant: str, blocks: int | None) -> None:
        """Limits the blocks charged to a tenant, in use and cached together. None: no limit.

        A block is charged to the tenant whose sequence it was allocated for until it is free again; others
        may hit it for nothing. A tenant at its quota evicts its own cached blocks, those released first, and
        is refused growth beyond. Cached blocks above a lowered quota go at once.
        """
        self._native.set_quota(text("tenant", tenant), None if blocks is None else integer("blocks", blocks))

    def available(self, tenant: str = "") -> int:
        """Number of blocks that a tenant's sequences may be given now: without an owner, within its quota."""
        return self._native.available(text("tenant", tenant))

    def quota_room(self, tenant: str = "") -> int:
        """Number of blocks that a tenant's quota alone leaves it, whoever owns them now; without one, all."""
        return self._native.quota_room(text("tenant", tenant))

    def usage(self, tenant: str) -> int:
        """Number of blocks charged to a tenant, in use and cached; "" is sequences without one."""
        return self._native.usage(text("tenant", tenant))

    def set_time(self, now_s: float) -> int:
        """Tells the time on any clock that does not go back, for times to live. It starts at 0.

        Returns:
            Number of pins that ran out and were lifted.
        """
        now = seconds("now_s", now_s)
        return self._native.set_time(0.0 if now is None else now)

    def events(self, since: int = 0, *, limit: int | None = None) -> EventBatch:
        """Returns the first `limit` events from number `since` on: what can be found where, for routers.

        Events tell full blocks only; the first tokens of blocks that `partial_reuse` finds are not told.

        Raises:
            EventGap: They are not all kept: the follower must go on from `events_snapshot`.
            EventsDisabled: The cache was made without `events_capacity`.
        """
        most = None if limit is None else uint("limit", limit, 63)
        return batch_from_native(self._native.events_since(uint("since", since, 64), most))

    def events_snapshot(self) -> EventBatch:
        """Returns events that rebuild what can be found now, without parents and token ids, in linear time.

        Raises:
            EventsDisabled: The cache was made without `events_capacity`.
        """
        return batch_from_native(self._native.events_snapshot())

    def eviction_order(self) -> NDArray[np.int32]:
        """Returns int32 `[n]`, the cached blocks in the order of their eviction, in linear time."""
        return self._native.eviction_order()

    def num_computed(self, seq: int) -> int:
        """Number of tokens whose contents are written: matched and committed."""
        return self._native.num_computed(integer("seq", seq))

    def num_tokens(self, seq: int) -> int:
        """Number of known tokens."""
        return self._native.num_tokens(integer("seq", seq))

    def capacity(self, seq: int) -> int:
        """Number of tokens that the sequence's blocks can hold, in the group with the least room."""
        return self._native.capacity(integer("seq", seq))

    def num_reserved(self, seq: int) -> int:
        """Number of tokens granted: matched and grown."""
        return self._native.num_reserved(integer("seq", seq))

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached contents, the host tier's included, as after a change of weights.

        Returns:
            False, with nothing changed, while a block is in use or pinned.
        """
        return self._native.reset_prefix_cache()

    def stats(self) -> Stats:
        """Returns the counters now, in constant time."""
        return Stats(*self._native.stats())

    def check(self) -> None:
        """Checks every invariant, in time linear in blocks and tokens.

        Raises:
            InvariantError: The state contradicts itself.
        """
        self._native.check()
