"""The sampling defaults of generation_config.json: read, refused, and used where a caller states nothing."""

import json
import logging

import pytest
import tokenizers
import torch
import transformers
from llm_engine import LLM, SamplingParams
from llm_engine.generation_defaults import sampling_defaults


def test_stated_values_are_taken_and_others_left_out():
    given = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": None,
        "do_sample": True,
        "max_length": 5,
        "min_p": 0.05,
    }
    assert sampling_defaults(given) == {"temperature": 0.6, "top_k": 20, "min_p": 0.05}


@pytest.mark.parametrize("value", [-1.0, "warm", float("nan")])
def test_what_cannot_be_sampled_with_is_left_out_with_a_warning(value, caplog):
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults({"temperature": value, "top_p": 0.9}) == {"top_p": 0.9}
    assert "temperature" in caplog.text


@pytest.mark.timeout(200)
def test_they_hold_where_a_caller_states_nothing(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(64)}, unk_token="w0")
    tokenizers.Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    stated = {"temperature": 0.0, "top_k": 3, "eos_token_id": 63}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    llm = LLM(str(tmp_path), device="cpu", threads=1, progress=False)
    try:
        assert llm.default_sampling_params == SamplingParams(temperature=0.0, top_k=3)
        greedy = SamplingParams(temperature=0.0)
        silent, asked = (
            llm.generate([[5, 6, 7]], params, progress=False)[0].outputs[0] for params in (None, greedy)
        )
    finally:
        llm.shutdown()
    assert silent.token_ids == asked.token_ids
