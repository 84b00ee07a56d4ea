"""The search for rows that share their first blocks, against a comparison of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from llm_engine.worker.kv_groups import KVGroup
from llm_engine.worker.shared_prefix import MAX_GROUPS, SharedPrefixes, layout, packed_words
from llm_engine.worker.slot_tables import SlotTables
from llm_scheduler import Ragged

FULL = KVGroup(kind="full", block_size=4, caches=(0,))
WINDOW = KVGroup(kind="window", block_size=4, span=8, caches=(1,))
STATE = KVGroup(kind="state", block_size=64, caches=(2,))


class Rows:
    """Tables of 16 slots, filled as a runner would."""

    def __init__(self, groups=(FULL,), least=1):
        self.groups = groups
        self.tables = SlotTables(16, 256, groups, torch.device("cpu"))
        self.prefixes = SharedPrefixes(self.tables, groups, least_saved_tokens=least)

    def append(self, blocks, changed=True):
        """`blocks`: new blocks by slot, the same in every group, or one list a group."""
        slots = np.array(list(blocks), np.int32)
        ragged = []
        for group in range(len(self.groups)):
            rows = [of[group] if of and isinstance(of[0], list) else of for of in blocks.values()]
            offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
            ragged.append(Ragged(np.array([b for row in rows for b in row], np.int32), offsets))
        update = self.tables.append_blocks(slots, tuple(ragged))
        self.tables.flat_tables.index_copy_(
            0, torch.from_numpy(update.positions), torch.from_numpy(update.values)
        )
        self.prefixes.note(update, changed=changed)

    def find(self, slots, contexts):
        plan = self.prefixes.find(np.array(slots, np.int32), np.array(contexts, np.int32))
        return None if plan is None else [(group.rows.tolist(), group.num_tokens) for group in plan.groups]


def test_rows_with_the_same_first_blocks_are_a_group():
    rows = Rows()
    rows.append({3: [7, 8, 9, 20], 5: [7, 8, 9, 21], 0: [1, 2, 3], 9: [7, 8, 9, 22]})
    assert rows.find([5, 0, 3, 9], [14, 10, 16, 13]) == [([0, 2, 3], 12)]


def test_the_own_token_of_the_shortest_row_is_not_shared():
    rows = Rows()
    rows.append({0: [7, 8, 9], 1: [7, 8, 9]})
    assert rows.find([0, 1], [13, 12]) == [([0, 1], 8)]
    assert rows.find([0, 1], [13, 4]) is None


def test_several_groups_the_most_sparing_first():
    rows = Rows()
    rows.append({0: [1, 2], 1: [1, 2], 2: [5, 6, 7, 30], 3: [5, 6, 7, 31], 4: [5, 6, 7, 32], 5: [99]})
    found = rows.find([0, 1, 2, 3, 4, 5], [9, 9, 17, 17, 17, 9])
    assert found == [([2, 3, 4], 12), ([0, 1], 8)]


def test_a_short_head_in_common_does_not_hide_deeper_groups():
    rows = Rows()
    rows.append({i: [1, *([2, 3, 4] if i < 3 else [5, 6, 7]), 40 + i] for i in range(6)})
    assert rows.find(range(6), [18] * 6) == [([0, 1, 2], 16), ([3, 4, 5], 16)]


def test_too_little_to_spare_is_no_group():
    for least, found in ((16, [([0, 1, 2], 8)]), (17, None)):
        rows = Rows(least=least)
        rows.append({i: [1, 2, 10 + i] for i in range(3)})
        assert rows.find([0, 1, 2], [12] * 3) == found


@pytest.mark.parametrize("groups", [(WINDOW,), (STATE, WINDOW)], ids=["window", "state"])
def test_windows_and_states_share_nothing(groups):
    rows = Rows(groups)
    rows.append({0: [1, 2], 1: [1, 2]})
    assert rows.find([0, 1], [9, 9]) is None


def test_all_groups_that_keep_everything_must_agree():
    rows = Rows((FULL, FULL, WINDOW))
    rows.append({0: [[1, 2, 3], [4, 5, 6], [7, 8, 9]], 1: [[1, 2, 3], [4, 5, 60], [70, 80, 90]]})
    assert rows.find([0, 1], [16, 16]) == [([0, 1], 8)]


def test_the_plan_stays_the_same_object_until_rows_change():
    rows = Rows()
    rows.append({i: [1, 2, 10 + i] for i in range(4)})
    slots = np.arange(3, dtype=np.int32)
    plan = rows.prefixes.find(slots, np.full(3, 10, np.int32))
    rows.append({0: [50], 1: [51], 2: [52]}, changed=False)
    assert rows.prefixes.find(slots, np.full(3, 13, np.int32)) is plan
    assert rows.find([0, 1, 2, 3], [14, 14, 14, 10]) == [([0, 1, 2, 3], 8)]
    # A slot that another request holds now.
    rows.tables.release(np.array([1], np.int32))
    rows.append({1: [80, 81, 82]})
    assert rows.find([0, 1, 2, 3], [14, 11, 14, 10]) == [([0, 2, 3], 8)]


def test_random_tables_give_true_groups():
    generator = np.random.default_rng(0)
    num_groups = 0
    for _ in range(200):
        rows = Rows(least=int(generator.integers(1, 40)))
        heads = [generator.integers(0, 500, generator.integers(1, 10)).tolist() for _ in range(3)]
        tables = {}
        for slot in generator.permutation(16)[: generator.integers(2, 16)].tolist():
            head = heads[generator.integers(3)]
            own = (1000 + 50 * slot + np.arange(generator.integers(1, 5))).tolist()
            tables[slot] = head[: generator.integers(len(head) + 1)] + own
        rows.append(tables)
        slots = list(tables)
        contexts = [int(generator.integers(1, 4 * len(tables[slot]) + 1)) for slot in slots]
        found = rows.find(slots, contexts) or []
        num_groups += len(found)
        assert len({row for members, _ in found for row in members}) == sum(len(m) for m, _ in found)
        for members, num_tokens in found:
            first = tables[slots[members[0]]][: num_tokens // 4]
            for row in members:
                assert tables[slots[row]][: num_tokens // 4] == first
                assert num_tokens < contexts[row]
            assert num_tokens % 4 == 0
            assert num_tokens * (len(members) - 1) >= rows.prefixes._least
    assert num_groups > 50


def test_packed_arrays():
    rows = Rows()
    rows.append({0: [1, 2], 1: [1, 2], 2: [5, 6, 7, 30], 3: [5, 6, 7, 31], 4: [5, 6, 7, 32], 5: [99]})
    plan = rows.prefixes.find(np.arange(6, dtype=np.int32), np.array([9, 9, 17, 17, 17, 9], np.int32))
    packed = plan.pack(8)
    assert len(packed) == packed_words(8)
    prefix_lens, members, cu_members, lengths = (packed[part] for part in layout(8))
    assert prefix_lens.tolist() == [8, 8, 12, 12, 12, 0, 0, 0]
    assert members.tolist() == [2, 3, 4, 0, 1, 0, 0, 0]
    assert cu_members.tolist() == [0, 3, 5, *[5] * (MAX_GROUPS - 2)]
    assert lengths.tolist() == [12, 8, *[0] * (MAX_GROUPS - 2)]
    assert all(part.start % 4 == 0 for part in layout(7))
