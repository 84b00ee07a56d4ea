"""Transfers of KV blocks against carrying them out one by one, on the CPU and on a GPU."""

import numpy as np
import pytest
import torch
from llm_engine.worker.block_transfers import BlockTransfers, transfer_runs
from llm_engine.worker.errors import PlanError
from llm_engine.worker.kv_pool import as_words
from llm_kvcache import COPY, LOAD, STORE

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
BLOCKS, SLOTS = 6, 4


def random_moves(generator, count):
    ranges = {COPY: (BLOCKS, BLOCKS), STORE: (BLOCKS, SLOTS), LOAD: (SLOTS, BLOCKS)}
    kinds = generator.integers(0, 3, count).tolist()
    moves = [(kind, *(int(generator.integers(0, end)) for end in ranges[kind])) for kind in kinds]
    return np.array(moves, np.int32).reshape(-1, 3)


def one_by_one(device, host, moves):
    memory = {COPY: (device, device), STORE: (device, host), LOAD: (host, device)}
    for kind, source, destination in moves.tolist():
        read, written = memory[kind]
        written[destination] = read[source]


@pytest.mark.parametrize("seed", range(40))
def test_runs_keep_the_order_that_matters(seed):
    generator = np.random.default_rng(seed)
    moves = random_moves(generator, int(generator.integers(0, 30)))
    device, host = list(range(BLOCKS)), list(range(100, 100 + SLOTS))
    expected_device, expected_host = device.copy(), host.copy()
    one_by_one(expected_device, expected_host, moves)
    for run in transfer_runs(moves):
        read = host if run.kind == LOAD else device
        written = host if run.kind == STORE else device
        assert len(set(run.destinations)) == len(run.destinations)
        values = [read[source] for source in run.sources]
        for destination, value in zip(run.destinations, values, strict=True):
            written[destination] = value
    assert (device, host) == (expected_device, expected_host)


def test_independent_transfers_are_one_run():
    moves = np.array([[STORE, 0, 0], [STORE, 1, 1], [LOAD, 2, 0], [LOAD, 3, 1]], np.int32)
    assert [run.kind for run in transfer_runs(moves)] == [STORE, LOAD]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(8))
def test_contents_end_where_they_belong(device, seed):
    generator = np.random.default_rng(seed)
    shapes = [(BLOCKS, 3, 2, 4), (BLOCKS, 5), (BLOCKS, 4, 2)]  # the second has no whole number of words
    flat = [torch.randn(shape, device=device) for shape in shapes]
    transfers = BlockTransfers([as_words(cache) for cache in flat], SLOTS)
    expected = [list(cache.clone()) for cache in flat]
    # What the slots hold at first is nobody's: fill them.
    fill = np.array([[STORE, slot, slot] for slot in range(SLOTS)], np.int32)
    transfers.carry_out(fill)
    hosts = [[block.clone() for block in blocks[:SLOTS]] for blocks in expected]
    for _ in range(4):
        moves = random_moves(generator, 12)
        transfers.carry_out(moves)
        for blocks, host in zip(expected, hosts, strict=True):
            one_by_one(blocks, host, moves)
    for cache, blocks in zip(flat, expected, strict=True):
        torch.testing.assert_close(cache, torch.stack(blocks), rtol=0, atol=0)


def test_what_cannot_be_carried_out_is_refused():
    storages = [torch.zeros(4, 2)] * 2
    with pytest.raises(PlanError, match="kind 1"):
        BlockTransfers(storages).carry_out(np.array([[STORE, 0, 0]], np.int32))
    with pytest.raises(PlanError, match="kind 7"):
        BlockTransfers(storages, 2).carry_out(np.array([[7, 0, 0]], np.int32))
