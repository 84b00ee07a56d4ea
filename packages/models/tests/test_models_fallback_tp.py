"""Owns the parity of the transformers fallback over two ranks."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from llm_distributed import DeviceMesh
from llm_models.errors import ShardingError
from llm_models.fallback.probe_steps import LENGTHS
from llm_models.fallback.sharding import shard_by_plan

SHAPE = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
CASES = {
    "LlamaForCausalLM": (SHAPE | {"attention_bias": True}, 1),
    "Phi3ForCausalLM": (SHAPE, 2),
    "Qwen3MoeForCausalLM": (SHAPE | MOE, 1),
}


def build(name: str, fields: dict):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    found = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = found(found.config_class(**fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def test_two_ranks_equal_transformers(tmp_path):
    references = {name: build(name, fields) for name, (fields, _) in CASES.items()}
    for name, reference in references.items():
        reference.save_pretrained(tmp_path / name)
    script = Path(__file__).with_name("fallback_rank.py")
    ranks = [subprocess.Popen([sys.executable, script, str(rank), "2", tmp_path]) for rank in range(2)]
    assert [process.wait(timeout=400) for process in ranks] == [0, 0]
    for name, reference in references.items():
        found = torch.load(tmp_path / name / "found.pt")
        assert found["kind"] == "paged"
        assert found["heads"] == CASES[name][1]
        for row, count in LENGTHS.items():
            with torch.no_grad():
                expected = reference(input_ids=torch.arange(3, 3 + count)[None]).logits[0]
            assert (found["logits"][row] - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_heads_that_do_not_divide_are_named():
    model = build("LlamaForCausalLM", SHAPE | {"num_attention_heads": 2, "num_key_value_heads": 1})
    mesh = DeviceMesh({"tp": 2}, 0, {"tp": object()})
    with pytest.raises(ShardingError, match="num_key_value_heads"):
        shard_by_plan(model, mesh)


def test_a_class_without_a_plan_is_named():
    model = build("GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 32, "n_layer": 1, "n_head": 4})
    with pytest.raises(ShardingError, match="GPT2LMHeadModel"):
        shard_by_plan(model, DeviceMesh({"tp": 2}, 0, {"tp": object()}))
