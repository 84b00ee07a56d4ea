"""Ragged arrays, the budget split and the ordered list against plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest
from llm_scheduler.budget import share_budget
from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.plan import Ragged
from llm_scheduler.request import Request, RequestState


def random_rows(rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(100) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(0, 6))]


def as_lists(ragged: Ragged) -> list[list[int]]:
    assert ragged.values.dtype == ragged.offsets.dtype == np.int32
    return [ragged.row(index).tolist() for index in range(len(ragged))]


@pytest.mark.parametrize("seed", range(50))
def test_ragged_behaves_like_lists(seed: int) -> None:
    rng = random.Random(seed)
    rows, more = random_rows(rng), random_rows(rng)
    ragged = Ragged.from_rows(rows)
    assert as_lists(ragged) == rows
    assert as_lists(ragged.concat(Ragged.from_rows(more))) == rows + more
    chosen = rng.sample(range(len(rows)), rng.randint(0, len(rows)))
    assert as_lists(ragged.take(np.array(chosen, np.int64))) == [rows[row] for row in chosen]
    assert as_lists(Ragged.empty(len(rows))) == [[] for _ in rows]


@pytest.mark.parametrize("seed", range(100))
def test_the_budget_is_shared_in_order_singles_first(seed: int) -> None:
    rng = random.Random(seed)
    wanted = [rng.choice([0, 1, 1, 5, 20]) for _ in range(rng.randint(0, 8))]
    budget, cap = rng.randint(0, 30), rng.randint(1, 20)
    expected = [0] * len(wanted)
    left = budget
    for is_chunk in (False, True):
        for row, tokens in enumerate(wanted):
            if (min(tokens, cap) > 1) == is_chunk:
                expected[row] = min(tokens, cap, left)
                left -= expected[row]
    assert share_budget(np.array(wanted, np.int64), budget, cap).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_ordered_list_stays_sorted(seed: int) -> None:
    rng = random.Random(seed)
    ordered, model = OrderedRequests(), []
    for index in range(60):
        if model and rng.random() < 0.4:
            state = rng.choice(model)
            model.remove(state)
            ordered.remove(state)
        else:
            prompt = np.zeros(rng.randint(1, 5), np.int32)
            request = Request(request_id=str(index), token_ids=prompt, max_tokens=1)
            state = RequestState(
                request=request,
                key=(rng.randint(0, 3), index),
                urgency=0,
                lane=None,
                max_outputs=1,
                stop_token_ids=frozenset(),
                waits_for=set(),
            )
            model.append(state)
            ordered.add(state)
        model.sort(key=lambda state: state.key)
        assert list(ordered) == model
        if model:
            assert (ordered.first(), ordered.last()) == (model[0], model[-1])
