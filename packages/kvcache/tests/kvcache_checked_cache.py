"""Owns a cache bound to its reference model: each call goes to both, and their answers must agree."""

from collections import Counter

import numpy as np
import pytest
from kvcache_reference_model import ReferenceModel
from kvcache_reference_policies import NATIVE, MostRecentFirst
from llm_kvcache import InvalidArgument, KVCache, PinQuotaExceeded, Stats, UnknownPin, UnknownSequence

TENANTS = ("", "a", "b")


class CheckedCache:
    """`policy` is a native name, or "own" for a Python policy of which both get one."""

    def __init__(self, groups, num_blocks, policy="lru", **options):
        own = MostRecentFirst() if policy == "own" else policy
        naive = MostRecentFirst() if policy == "own" else NATIVE[policy]()
        self.policies = (own, naive) if policy == "own" else ()
        self.cache = KVCache(groups, num_blocks, policy=own, **_named(options))
        self.model = ReferenceModel(groups, num_blocks, naive, **options)
        self.changed = set()  # sequences that the transfers due are for, perhaps
        self.waiting = {}  # batch -> (whether it fails, sequences that it was for, perhaps)
        self.pins = []
        self.happened = Counter()

    @property
    def live(self):
        return list(self.model.sequences)

    def tables(self, seq):
        groups = range(len(self.model.layout.groups))
        tables = [self.cache.block_table(seq, group).tolist() for group in groups]
        return [[None if block < 0 else block for block in table] for table in tables]

    def verify(self):
        """The state of the cache is that of the model, and consistent in itself."""
        self.cache.check()
        assert self.cache.stats() == Stats(**self.model.stats())
        assert self.cache.eviction_order().tolist() == self.model.pool.policy.order()
        assert all(self.cache.usage(tenant) == self.model.pool.charged(tenant) for tenant in TENANTS)
        for seq, sequence in self.model.sequences.items():
            assert self.tables(seq) == sequence.tables
            lengths = (self.cache.num_tokens(seq), self.cache.num_reserved(seq), self.cache.num_computed(seq))
            assert lengths == (len(sequence.tokens), sequence.reserved, sequence.computed)
            rooms = [len(sequence.tables[g.number]) * g.size for g in self.model.layout.token_groups]
            assert self.cache.capacity(seq) == min(rooms)
        self.compare_what_policies_heard()

    def compare_what_policies_heard(self, in_order=True):
        heard = [policy.heard if in_order else sorted(policy.heard, key=repr) for policy in self.policies]
        assert not heard or heard[0] == heard[1]
        for policy in self.policies:
            policy.heard.clear()

    # Sequences

    def open(self, tokens, salt=None, lora=None, media=(), tenant="", encoder_tokens=0):
        keys = {"salt": salt, "lora": lora, "media": media}
        seq = self.cache.open(tokens, **keys, tenant=tenant, encoder_tokens=encoder_tokens)
        self.model.open(seq, tokens, salt, lora, media, tenant, encoder_tokens)
        return seq

    def match(self, seq, max_tokens=None):
        if self.model.sequences[seq].reserved:
            with pytest.raises(InvalidArgument):
                self.cache.match(seq, max_tokens=max_tokens)
            return 0
        hit = self.cache.match(seq, max_tokens=max_tokens)
        assert hit == self.model.match(seq, max_tokens, self.tables(seq))
        self.changed.add(seq)
        return hit

    def grow(self, seq, n):
        ok = self.cache.grow(seq, n)
        assert ok == self.model.grow(seq, n, self.tables(seq))
        return ok

    def grow_many(self, seqs, ns):
        """Replays the rows one by one on block tables put together from what `Growth` says alone."""
        tables = {seq: [list(table) for table in self.model.sequences[seq].tables] for seq in seqs}
        growth = self.cache.grow_many(np.array(seqs, np.int64), np.array(ns, np.int32))
        for row, (seq, n) in enumerate(zip(seqs, ns, strict=True)):
            for at, group, position, block in growth.replaced.tolist():
                if at == row:
                    tables[seq][group][position] = block
            news = []
            for group, table in enumerate(tables[seq]):
                blocks, offsets = growth.group(group)
                news += blocks[offsets[row] : offsets[row + 1]].tolist()
                table.extend(blocks[offsets[row] : offsets[row + 1]].tolist())
            assert growth.ok[row] == self.model.grow(seq, n, tables[seq])
            assert growth.ok[row] or not news
        return growth

    def append(self, seq, tokens):
        self.append_many([seq], [tokens])

    def append_many(self, seqs, rows):
        """What a step sampled becomes known first."""
        rows = [list(row) for row in rows]
        for seq, row in zip(seqs, rows, strict=True):
            ahead = self.model.sequences[seq].ahead
            row[: len(ahead)] = ahead[: max(1, len(row))]
            self.model.sequences[seq].append(row)
        offsets = np.cumsum([0, *map(len, rows)])
        self.cache.append_many(seqs, [token for row in rows for token in row], offsets)

    def truncate(self, seq, n):
        assert self.cache.truncate(seq, n) == self.model.truncate(seq, n)

    def shrink(self, seq, n):
        assert self.cache.shrink(seq, n) == self.model.shrink(seq, n)

    def fork(self, seq):
        child = self.cache.fork(seq)
        self.model.fork(seq, child)
        for seqs in (self.changed, *(seqs for _, seqs in self.waiting.values())):
            if seq in seqs:
                seqs.add(child)
        return child

    def release(self, seq):
        self.cache.release(seq)
        self.model.release(seq)
        with pytest.raises(UnknownSequence):
            self.cache.release(seq)

    def release_many(self, seqs):
        if seqs:
            with pytest.raises(InvalidArgument, match="seqs"):
                self.cache.release_many([*seqs, seqs[0]])
        self.cache.release_many(seqs)
        for seq in seqs:
            self.model.release(seq)

    def reset_prefix_cache(self):
        self.compare_what_policies_heard()
        assert self.cache.reset_prefix_cache() == self.model.reset_prefix_cache()
        self.compare_what_policies_heard(in_order=False)  # all blocks go, in any order

    # Steps

    def step(self, seqs, longest, *, sampled=(), host="works"):
        """Runs up to `longest` tokens of each sequence on the model's device and commits what it wrote.

        Args:
            sampled: Tokens that sequences may compute beyond those that the cache was told.
            host: "works", "works later" (the caller ends the batch) or "fails later".
        """
        transfers = self.cache.take_transfers()
        moves = [tuple(move) for move in transfers.moves.tolist()]
        self.happened.update(("copies", "stores", "loads")[kind] for kind, _, _ in moves)
        self.model.take_transfers(transfers.batch, moves, host == "fails later")
        if transfers.batch is not None:
            self.waiting[transfers.batch] = (host == "fails later", self.changed)
            if host == "works":
                self.finish(transfers.batch)
        self.changed = set()
        held_up = set().union(*(seqs for _, seqs in self.waiting.values()))
        ends = {seq: self.compute(seq, longest, sampled) for seq in seqs if seq not in held_up}
        self.cache.commit_many(list(ends), list(ends.values()))
        for seq, end in ends.items():
            self.model.commit(seq, end)
        self.check_memory()

    def compute(self, seq, longest, sampled):
        sequence = self.model.sequences[seq]
        end = min(sequence.reserved, sequence.computed + longest)
        more = max(0, end - len(sequence.tokens) - len(sequence.ahead))
        sequence.ahead += sampled[:more]
        end = max(min(end, len(sequence.tokens) + len(sequence.ahead)), sequence.computed)
        self.model.device.write(sequence, end)
        return end

    def check_memory(self):
        junk = set().union(*(seqs for fails, seqs in self.waiting.values() if fails))
        for seq, sequence in self.model.sequences.items():
            if seq not in junk:
                self.model.device.check(seq, sequence)

    def finish(self, batch, shrinks=False):
        """Ends a batch as it was to end; after a failure those that waited for it start anew or end."""
        fails, seqs = self.waiting.pop(batch)
        without = self.model.finish_transfers(batch, not fails)
        assert self.cache.finish_transfers(batch, not fails) == without
        assert set(without) <= seqs
        with pytest.raises(InvalidArgument, match="batch"):
            self.cache.finish_transfers(batch, not fails)
        for seq in without:
            if shrinks:
                self.shrink(seq, 0)
            else:
                self.release(seq)

    def overcommit(self, seq, num_computed):
        assert num_computed > self.model.sequences[seq].reserved
        with pytest.raises(InvalidArgument, match="num_computed"):
            self.cache.commit(seq, num_computed)

    # Limits and times

    def set_quota(self, tenant, blocks):
        self.cache.set_quota(tenant, blocks)
        self.model.pool.set_quota(tenant, blocks)

    def set_pin_quota(self, tenant, blocks):
        self.cache.set_pin_quota(blocks, tenant=tenant)
        if tenant is None:
            self.model.pins.quota = blocks
        else:
            self.model.pins.quotas[tenant] = blocks

    def set_retention(self, seq, priority, ttl_s):
        self.cache.set_retention(seq, priority=priority, ttl_s=ttl_s)
        self.model.sequences[seq].retention = (priority, ttl_s)

    def set_time(self, now_s):
        assert self.cache.set_time(now_s) == self.model.set_time(now_s)

    def pin(self, seq, num_tokens, ttl_s):
        length, drops, refusal = self.model.plan_pin(seq, num_tokens)
        if refusal is not None:
            with pytest.raises(PinQuotaExceeded) as caught:
                self.cache.pin(seq, num_tokens, ttl_s=ttl_s)
            assert (caught.value.wanted, caught.value.room) == refusal
            return
        pin = self.cache.pin(seq, num_tokens, ttl_s=ttl_s)
        assert pin.num_tokens == length
        self.model.pin(pin.id, seq, drops, ttl_s)
        self.pins.append(pin.id)

    def unpin(self, pin):
        if pin in self.model.pins.held:
            self.cache.unpin(pin)
            self.model.unpin(pin)
        with pytest.raises(UnknownPin, match=str(pin)):
            self.cache.unpin(pin)

    def close(self):
        """Ends everything: nothing is held any more."""
        for batch in list(self.waiting):
            self.finish(batch)
        self.release_many(self.live)
        for pin in list(self.model.pins.held):
            self.unpin(pin)
        self.verify()
        assert (self.cache.stats().used, self.cache.stats().pinned) == (0, 0)
        self.reset_prefix_cache()
        self.verify()


def _named(options):
    renamed = {"prefix_caching": "enable_prefix_caching"}
    return {renamed.get(name, name): value for name, value in options.items()}
