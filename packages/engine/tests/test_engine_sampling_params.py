"""Every value out of range is refused with its field's name; every border value is taken."""

import math

import pytest
from llm_engine import InvalidRequest, SamplingParams

REFUSED = [
    ("n", 0), ("n", -1), ("n", 129), ("n", True), ("n", 1.0), ("n", "1"), ("n", None), ("n", 10**400),
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", -math.inf),
    ("temperature", 1e300), ("temperature", "hot"), ("temperature", True), ("temperature", None),
    ("temperature", 10**400),
    ("top_p", 0), ("top_p", 0.0), ("top_p", 1.5), ("top_p", -0.1), ("top_p", math.nan),
    ("top_k", -2), ("top_k", 2**31), ("top_k", 1e9), ("top_k", False),
    ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ("presence_penalty", 3), ("presence_penalty", -3), ("presence_penalty", math.nan),
    ("frequency_penalty", 2.01), ("frequency_penalty", -2.01), ("frequency_penalty", math.inf),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", 101),
    ("repetition_penalty", "2"),
    ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", True), ("seed", "7"),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**31), ("max_tokens", 1.0), ("max_tokens", True),
    ("min_tokens", -1), ("min_tokens", 2**31), ("min_tokens", None),
    ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", 1), ("stop", ["a"] * 65),
    ("stop", ["x" * 1025]),
    ("stop", b"a"), ("stop", ["\ud800"]), ("stop", {"a": 1}),
    ("stop_token_ids", [-1]), ("stop_token_ids", [True]), ("stop_token_ids", ["1"]), ("stop_token_ids", 1),
    ("stop_token_ids", [1] * 257), ("stop_token_ids", [2**31]),
    ("ignore_eos", 1), ("ignore_eos", None), ("skip_special_tokens", "yes"), ("detokenize", 0),
    ("include_stop_str_in_output", None),
    ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("logprobs", 1.0),
    ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprobs", False),
    ("logit_bias", {-1: 1.0}), ("logit_bias", {"AI": -100}), ("logit_bias", {"5": 1}),
    ("logit_bias", {1: 101}),
    ("logit_bias", {1: -100.5}), ("logit_bias", {1: math.nan}), ("logit_bias", {1: "x"}),
    ("logit_bias", {True: 1}),
    ("logit_bias", [1]), ("logit_bias", dict.fromkeys(range(1025), 1.0)), ("logit_bias", {1: True}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_bad_value_names_its_field(field, value):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert len(str(caught.value)) < 300


ACCEPTED = [
    ("n", 1), ("n", 128), ("temperature", 0), ("temperature", 1e-8), ("temperature", 100), ("top_p", 1),
    ("top_p", 1e-9),
    ("top_k", -1), ("top_k", 0), ("top_k", 2**31 - 1), ("min_p", 0), ("min_p", 1), ("presence_penalty", -2),
    ("presence_penalty", 2), ("repetition_penalty", 0.01), ("repetition_penalty", 100), ("seed", 2**63 - 1),
    ("seed", -(2**63)), ("max_tokens", 1), ("stop", None), ("stop", "x"), ("stop", ["x"] * 64),
    ("stop", ("x", "y")),
    ("stop_token_ids", (0, 5)), ("logprobs", 0), ("logprobs", 20), ("logit_bias", {0: -100, 7: 100.0}),
    ("logit_bias", {}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_border_values_are_taken(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": "x", "detokenize": False}, "stop"),
        ({"max_tokens": 0, "prompt_logprobs": 0, "n": 2}, "n"),
    ],
)
def test_fields_that_exclude_each_other(fields, named):
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.field == named


def test_scoring_without_output_needs_prompt_logprobs():
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, ()), ("ab", ("ab",)), (["a", "b"], ("a", "b")), ((), ())]
)
def test_stop_strings(stop, strings):
    assert SamplingParams(stop=stop).stop_strings == strings


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-8, True), (9e-6, True), (1e-4, False)])
def test_is_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).is_greedy is greedy
