"""Experts in e4m3, out of checkpoints, at load and random: equal to what the numbers stand for."""

import json

import pytest
import torch
from llm_models import load_model, resolve, spec_for
from llm_models.decoder import decoder_parameters
from llm_models.load import _load
from llm_models.loading.e4m3 import E4M3, quantize, scale_shape
from llm_models.parameters import Shard
from llm_models.quantization import read_scheme
from safetensors.torch import load_file, save_file

TOKENS = [5, 7, 11, 13, 17, 19, 23, 2, 1]
BLOCK = 128


@pytest.fixture
def tiny():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=96, hidden_size=256, intermediate_size=256, moe_intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, head_dim=128,
        norm_topk_prob=True, max_position_embeddings=128, initializer_range=0.1, decoder_sparse_step=1,
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config).eval()


def load(folder, **options):
    return load_model(resolve(str(folder)), device="cpu", dtype=torch.float32, **options)


def logits(paged_run, model):
    return paged_run(model).step({"a": TOKENS[:6]})["a"], paged_run(model).step({"a": TOKENS})["a"]


def is_expert(name):
    return ".experts." in name


def narrowed(weight, scales):
    """e4m3 values, their scales, and what they stand for."""
    outputs, inputs = weight.shape
    values = torch.empty(weight.shape, dtype=E4M3)
    scale = torch.empty(scale_shape(scales, outputs, inputs))
    quantize(weight, scales, values, scale)
    if scales == "block":
        wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:outputs, :inputs]
    else:
        wide = scale[:, None]
    return values, scale, values.float() * wide


def write(model, folder, scales):
    """A checkpoint whose experts are e4m3, and one that holds what they stand for."""
    model.save_pretrained(folder / "narrow")
    model.save_pretrained(folder / "wide")
    for kind in ("narrow", "wide"):
        path = folder / kind / "model.safetensors"
        tensors = load_file(path)
        for name in [name for name in tensors if is_expert(name)]:
            values, scale, wide = narrowed(tensors[name].float(), scales)
            tensors[name] = values if kind == "narrow" else wide
            if kind == "narrow":
                leaf = "weight_scale_inv" if scales == "block" else "weight_scale"
                tensors[name.removesuffix("weight") + leaf] = scale
        save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "narrow" / "config.json").read_text())
    section = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    if scales == "channel":
        weights = {"type": "float", "num_bits": 8, "strategy": "channel", "dynamic": False}
        inputs = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
        group = {"weights": weights, "input_activations": inputs}
        section = {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": group},
        }
    config["quantization_config"] = section
    (folder / "narrow" / "config.json").write_text(json.dumps(config))
    return folder / "narrow", folder / "wide"


@pytest.mark.parametrize("scales", ["channel", "block"])
def test_narrow_experts_equal_the_widened_model(tiny, tmp_path, paged_run, scales):
    narrow, wide = write(tiny, tmp_path, scales)
    model = load(narrow)
    parameters = dict(model.named_parameters())
    for side in ("input", "down"):
        assert parameters[f"layers.1.mlp.experts.{side}.weight"].dtype == E4M3
        scale = parameters[f"layers.1.mlp.experts.{side}.weight_scale"]
        assert scale.dim() == (3 if scales == "block" else 2)
    assert parameters["layers.1.mlp.router.weight"].dtype == torch.float32
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(wide)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_experts_quantized_at_load(tiny, tmp_path):
    tiny.save_pretrained(tmp_path)
    parameters = dict(load(tmp_path, quantization="fp8").named_parameters())
    stored = load_file(tmp_path / "model.safetensors")
    for expert in range(4):
        prefix = f"model.layers.1.mlp.experts.{expert}."
        for side, names in (("input", ("gate_proj", "up_proj")), ("down", ("down_proj",))):
            weight = torch.cat([stored[f"{prefix}{name}.weight"] for name in names])
            values, scale, _ = narrowed(weight, "channel")
            found = parameters[f"layers.1.mlp.experts.{side}.weight"][expert]
            assert torch.equal(found.float(), values.float())
            assert torch.equal(parameters[f"layers.1.mlp.experts.{side}.weight_scale"][expert], scale)


def test_random_experts_are_quantized_too(tiny, tmp_path, paged_run):
    tiny.save_pretrained(tmp_path)
    model = load(tmp_path, quantization="fp8", load_format="dummy")
    parameters = dict(model.named_parameters())
    weight = parameters["layers.0.mlp.experts.input.weight"]
    assert weight.dtype == E4M3
    wide = weight.float() * parameters["layers.0.mlp.experts.input.weight_scale"][..., None]
    assert wide.std().item() == pytest.approx(0.02, rel=0.05)
    assert logits(paged_run, model)[1].isfinite().all()


def test_ranks_hold_the_narrow_experts_of_one(tiny, tmp_path):
    narrow, _ = write(tiny, tmp_path, "channel")

    def down(shard):
        files = resolve(str(narrow))
        spec, scheme = spec_for(files.config), read_scheme(files.config)
        wanted = decoder_parameters(spec, shard)
        parameters = _load(files, spec, wanted, torch.float32, "cpu", "auto", scheme, progress=False)
        return parameters["layers.0.mlp.experts.down.weight"].float()

    ranks = [down(Shard(rank, 2)) for rank in range(2)]
    assert torch.equal(torch.cat(ranks, dim=2), down(Shard()))
