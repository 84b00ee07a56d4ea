"""Owns the public cache class: argument checks around the native object, which holds all state and its lock.

A sequence has three lengths. *Known* tokens have an id (`open`, `append`). *Reserved* tokens have room in the
block table (`match`, `grow`). *Computed* tokens have their keys and values written (`match`, `commit`). A
prompt not yet scheduled has more known than reserved tokens; a token in flight is reserved before it is
known.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_kvcache import _native
from llm_kvcache.arguments import IntArray, chain_keys, int32_array, int64_array, integer
from llm_kvcache.errors import InvalidArgument
from llm_kvcache.groups import FullAttention, Group
from llm_kvcache.results import Growth, Stats


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
        policy: str = "lru",
        enable_prefix_caching: bool = True,
    ) -> None:
        """Makes a cache whose blocks are all free.

        Args:
            groups: The KV groups of the model; one `FullAttention` for now.
            num_blocks: Blocks of the pool, 1 to 2**31 - 1.
            policy: Which cached block is evicted first; only "lru" for now.
            enable_prefix_caching: Whether full blocks are kept to be found again by their tokens.

        Raises:
            InvalidArgument: Another set of groups, another policy, or a bad size.
        """
        if not isinstance(groups, Sequence) or len(groups) != 1 or type(groups[0]) is not FullAttention:
            raise InvalidArgument("groups", groups, "must be one FullAttention group")
        if policy != "lru":
            raise InvalidArgument("policy", policy, "must be 'lru'")
        self._groups = tuple(groups)
        self._num_blocks = integer("num_blocks", num_blocks)
        self._native = _native.Cache(groups[0].block_size, self._num_blocks, bool(enable_prefix_caching))

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
    ) -> int:
        """Opens a sequence with these known tokens and nothing reserved; hashes its full blocks once.

        Args:
            token_ids: int32 `[n]`, not negative; may be empty.
            salt: Sequences of different salts never share blocks.
            lora: Content version of the adapter; sequences of different adapters never share blocks.
            media: (position of the first placeholder token, digest of the contents) of each image or sound.

        Returns:
            The id of the sequence. Ids are not used twice.
        """
        keys = chain_keys(salt, lora, media)
        return self._native.open(int32_array("token_ids", token_ids), keys)

    def match(self, seq: int, *, max_tokens: int | None = None) -> int:
        """Attaches the cached full blocks that hold the sequence's first tokens.

        They are then reserved and computed. The last known token is never among them: its logits must be
        computed. All known tokens count as queries of `stats` at each call.

        Args:
            seq: A sequence with nothing reserved.
            max_tokens: The most tokens to attach; rounded down to full blocks.

        Returns:
            Number of tokens attached, a multiple of the block size.
        """
        limit = None if max_tokens is None else integer("max_tokens", max_tokens)
        return self._native.match(integer("seq", seq), limit)

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
        return Growth(ok, new_blocks, offsets, replaced.reshape(-1, 3))

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
        """States that the first `num_computed` tokens are written in the cache; publishes their full blocks.

        Call it only after the step that wrote them has run. A number below an earlier one changes nothing.
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

    def truncate(self, seq: int, n: int) -> None:
        """Keeps the first `n` tokens: known, reserved and computed are lowered to `n`; blocks beyond go back.

        A published block is never overwritten while it can be found: growing into a partial one copies it
        where others hold it, and takes it out of the prefix index where nobody does.
        """
        self._native.truncate(integer("seq", seq), integer("n", n))

    def shrink(self, seq: int, n: int) -> None:
        """Gives back the room beyond the first `n` tokens, but keeps them known: the reverse of `grow`.

        `shrink(seq, 0)` preempts a sequence: it can be matched and grown again, without hashing anew.
        """
        self._native.shrink(integer("seq", seq), integer("n", n))

    def fork(self, seq: int) -> int:
        """Opens a copy of a sequence that shares its blocks.

        The copy has `min(reserved, known)` tokens reserved: room for tokens in flight stays with the
        original. A partial last block is shared until one of the two grows into it. That one gets a block of
        its own: its block table entry changes (`Growth.replaced`, `block_table`) and a copy of the contents
        is due (`take_copies`).

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
        """Returns the sequence's blocks in order, as a read-only int32 `[n]` that stays as it is."""
        if integer("group", group) != 0:
            raise InvalidArgument("group", group, "must be 0: the cache has one group")
        table = self._native.block_table(integer("seq", seq))
        table.flags.writeable = False
        return table

    def take_copies(self) -> NDArray[np.int32]:
        """Hands over the block copies due, as int32 `[m, 2]` of (source, destination).

        Apply them one after the other, in order, before the next step writes anything.
        """
        return self._native.take_copies().reshape(-1, 2)

    def num_tokens(self, seq: int) -> int:
        """Number of known tokens."""
        return self._native.num_tokens(integer("seq", seq))

    def capacity(self, seq: int) -> int:
        """Number of tokens that the sequence's blocks can hold."""
        return self._native.capacity(integer("seq", seq))

    def num_reserved(self, seq: int) -> int:
        """Number of tokens granted: matched and grown."""
        return self._native.num_reserved(integer("seq", seq))

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached contents, as after a change of weights.

        Returns:
            False, with nothing changed, while a block is in use.
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
