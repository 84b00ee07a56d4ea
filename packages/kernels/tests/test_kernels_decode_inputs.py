"""Both ends of a decode step: against values worked out row by row, and the Triton kernels against torch."""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NUM_SLOTS, MAX_TOKENS = 9, 700

if torch.cuda.is_available() and not INTERPRETED:
    BACKENDS = [pytest.param("triton", "cuda", marks=pytest.mark.gpu)]
elif INTERPRETED:
    BACKENDS = [("triton_interpreter", "cpu")]
else:
    BACKENDS = []
BACKENDS = [("torch", "cpu"), *BACKENDS]


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 20


def problem(num_rows, num_padding, num_families, block_size, device, seed=0):
    """Distinct slots, contexts up to the longest, a new block in some rows; padding names slot 0."""
    generator = torch.Generator().manual_seed(seed)
    width = -(-MAX_TOKENS // block_size)
    context = torch.randint(1, MAX_TOKENS + 1, (num_rows,), generator=generator)
    last = ((context - 1) // block_size).repeat(num_families, 1)
    adds = torch.rand(last.shape, generator=generator) < 0.4
    total = num_rows + num_padding
    slots, lens = torch.zeros(total, dtype=torch.int64), torch.zeros(total, dtype=torch.int32)
    columns = torch.full((num_families, total), -1, dtype=torch.int32)
    blocks = torch.zeros((num_families, total), dtype=torch.int32)
    slots[:num_rows] = torch.randperm(NUM_SLOTS, generator=generator)[:num_rows]
    lens[:num_rows] = context
    columns[:, :num_rows] = torch.where(adds, last, -1)
    blocks[:, :num_rows] = torch.randint(1, 5000, last.shape, generator=generator)
    tokens = torch.randint(0, 9999, (NUM_SLOTS, MAX_TOKENS), generator=generator, dtype=torch.int32)
    tables = torch.randint(1, 5000, (num_families, NUM_SLOTS, width), generator=generator, dtype=torch.int32)
    rows = ops.DecodeRows(*(value.to(device) for value in (slots, lens, columns, blocks)))
    return rows, tokens.to(device), tables.to(device)


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
@pytest.mark.parametrize(("num_rows", "num_padding"), [(1, 0), (5, 3), (9, 0), (0, 4)])
@pytest.mark.parametrize(("num_families", "block_size"), [(1, 16), (3, 1), (2, 64)])
@pytest.mark.parametrize("has_places", [True, False])
def test_preparation(backend, device, num_rows, num_padding, num_families, block_size, has_places):
    rows, tokens, tables = problem(num_rows, num_padding, num_families, block_size, device)
    before = tables.clone()
    with ops.use_backend("prepare_decode", backend):
        prepared = ops.prepare_decode(rows, tokens, tables, block_size, has_places=has_places)
    expected = before.clone()
    for row in range(num_rows):
        slot, context = int(rows.slots[row]), int(rows.context_lens[row])
        assert int(prepared.input_ids[row]) == int(tokens[slot, context - 1])
        assert int(prepared.positions[row]) == context - 1
        for family in range(num_families):
            column = int(rows.new_columns[family, row])
            if column >= 0:
                expected[family, slot, column] = rows.new_blocks[family, row]
            filled = -(-context // block_size)
            own = prepared.block_tables[family, row, :filled]
            assert torch.equal(own, expected[family, slot, :filled])
            if has_places:
                block, offset = divmod(context - 1, block_size)
                place = int(expected[family, slot, block]) * block_size + offset
                assert int(prepared.places[family, row]) == place
    assert torch.equal(tables, expected)
    assert prepared.places.shape == (num_families, num_rows + num_padding if has_places else 0)
    assert (prepared.places[:, num_rows:] == -1).all()
    assert (prepared.positions[num_rows:] == 0).all()
    assert (prepared.input_ids[num_rows:] == tokens[0, 0]).all()


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
@pytest.mark.parametrize("num_rows", [1, 7, 200])
def test_storing(backend, device, num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    drawn = torch.randint(0, 9999, (num_rows,), generator=generator)
    faults = torch.rand(num_rows, generator=generator) < 0.3
    places = torch.randperm(NUM_SLOTS * MAX_TOKENS - 1, generator=generator)[:num_rows] + 1
    places[torch.rand(num_rows, generator=generator) < 0.3] = -1
    table = torch.zeros((NUM_SLOTS, MAX_TOKENS), dtype=torch.int32, device=device)
    with ops.use_backend("store_tokens", backend):
        out = ops.store_tokens(*(value.to(device) for value in (drawn, faults, places)), table).cpu()
    assert out.dtype == torch.int32
    assert torch.equal(out.long(), torch.where(faults, -1, drawn))
    expected = torch.zeros(NUM_SLOTS * MAX_TOKENS, dtype=torch.int32)
    for token, place in zip(drawn.tolist(), places.tolist(), strict=True):
        if place > 0:
            expected[place] = token
    assert torch.equal(table.cpu().view(-1), expected)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("slots", lambda r: (r.slots.int(), r.context_lens, r.new_columns, r.new_blocks)),
        ("context_lens", lambda r: (r.slots, r.context_lens[1:], r.new_columns, r.new_blocks)),
        ("new_columns", lambda r: (r.slots, r.context_lens, r.new_columns[:1], r.new_blocks)),
        ("new_blocks", lambda r: (r.slots, r.context_lens, r.new_columns, r.new_blocks.long())),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(field, change):
    rows, tokens, tables = problem(3, 1, 2, 16, "cpu")
    with pytest.raises(InvalidArgument) as caught:
        ops.prepare_decode(ops.DecodeRows(*change(rows)), tokens, tables, 16)
    assert caught.value.field == field


def test_a_bad_token_column_is_named():
    table = torch.zeros((2, 5), dtype=torch.int32)
    good = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool), torch.full((2,), -1)
    with pytest.raises(InvalidArgument) as caught:
        ops.store_tokens(good[0].int(), good[1], good[2], table)
    assert caught.value.field == "tokens_B"
    with pytest.raises(InvalidArgument) as caught:
        ops.store_tokens(*good, table.long())
    assert caught.value.field == "token_ids_SM"
