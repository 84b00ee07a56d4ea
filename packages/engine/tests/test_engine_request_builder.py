"""What a request tells the core besides its tokens."""

import pytest
from llm_engine.core.messages import CoreInfo
from llm_engine.errors import InvalidRequest
from llm_engine.prompts import TokensPrompt
from llm_engine.request_builder import RequestBuilder
from llm_engine.sampling_params import SamplingParams

INFO = CoreInfo(
    tokenizer_path=None,
    max_model_len=64,
    vocab_size=100,
    eos_token_ids=[1],
    num_blocks=8,
    block_size=16,
    device="cpu",
    dtype="float32",
    overlap=False,
    prefix_caching=True,
)


def build(**options):
    params = SamplingParams(max_tokens=4, detokenize=False, n=2)
    builder = RequestBuilder(None, INFO, seed=0)
    live = builder.build(TokensPrompt([2, 3]), params, "r", 3, lambda delta: None, **options)
    return [choice.message for choice in live.choices]


def test_every_choice_carries_tenant_and_salt():
    messages = build(tenant="acme", cache_salt=b"key")
    assert [(m.tenant, m.salt, m.priority) for m in messages] == [("acme", b"key", 3)] * 2
    assert [(m.tenant, m.salt) for m in build()] == [("", None)] * 2


@pytest.mark.parametrize(
    ("options", "field"), [({"tenant": 5}, "tenant"), ({"cache_salt": "x"}, "cache_salt")]
)
def test_other_types_are_refused(options, field):
    with pytest.raises(InvalidRequest) as caught:
        build(**options)
    assert caught.value.field == field
