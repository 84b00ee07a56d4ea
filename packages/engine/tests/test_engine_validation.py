"""The one check of a request against its model: vocabulary and context."""

import numpy as np
import pytest
from llm_engine import ContextLengthExceeded, InvalidRequest, SamplingParams, TokensPrompt
from llm_engine.prompts import to_tokens
from llm_engine.validation import ModelLimits, validate_request

LIMITS = ModelLimits(max_model_len=100, vocab_size=1000)


@pytest.mark.parametrize(
    ("prompt", "fields", "named", "kind"),
    [
        ([], {}, "prompt", InvalidRequest),
        ([1000], {}, "prompt", InvalidRequest),
        ([-1], {}, "prompt", InvalidRequest),
        ([10**30], {}, "prompt", InvalidRequest),
        ([True], {}, "prompt", InvalidRequest),
        ([1.0], {}, "prompt", InvalidRequest),
        (["a"], {}, "prompt", InvalidRequest),
        ([None], {}, "prompt", InvalidRequest),
        ([1] * 100, {}, "prompt", ContextLengthExceeded),
        ([1] * 100_000, {"max_tokens": 1}, "prompt", ContextLengthExceeded),
        ([1] * 10, {"max_tokens": 91}, "max_tokens", ContextLengthExceeded),
        ([1] * 10, {"max_tokens": 100_000_000}, "max_tokens", ContextLengthExceeded),
        ([1] * 10, {"min_tokens": 91}, "min_tokens", ContextLengthExceeded),
        ([1], {"stop_token_ids": [1000]}, "stop_token_ids", InvalidRequest),
        ([1], {"logit_bias": {1000: 1.0}}, "logit_bias", InvalidRequest),
        ([1], {"logit_bias": {51_000: 1.0}}, "logit_bias", InvalidRequest),
    ],
)
def test_refused(prompt, fields, named, kind):
    with pytest.raises(InvalidRequest) as caught:
        validate_request(prompt, SamplingParams(**fields), LIMITS)
    assert type(caught.value) is kind
    assert caught.value.field == named


@pytest.mark.parametrize(
    ("length", "fields", "max_tokens"),
    [
        (10, {}, 90),
        (99, {}, 1),
        (10, {"max_tokens": 90}, 90),
        (10, {"max_tokens": 5}, 5),
        (10, {"max_tokens": 0, "prompt_logprobs": 1}, 1),
        (10, {"min_tokens": 90, "stop_token_ids": [999], "logit_bias": {0: 1, 999: 1}}, 90),
    ],
)
def test_resolved_max_tokens(length, fields, max_tokens):
    assert validate_request([0, 999, *[1] * (length - 2)], SamplingParams(**fields), LIMITS) == max_tokens


def test_params_of_another_type():
    with pytest.raises(InvalidRequest, match="params"):
        validate_request([1], {"max_tokens": 4}, LIMITS)


@pytest.mark.parametrize(
    "prompt", ["", 5, None, b"bytes", {"a": 1}, np.zeros((2, 2), np.int64), np.ones(3), {1, 2}]
)
def test_prompts_of_a_wrong_form(prompt, tokenizer):
    with pytest.raises(InvalidRequest) as caught:
        to_tokens(tokenizer, prompt)
    assert caught.value.field == "prompt"


def test_surrogates_are_no_text(tokenizer):
    with pytest.raises(InvalidRequest, match="Unicode"):
        to_tokens(tokenizer, "a\ud800b")


def test_forms_of_one_prompt_agree(tokenizer):
    text = "Hello, world"
    ids = tokenizer.encode(text)
    assert to_tokens(tokenizer, text) == TokensPrompt(ids, text)
    assert to_tokens(tokenizer, ids).token_ids == ids
    assert to_tokens(tokenizer, tuple(ids)).token_ids == ids
    assert to_tokens(tokenizer, np.array(ids, np.int32)).token_ids == ids
    assert to_tokens(tokenizer, TokensPrompt(np.array(ids), "x")) == TokensPrompt(ids, "x")


def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        to_tokens(None, "text")
