"""Owns a plain-Python model of the cache: what each call must answer, without hashes, lists or speed.

Block ids are taken from the cache under test; `kvcache_reference_pool` says whether it may hand them out.
"""

from collections import deque

from kvcache_reference_device import Identities, ReferenceDevice
from kvcache_reference_groups import ReferenceLayout
from kvcache_reference_host import Moves, ReferenceHost
from kvcache_reference_pins import ModelPin, ReferencePins
from kvcache_reference_pool import ReferencePool
from kvcache_reference_sequence import Drop, ModelSequence
from llm_kvcache import COPY, STORE, BlockInfo

NOTHING_KNOWN = BlockInfo(0, None, 1.0, None)


class ReferenceModel:
    def __init__(self, groups, num_blocks, policy, prefix_caching=True, partial_reuse=False, host_blocks=0):
        self.layout = ReferenceLayout(groups)
        self.prefix_caching = prefix_caching
        self.partial_reuse = partial_reuse
        self.moves = Moves()
        self.host = ReferenceHost(host_blocks, self.moves) if host_blocks else None
        self.pool = ReferencePool(num_blocks, policy, self.host)
        self.device = ReferenceDevice(self.layout, num_blocks, host_blocks)
        self.identities = Identities()
        self.pins = ReferencePins()
        self.sequences = {}
        self.now_s = 0.0
        self.queries = self.hits = self.host_hits = 0

    def open(self, seq, tokens, salt, lora, media, tenant="", encoder_tokens=0):
        assert seq not in self.sequences
        self.sequences[seq] = ModelSequence(
            self.layout, self.identities, (salt, lora), tokens, media, tenant, encoder_tokens
        )

    # Hits

    def match(self, seq, max_tokens, tables):
        """The tokens of the hit; `tables` are the block tables that the cache has now."""
        sequence = self.sequences[seq]
        if not self.prefix_caching:
            return 0
        limit = max(len(sequence.tokens) - 1, 0)
        if max_tokens is not None:
            limit = min(limit, max_tokens)
        length, loaded = self._attach(sequence, limit, tables)
        partial = self._reuse_partial(sequence, length, limit, tables)
        self.queries += len(sequence.tokens)
        self.hits += length + partial
        self.host_hits += loaded
        return length + partial

    def device_hit(self, sequence, limit):
        return self.layout.longest_hit(limit, lambda *at: sequence.name(*at) in self.pool.index)

    def _choose(self, sequence, limit):
        """The length of the hit and, by group, the first block and the names of those to attach."""
        length = self.device_hit(sequence, limit)
        if self.host is not None:
            names = self._names_of_hit(sequence, limit, anywhere=True)
            if names[0] > length and self._has_room_for(sequence, names[1]):
                return names
        return length, self._hit_at(sequence, length)

    def _names_of_hit(self, sequence, limit, anywhere):
        def has(group, block):
            name = sequence.name(group, block)
            return name in self.pool.index or self.host.holds(name)

        length = self.layout.longest_hit(limit, has)
        return length, self._hit_at(sequence, length)

    def _hit_at(self, sequence, length):
        hit = {}
        for group in self.layout.token_groups:
            blocks = self.layout.blocks_of_hit(group, length)
            first = blocks[0] if blocks else length // group.size
            hit[group.number] = first, [sequence.name(group.number, block) for block in blocks]
        return hit

    def _has_room_for(self, sequence, hit):
        """Whether all known tokens will have blocks, those of the hit included."""
        needed = sum(sequence.entries(group, len(sequence.tokens)) for group in self.layout.groups)
        for first, names in hit.values():
            on_device = [self.pool.index[name] for name in names if name in self.pool.index]
            needed -= first + sum(not self.pool.is_cached(block) for block in on_device)
        return needed <= self.pool.num_available_to(sequence.tenant)

    def _attach(self, sequence, limit, tables):
        length, hit = self._choose(sequence, limit)
        found = {number: [self.pool.index.get(n) for n in names] for number, (_, names) in hit.items()}
        for blocks in found.values():
            for block in reversed(blocks):
                if block is not None:
                    self.pool.reuse(block)
        loads, most_loaded = [], 0
        for number, (first, names) in hit.items():
            table, size = tables[number], self.layout.groups[number].size
            on_device = next((i for i, block in enumerate(found[number]) if block is None), len(names))
            for i, name in enumerate(names):
                if found[number][i] is None:
                    loads.append((name, table[first + i]))
            attached = [table[first + i] if b is None else b for i, b in enumerate(found[number])]
            sequence.tables[number] = [None] * first + attached
            sequence.settled[number] = first + on_device
            most_loaded = max(most_loaded, (len(names) - on_device) * size)
        self._load(sequence, loads)
        sequence.reserved = sequence.computed = length
        sequence.awaits_load = self.moves.due[-1] if loads else None
        return length, most_loaded

    def _load(self, sequence, loads):
        for name, _ in loads:  # making room must not push it out
            self.host.hold(name)
        for _, block in loads:
            self.pool.adopt(block, sequence.tenant)
        for name, block in loads:
            self.host.load(name, block)

    def _reuse_partial(self, sequence, length, limit, tables):
        if not self.partial_reuse:
            return 0
        size = self.layout.alignment
        end = min([limit, length + size, *(offset for offset in sequence.media if offset >= length)])
        source, common = None, 0
        for block, (before, tokens) in self.pool.starts.items():
            if before != sequence.identity(length):
                continue
            same = 0
            while same < min(len(tokens), end - length) and tokens[same] == sequence.tokens[length + same]:
                same += 1
            if same and same >= common:  # the latest of equals
                source, common = block, same
        # The source is held while a block is taken for the copy: two must be at hand where nobody holds it.
        wanted = 1 + (source is not None and self.pool.is_cached(source))
        if source is None or self.pool.num_available_to(sequence.tenant) < wanted:
            return 0
        table = sequence.tables[0]
        drop = Drop(source, table[-1] if table else None, length + size, size)
        self.pool.reuse(source)
        self.pool.adopt(tables[0][-1], sequence.tenant)
        self.pool.drop(source, drop.info(sequence.retention, self.now_s))
        self.moves.copy(source, tables[0][-1])
        table.append(tables[0][-1])
        sequence.reserved = sequence.computed = length + common
        return common

    # Room

    def grow(self, seq, n, tables):
        """Whether `n` more tokens fit; `tables` are the block tables that the cache has now."""
        sequence = self.sequences[seq]
        reserved = sequence.reserved + n
        shared, added = {}, {}
        for group in self.layout.groups:
            table = sequence.tables[group.number]
            added[group.number] = max(0, sequence.entries(group, reserved) - len(table))
            partial = group.holds_tokens and n > 0 and sequence.reserved % group.size != 0
            shared[group.number] = partial and self.pool.references[table[-1]] > 1
            if partial and not shared[group.number] and table[-1] in self.pool.names:
                shared[group.number] = None
        wanted = sum(added.values()) + sum(bool(s) for s in shared.values())
        if reserved >= 2**31 or wanted > self.pool.num_available_to(sequence.tenant):
            return False
        before = [len(table) for table in sequence.tables]
        for number in [number for number, what in shared.items() if what is None]:
            self.pool.withdraw(sequence.tables[number][-1])  # a findable block of one's own is found no more
        for number, table in enumerate(tables):
            assert len(table) == before[number] + added[number]
            fresh = table[before[number] - 1 :] if shared[number] else table[before[number] :]
            for block in fresh:
                self.pool.adopt(block, sequence.tenant)
        for number, table in enumerate(tables):
            self._make_writable(sequence, number, table, shared[number])
            sequence.tables[number] += table[before[number] :]
        sequence.reserved = reserved
        return True

    def _make_writable(self, sequence, number, table, shared):
        """A shared partial block is replaced."""
        own = sequence.tables[number]
        if shared:
            source, destination = own[-1], table[len(own) - 1]
            self.pool.drop(source, NOTHING_KNOWN)
            self.moves.copy(source, destination)
            own[-1] = destination

    def shrink(self, seq, n):
        sequence = self.sequences[seq]
        if n == 0:
            self._publish_tail(sequence)
        self._give_back(sequence.shrink(n), sequence.retention)
        return sequence.reserved

    def truncate(self, seq, n):
        reserved = self.shrink(seq, n)
        self.sequences[seq].forget(n)
        return reserved

    def _give_back(self, drops, retention):
        for drop in drops:
            self.pool.drop(drop.block, drop.info(retention, self.now_s))

    def fork(self, seq, child):
        copy = self.sequences[seq].fork()
        self.sequences[child] = copy
        for table in copy.tables:
            for block in table:
                if block is not None:
                    self.pool.acquire(block)

    def release(self, seq):
        self.shrink(seq, 0)
        del self.sequences[seq]

    # Contents

    def commit(self, seq, num_computed):
        sequence = self.sequences[seq]
        sequence.computed = max(sequence.computed, num_computed)
        for group in self.layout.token_groups:
            self._publish_full(sequence, group)
            self._leave_behind(sequence, group)

    def _publish_full(self, sequence, group):
        if not self.prefix_caching:
            return
        full = min(sequence.computed, len(sequence.tokens)) // group.size
        for i in range(sequence.settled[group.number], full):
            block = sequence.tables[group.number][i]
            if block is not None:
                start, end = i * group.size, (i + 1) * group.size
                self.pool.publish(sequence.name(group.number, i), block, self._start(sequence, start, end))
        sequence.settled[group.number] = max(sequence.settled[group.number], full)

    def _start(self, sequence, start, end):
        """How the first tokens of a block are found: by what is before them and by themselves."""
        if not self.partial_reuse or any(start <= offset < end for offset in sequence.media):
            return None
        return sequence.identity(start), sequence.tokens[start:end]

    def _leave_behind(self, sequence, group):
        """Gives back the blocks that no later token sees, once their contents were offered to others."""
        table, needed = sequence.tables[group.number], group.needed(sequence.computed)
        settled = sequence.settled[group.number] if self.prefix_caching else len(table)
        left = [i for i in range(min(needed)) if i < min(settled, len(table)) and table[i] is not None]
        drops = [sequence.drop_of(group, i) for i in reversed(left)]
        for i in left:
            table[i] = None
        self._give_back(drops, sequence.retention)

    def _publish_tail(self, sequence):
        if not self.partial_reuse or sequence.awaits_load is not None:
            return
        size = self.layout.alignment
        end = min(sequence.computed, len(sequence.tokens))
        start = end - end % size
        found_by = self._start(sequence, start, end)
        if start < end and sequence.settled[0] * size >= start and found_by is not None:
            name = (0, sequence.identity(end), end - start, size)
            self.pool.publish(name, sequence.tables[0][start // size], found_by)

    def reset_prefix_cache(self):
        if self.pool.num_used():
            return False
        self.pool.reset()
        if self.host is not None:
            self.host.clear()
        return True

    # Transfers

    def take_transfers(self, batch, moves, host_fails):
        """The transfers that the cache handed over are those due; carries them out."""
        due, self.moves.due[:] = list(self.moves.due), []
        assert [kind for kind, _, _ in due] == [kind for kind, _, _ in moves]
        for (kind, source, destination), (_, from_, to) in zip(due, moves, strict=True):
            if kind == COPY:
                assert (source, destination) == (from_, to)
            elif kind == STORE:
                assert source == from_
                self.host.bind(destination[1], to)
            else:
                assert destination == to
                self.host.bind(source[1], from_)
        assert (batch is None) == all(kind == COPY for kind, _, _ in due)
        if batch is not None:
            self.host.take(batch, due)
        self.device.carry_out(moves, host_fails)

    def finish_transfers(self, batch, succeeded):
        """The sequences that waited for what was not loaded."""
        loads = [id(transfer) for transfer in self.host.flights[batch]]
        self.host.finish(batch, succeeded)
        waited = [seq for seq, s in self.sequences.items() if id(s.awaits_load) in loads]
        for seq in waited if succeeded else ():
            self.sequences[seq].awaits_load = None
        return [] if succeeded else sorted(waited)

    # Pins and tenants

    def plan_pin(self, seq, num_tokens):
        """The tokens that a pin would keep, its blocks, and (wanted, room) if it is above a quota."""
        sequence = self.sequences[seq]
        limit = len(sequence.tokens) if num_tokens is None else min(num_tokens, len(sequence.tokens))
        length = self.device_hit(sequence, limit) if self.prefix_caching else 0
        drops = []
        for group in self.layout.token_groups:
            parent = None
            for i in self.layout.blocks_of_hit(group, length):
                block = self.pool.index[sequence.name(group.number, i)]
                drops.append(Drop(block, parent, (i + 1) * group.size, group.size))
                parent = block
        drops.sort(key=lambda drop: -drop.depth)
        return length, drops, self.pins.refusal(sequence.tenant, len(drops))

    def pin(self, pin, seq, drops, ttl_s):
        sequence = self.sequences[seq]
        for drop in drops:
            self.pool.acquire(drop.block)
        expires_at = None if ttl_s is None else self.now_s + ttl_s
        self.pins.held[pin] = ModelPin(drops, sequence.retention, sequence.tenant, expires_at)

    def unpin(self, pin):
        lifted = self.pins.held.pop(pin)
        self._give_back(lifted.drops, lifted.retention)

    def set_time(self, now_s):
        self.pool.policy.set_time(now_s)
        self.now_s = now_s
        over = self.pins.over(now_s)
        deque(map(self.unpin, over), maxlen=0)
        return len(over)

    def stats(self):
        used, cached = self.pool.num_used(), len(self.pool.cached())
        return {
            "num_blocks": self.pool.num_blocks,
            "free": self.pool.num_blocks - used - cached,
            "cached": cached,
            "used": used,
            "queries": self.queries,
            "hits": self.hits,
            "evictions": self.pool.evictions,
            "sequences": len(self.sequences),
            "pinned": self.pins.num_blocks(),
            "host_blocks": self.host.capacity if self.host else 0,
            "host_used": len(self.host.entries) if self.host else 0,
            "host_hits": self.host_hits,
        }
