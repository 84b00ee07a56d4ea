"""Scales of a cache in e4m3 from checkpoints under all names, against a float cache rounded alike."""

import json

import pytest
import torch
from llm_kernels import ops
from llm_models import UnsupportedConfig, WrongScale, WrongShape, load_model, resolve
from llm_models.blocks import attention as attention_block
from llm_models.caches import stored_as
from llm_models.quantization import read_scheme
from safetensors.torch import load_file, save_file

E4M3 = torch.float8_e4m3fn
SIZES = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = 2
PARENT = "model.layers.{}.self_attn."
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


@pytest.fixture
def folder(make_reference, tmp_path):
    make_reference("qwen3", num_key_value_heads=HEADS, **SIZES).save_pretrained(tmp_path)
    return tmp_path


def add(folder, tensors):
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path)


def configure(folder, section):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": section}))


def load(folder):
    return load_model(resolve(str(folder)), dtype=torch.float32, device="cpu")


def run(paged_run, model):
    steps = paged_run(model)
    return torch.cat([steps.step({"a": [5, 7, 11, 13, 2, 9]})["a"], steps.step({"a": [3]})["a"]])


def run_narrow(paged_run, folder):
    model = load(folder)
    model.caches = stored_as(model.caches, E4M3)
    return run(paged_run, model)


def run_rounded(paged_run, folder, monkeypatch, scales):
    """With float caches whose numbers are those that e4m3 and the scales ([K] or one) can hold, by layer."""
    seen = []

    class Rounding:
        def __getattr__(self, name):
            return getattr(ops, name)

        def rotate_write_kv(self, query, key, value, key_cache, value_cache, *arguments, **options):
            options.pop("key_scale"), options.pop("value_scale")
            ops.rotate_write_kv(query, key, value, key_cache, value_cache, *arguments, **options)
            if key_cache.data_ptr() not in seen:
                seen.append(key_cache.data_ptr())
            for cache, scale in zip(
                (key_cache, value_cache), scales[seen.index(key_cache.data_ptr())], strict=True
            ):
                wide = torch.as_tensor(scale, dtype=torch.float32).reshape(-1, 1)
                cache.copy_((cache / wide).clamp(-448, 448).to(E4M3).float() * wide)

    with monkeypatch.context() as patch:
        patch.setattr(attention_block, "ops", Rounding())
        found = run(paged_run, load(folder))
    assert len(seen) == 2
    return found


NAMES = {
    "compressed-tensors": ("k_scale", "v_scale"),
    "vllm": ("attn.k_scale", "attn.v_scale"),
    "modelopt": ("k_proj.k_scale", "v_proj.v_scale"),
    "quark": ("k_proj.output_scale", "v_proj.output_scale"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (HEADS,), (HEADS, 1, 1)])
def test_a_scaled_cache_equals_a_rounded_one(folder, paged_run, monkeypatch, names, shape):
    scales = [
        [torch.tensor([0.011, 0.02]) * (layer + 1), torch.tensor([0.013, 0.005]) * (layer + 1)]
        for layer in range(2)
    ]
    if HEADS not in shape:
        scales = [[side[0] for side in layer] for layer in scales]
    add(
        folder,
        {
            PARENT.format(layer) + name: scale.reshape(shape).clone()
            for layer in range(2)
            for name, scale in zip(names, scales[layer], strict=True)
        },
    )
    expected = run_rounded(paged_run, folder, monkeypatch, scales)
    torch.testing.assert_close(run_narrow(paged_run, folder), expected, rtol=1e-5, atol=1e-5)
    wide = run(paged_run, load(folder))
    assert (wide - expected).abs().max() > 1e-4


def test_what_is_missing_is_one(folder, paged_run, monkeypatch):
    add(folder, {PARENT.format(1) + "k_scale": torch.tensor(0.02)})
    parameters = dict(load(folder).named_parameters())
    assert "layers.0.attention.key_cache_scale" not in parameters
    assert parameters["layers.1.attention.key_cache_scale"].tolist() == pytest.approx([0.02, 0.02])
    assert parameters["layers.1.attention.value_cache_scale"].tolist() == [1.0, 1.0]
    expected = run_rounded(paged_run, folder, monkeypatch, [(1.0, 1.0), (0.02, 1.0)])
    torch.testing.assert_close(run_narrow(paged_run, folder), expected, rtol=1e-5, atol=1e-5)


def test_one_scale_serves_both(folder):
    add(folder, {PARENT.format(0) + "kv_scale": torch.tensor([0.5])})
    parameters = dict(load(folder).named_parameters())
    for side in ("key", "value"):
        assert parameters[f"layers.0.attention.{side}_cache_scale"].tolist() == [0.5, 0.5]


def test_a_float_cache_does_without(folder, paged_run):
    expected = run(paged_run, load(folder))
    add(folder, {PARENT.format(0) + "k_scale": torch.tensor(0.02)})
    assert torch.equal(run(paged_run, load(folder)), expected)


@pytest.mark.parametrize("shape", [(3,), (HEADS, 2), (0,)])
def test_misshapen_scales_are_named(folder, shape):
    add(folder, {PARENT.format(1) + "v_scale": torch.ones(shape)})
    with pytest.raises(WrongShape, match=r"layers\.1\.self_attn\.v_scale") as caught:
        load(folder)
    assert caught.value.tensor == PARENT.format(1) + "v_scale"


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_none_are_named(folder, number):
    add(folder, {PARENT.format(0) + "k_scale": torch.tensor([0.5, number])})
    with pytest.raises(WrongScale, match=r"layers\.0\.self_attn\.k_scale"):
        load(folder)


def test_a_rank_takes_its_own_heads(folder):
    from llm_models.decoder import decoder_parameters
    from llm_models.load import _load
    from llm_models.parameters import Shard
    from llm_models.registry import spec_for

    add(folder, {PARENT.format(0) + "k_scale": torch.tensor([0.5, 0.25])})
    files = resolve(str(folder))
    spec = spec_for(files.config)
    for rank in range(2):
        wanted = decoder_parameters(spec, Shard(rank, 2))
        found = _load(files, spec, wanted, torch.float32, "cpu", "auto", None, progress=False)
        assert found["layers.0.attention.key_cache_scale"].tolist() == [[0.5], [0.25]][rank]


def test_a_config_may_quantize_the_cache_alone(folder):
    add(folder, {PARENT.format(0) + "k_scale": torch.tensor(0.5)})
    section = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": SCHEME}
    configure(folder, section)
    parameters = dict(load(folder).named_parameters())
    assert parameters["layers.0.attention.key_cache_scale"].tolist() == [0.5, 0.5]
    assert read_scheme({"quantization_config": section}) is None


def test_scales_of_other_formats_are_left(folder):
    group = {
        "targets": ["Linear"],
        "weights": SCHEME,
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    }
    section = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": SCHEME | {"type": "int"},
    }
    add(folder, {PARENT.format(0) + "k_scale": torch.tensor(0.5)})
    configure(folder, section)
    assert not [name for name, _ in load(folder).named_parameters() if "cache_scale" in name]
    configure(folder, section | {"config_groups": {}, "format": "int-quantized"})
    with pytest.raises(UnsupportedConfig, match="format"):
        load(folder)
