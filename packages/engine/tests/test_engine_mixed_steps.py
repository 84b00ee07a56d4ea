"""Where a plan's decode rows and prompts stand in a captured step, and which sizes are captured."""

from types import SimpleNamespace

import numpy as np
import pytest
from llm_engine.worker.input_batch import HostBatch, fill_mixed
from llm_engine.worker.mixed_layout import MixedKey, MixedLayout
from llm_engine.worker.mixed_policy import MixedPolicy, hiding_tokens, largest_tokens
from llm_engine.worker.slot_params import SlotParams

MAX_TOKENS = 1000


def plan_of(slots, num_tokens, num_computed, samples):
    plan = SimpleNamespace(
        slots=np.array(slots, np.int32),
        num_tokens=np.array(num_tokens, np.int32),
        num_computed=np.array(num_computed, np.int32),
        samples=np.array(samples),
        num_rows=len(slots),
    )
    ends = np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32)
    batch = HostBatch(
        cu_query_lens=ends,
        context_lens=plan.num_computed + plan.num_tokens,
        sample_rows=np.flatnonzero(plan.samples),
        num_tokens=int(ends[-1]),
        num_decodes=sum(1 for count in num_tokens if count == 1),
        max_query_len=max(num_tokens),
        max_context_len=int((plan.num_computed + plan.num_tokens).max()),
    )
    return plan, batch


def filled(key, plan, batch, params):
    layout = MixedLayout(key)
    host = layout.on_host(np.full(layout.num_bytes, 77, np.uint8))
    host.clear()
    tables = SimpleNamespace(max_tokens=MAX_TOKENS)
    return host, fill_mixed(host, key, plan, batch, tables, params)


def test_decode_rows_come_first_then_prompts_then_what_is_left():
    params = SlotParams(8)
    params.temperature[:] = np.arange(8) / 10
    params.seeds[:] = 100 + np.arange(8)
    plan, batch = plan_of([5, 2, 7, 1], [1, 1, 3, 5], [9, 4, 0, 10], [True, True, False, True])
    host, rows = filled(MixedKey(16, 4, 4), plan, batch, params)
    assert rows.tolist() == [0, 1, 4, 5]
    assert host.slots.tolist() == [5, 2, 0, 0, 7, 1, 0, 0, 0]
    assert host.context_lens.tolist() == [10, 5, 0, 0, 3, 15, 0, 0, 0]
    assert host.cu_query_lens.tolist() == [0, 1, 2, 3, 4, 7, 12, 12, 12, 16]
    assert host.positions.tolist() == [9, 4, -1, -1, 0, 1, 2, 10, 11, 12, 13, 14, -1, -1, -1, -1]
    assert host.token_slots.tolist() == [5, 2, 0, 0, 7, 7, 7, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert host.last_tokens.tolist() == [0, 1, 0, 0, 6, 11, 0, 0]
    assert host.places.tolist() == [5010, 2005, -1, -1, -1, 1015, -1, -1]
    assert host.next_positions.tolist() == [10, 5, 0, 0, 3, 15, 0, 0]
    assert host.seeds.tolist() == [105, 102, 0, 0, 107, 101, 0, 0]
    assert host.temperature.tolist() == pytest.approx([0.5, 0.2, 0, 0, 0.7, 0.1, 0, 0])


@pytest.mark.parametrize("seed", range(8))
def test_the_tokens_of_every_row_are_where_its_prefix_sums_say(seed):
    numbers = np.random.default_rng(seed)
    decodes, prompts = int(numbers.integers(0, 5)), int(numbers.integers(1, 5))
    counts = [1] * decodes + [int(count) for count in numbers.integers(2, 30, prompts)]
    slots = numbers.permutation(16)[: len(counts)]
    plan, batch = plan_of(slots, counts, numbers.integers(0, 50, len(counts)), [True] * len(counts))
    params = SlotParams(16)
    params.top_p[:], params.top_k[:] = numbers.random(16), numbers.integers(0, 9, 16)
    key = MixedPolicy().key(batch.num_tokens, decodes, prompts, filters=True)
    host, rows = filled(key, plan, batch, params)
    assert host.cu_query_lens[0] == 0
    assert host.cu_query_lens[-1] == key.tokens
    assert (np.diff(host.cu_query_lens) >= 0).all()
    assert host.cu_query_lens[key.decodes] == key.decodes
    for row, at in enumerate(rows):
        begin, end = host.cu_query_lens[at : at + 2]
        first = plan.num_computed[row]
        assert host.positions[begin:end].tolist() == list(range(first, first + counts[row]))
        assert (host.token_slots[begin:end] == slots[row]).all()
        assert host.last_tokens[at] == end - 1
        assert (host.top_p[at], host.top_k[at]) == (params.top_p[slots[row]], params.top_k[slots[row]])
    assert (host.positions >= 0).sum() == batch.num_tokens


@pytest.mark.parametrize(
    ("tokens", "decodes", "prompts", "key"),
    [
        (128, 0, 1, (128, 0, 1, False)),
        (129, 0, 2, (192, 0, 4, False)),
        (21, 1, 1, (32, 4, 1, False)),
        (300, 200, 16, (384, 256, 16, False)),
        (513, 0, 1, None),
        (400, 200, 3, (512, 256, 4, False)),
        (512, 200, 3, None),
        (100, 0, 17, (128, 0, 64, False)),
        (100, 0, 65, None),
    ],
)
def test_sizes(tokens, decodes, prompts, key):
    found = MixedPolicy().key(tokens, decodes, prompts, filters=False)
    assert found == (None if key is None else MixedKey(*key))


def test_small_models_get_graphs_of_large_steps():
    assert largest_tokens(600_000_000) == 8704
    assert largest_tokens(8_200_000_000) == 853
    assert largest_tokens(70_000_000_000) == 512
    large = MixedPolicy(8704)
    assert large.key(8192, 0, 2, filters=False) == MixedKey(8192, 0, 4)
    assert large.key(8192, 50, 17, filters=False) == MixedKey(8320, 64, 64)
    assert MixedPolicy(853).key(769, 0, 1, filters=False) is None


def test_a_size_is_captured_when_it_comes_again():
    policy = MixedPolicy()
    choices = [policy.choose(100, 3, 1, filters=False) for _ in range(4)]
    assert choices[0] is None
    assert [choice.captures for choice in choices[1:]] == [True, False, False]
    assert {choice.key for choice in choices[1:]} == {MixedKey(128, 4, 1)}


def test_a_size_that_hides_its_capture_is_captured_at_once():
    assert hiding_tokens(600_000_000) == 6000
    policy = MixedPolicy(8704, hides_from=6000)
    first, again = (policy.choose(8192, 3, 1, filters=False) for _ in range(2))
    assert (first, again) == ((MixedKey(8320, 4, 1), True), (MixedKey(8320, 4, 1), False))
    # The same size with fewer tokens waits, and is captured by the first step that hides it.
    assert policy.choose(5000, 0, 1, filters=False) is None
    assert policy.choose(6100, 0, 1, filters=False) == (MixedKey(6144, 0, 1), True)
    assert policy.choose(5000, 0, 1, filters=False) == (MixedKey(6144, 0, 1), False)


@pytest.mark.parametrize(("lockstep", "runs_padded"), [(False, False), (True, True)])
def test_what_failed_runs_unpadded_unless_others_pad(lockstep, runs_padded):
    policy = MixedPolicy(lockstep=lockstep)
    policy.choose(100, 3, 1, filters=False)
    policy.failed(policy.choose(100, 3, 1, filters=False).key)
    again = policy.choose(100, 3, 1, filters=False)
    assert (again is not None) == runs_padded
    assert again is None or not again.captures
