"""The stop search that starts late, against a plain reference over random texts and splits."""

import random

import pytest
from llm_engine.late_stops import LateStops


@pytest.mark.parametrize(
    ("pieces", "stops", "armed_from", "include", "shown", "hit"),
    [
        (["one two", " three"], ["two"], 0, False, "one ", 0),
        (["one two", " three"], ["two"], 1, False, "one two three", -1),
        (["one two", " two three"], ["two"], 1, False, "one two ", 0),
        (["one tw", "o three"], ["two"], 1, False, "one ", 0),
        (["one tw", "o three"], ["two"], 1, True, "one two", 0),
        (["one two three"], ["two", "ne tw"], 0, False, "o", 1),
        (["one tw"], ["two"], 0, False, "one tw", -1),
    ],
)
def test_cases(pieces, stops, armed_from, include, shown, hit):
    assert run(pieces, stops, armed_from, include=include) == (shown, hit)


@pytest.mark.parametrize("seed", range(300))
def test_random_texts_against_the_reference(seed):
    rng = random.Random(seed)
    pieces = ["".join(rng.choices("ab", k=rng.randrange(4))) for _ in range(8)]
    stops = ["".join(rng.choices("ab", k=rng.randrange(1, 4))) for _ in range(2)]
    armed_from, include = rng.randrange(9), rng.random() < 0.5
    assert run(pieces, stops, armed_from, include=include)[0] == reference(pieces, stops, armed_from, include)


def run(pieces, stops, armed_from, *, include):
    search, shown = LateStops(stops, include_stop=include), ""
    for index, piece in enumerate(pieces):
        text, hit = search.push(piece, armed=index >= armed_from)
        shown += text
        if hit >= 0:
            return shown, hit
    return shown + search.finish(), -1


def reference(pieces, stops, armed_from, include):
    """All characters one by one: the first stop to complete in an armed piece, the longest if several do."""
    text, begin = "".join(pieces), len("".join(pieces[:armed_from]))
    for end in range(begin + 1, len(text) + 1):
        sizes = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if sizes:
            return text[:end] if include else text[: end - max(sizes)]
    return text
