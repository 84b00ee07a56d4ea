"""Owns a cache bound to its reference model: each call goes to both, and their answers must agree."""

from dataclasses import asdict

import numpy as np
import pytest
from kvcache_reference_model import ReferenceModel
from llm_kvcache import FullAttention, InvalidArgument, KVCache, UnknownSequence


class CheckedCache:
    def __init__(self, block_size, num_blocks, prefix_caching=True):
        groups = [FullAttention(block_size)]
        self.cache = KVCache(groups, num_blocks, enable_prefix_caching=prefix_caching)
        self.model = ReferenceModel(block_size, num_blocks, prefix_caching)

    @property
    def live(self):
        return list(self.model.sequences)

    def verify(self):
        """The state of the cache is that of the model, and consistent in itself."""
        self.cache.check()
        assert asdict(self.cache.stats()) == self.model.stats()
        for seq, sequence in self.model.sequences.items():
            assert self.cache.block_table(seq).tolist() == sequence.table
            assert self.cache.num_tokens(seq) == len(sequence.tokens)
            assert self.cache.num_reserved(seq) == sequence.reserved
            assert self.cache.capacity(seq) == len(sequence.table) * self.model.size

    def open(self, tokens, salt=None, lora=None, media=()):
        seq = self.cache.open(tokens, salt=salt, lora=lora, media=media)
        self.model.open(seq, tokens, salt, lora, media)
        return seq

    def match(self, seq, max_tokens=None):
        if self.model.sequences[seq].reserved:
            with pytest.raises(InvalidArgument):
                self.cache.match(seq, max_tokens=max_tokens)
            return 0
        hit = self.cache.match(seq, max_tokens=max_tokens)
        assert hit == self.model.match(seq, max_tokens)
        return hit

    def grow(self, seq, n):
        ok = self.cache.grow(seq, n)
        assert ok == self.model.grow(seq, n, self.cache.block_table(seq).tolist())
        return ok

    def grow_many(self, seqs, ns):
        """Replays the rows one by one on block tables put together from what `Growth` says alone."""
        tables = {seq: list(self.model.sequences[seq].table) for seq in seqs}
        growth = self.cache.grow_many(np.array(seqs, np.int64), np.array(ns, np.int32))
        for row, (seq, n) in enumerate(zip(seqs, ns, strict=True)):
            for at, position, block in growth.replaced.tolist():
                if at == row:
                    tables[seq][position] = block
            new = growth.new_blocks[growth.offsets[row] : growth.offsets[row + 1]].tolist()
            tables[seq].extend(new)
            assert growth.ok[row] == self.model.grow(seq, n, tables[seq])
            assert growth.ok[row] or not new
        return growth

    def append(self, seq, tokens):
        self.cache.append(seq, tokens)
        self.model.sequences[seq].tokens.extend(tokens)

    def append_many(self, seqs, rows):
        offsets = np.cumsum([0, *map(len, rows)])
        self.cache.append_many(seqs, [token for row in rows for token in row], offsets)
        for seq, row in zip(seqs, rows, strict=True):
            self.model.sequences[seq].tokens.extend(row)

    def end_of_step(self, seq, longest):
        sequence = self.model.sequences[seq]
        return min(sequence.reserved, len(sequence.tokens), sequence.computed + longest)

    def step(self, seqs, longest):
        """Runs up to `longest` tokens of each sequence on the model's device and commits what it wrote."""
        copies = [tuple(pair) for pair in self.cache.take_copies().tolist()]
        ends = {seq: self.end_of_step(seq, longest) for seq in seqs}
        self.model.run_step(copies, ends)
        self.cache.commit_many(seqs, list(ends.values()))
        for seq, end in ends.items():
            self.model.commit(seq, end)
        self.model.check_memory()

    def commit(self, seq, num_computed):
        if num_computed > self.model.sequences[seq].reserved:
            with pytest.raises(InvalidArgument, match="num_computed"):
                self.cache.commit(seq, num_computed)

    def truncate(self, seq, n):
        self.cache.truncate(seq, n)
        self.model.truncate(seq, n)

    def shrink(self, seq, n):
        self.cache.shrink(seq, n)
        self.model.shrink(seq, n)

    def fork(self, seq):
        child = self.cache.fork(seq)
        self.model.fork(seq, child)
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
        assert self.cache.reset_prefix_cache() == self.model.reset_prefix_cache()
