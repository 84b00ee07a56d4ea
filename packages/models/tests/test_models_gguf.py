"""GGUF files written with the `gguf` package from transformers models: same logits, and typed faults."""

import struct

import gguf
import numpy as np
import pytest
import torch
from llm_models import (
    ConfigError,
    CorruptFile,
    MissingTensor,
    ModelError,
    UnexpectedTensor,
    UnknownArchitecture,
    UnknownQuantization,
    UnsupportedConfig,
    WrongShape,
    load_model,
    resolve,
)

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
QUERY = "blk.1.attn_q.weight"


def gguf_name(name):
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, rest = module.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def interleaved(weight, heads):
    """The row order that llama.cpp's converter gives query and key of llama models."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model, architecture):
    config, found = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(
                values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            )
        found[gguf_name(name)] = values
    return found


def write(path, model, architecture, *, quantization="F32", keys=None, tensors=None):
    """Writes a model; `keys` and `tensors` override, `None` values remove."""
    config = model.config
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "attention.key_length": model.model.layers[0].self_attn.head_dim,
    } | (keys or {})
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "c"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.0, 2.0])
    for key, value in metadata.items():
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 3)
    for name, values in (tensors_of(model, architecture) | (tensors or {})).items():
        if values is None:
            continue
        kind = gguf.GGMLQuantizationType["F32" if values.ndim == 1 else quantization]
        packed = values if kind == gguf.GGMLQuantizationType.F32 else gguf.quantize(values, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path):
    return load_model(resolve(str(path)), dtype=torch.float32, device="cpu")


def assert_same_logits(decoder, reference, paged_run, tolerance=1e-4):
    ids = torch.randint(4, 96, (33,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    ours = paged_run(decoder).step({"a": ids})["a"]
    assert (ours - expected).abs().max() / expected.abs().max() <= tolerance


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama", "llama"),
        ("llama-mha-tied", "llama"),
        ("llama-biases", "llama"),
        ("llama-wide-heads-gelu", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen3-tied", "qwen3"),
    ],
)
def test_same_logits_as_the_model_it_was_written_from(
    case, architecture, make_reference, tmp_path, paged_run
):
    reference = make_reference(case, hidden_act="silu")
    decoder = load(write(tmp_path / "model.gguf", reference, architecture))
    assert_same_logits(decoder, reference, paged_run)


def test_mistral_files_call_themselves_llama(make_reference, tmp_path, paged_run):
    reference = make_reference("mistral-window")
    path = write(tmp_path / "m.gguf", reference, "llama", keys={"attention.sliding_window": 6})
    assert resolve(str(path)).config["architectures"] == ["MistralForCausalLM"]
    assert_same_logits(load(path), reference, paged_run)


def test_llama3_scaling_rides_in_a_tensor(make_reference, tmp_path, paged_run):
    reference = make_reference("llama-llama3-rope")
    rotary = reference.model.rotary_emb
    plain = 1.0 / 100.0 ** (torch.arange(0, 8, 2) / 8)
    factors = (plain / rotary.inv_freq).numpy().astype(np.float32)
    assert not np.allclose(factors, 1)
    path = write(tmp_path / "m.gguf", reference, "llama", tensors={"rope_freqs.weight": factors})
    assert_same_logits(load(path), reference, paged_run)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("llama-linear-rope", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}),
        (
            "llama-yarn-rope",
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
            },
        ),
    ],
)
def test_rope_scaling_in_the_metadata(case, keys, make_reference, tmp_path, paged_run):
    reference = make_reference(case)
    assert_same_logits(load(write(tmp_path / "m.gguf", reference, "llama", keys=keys)), reference, paged_run)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_files_give_the_dequantized_weights(quantization, make_reference, tmp_path):
    reference = make_reference("llama", intermediate_size=64)
    state = load(write(tmp_path / "m.gguf", reference, "llama", quantization=quantization)).state_dict()
    kind = gguf.GGMLQuantizationType[quantization]
    theirs = reference.state_dict()

    def expected(name):
        return torch.from_numpy(gguf.dequantize(gguf.quantize(theirs[name].numpy(), kind), kind).copy())

    prefix = "model.layers.1.self_attn."
    qkv = torch.cat([expected(f"{prefix}{part}_proj.weight") for part in "qkv"])
    assert torch.equal(state["layers.1.attention.input.weight"], qkv)
    assert torch.equal(state["layers.0.mlp.down.weight"], expected("model.layers.0.mlp.down_proj.weight"))
    assert torch.equal(state["embedding.weight"], expected("model.embed_tokens.weight"))


def test_large_tensors_are_decoded_in_pieces(make_reference, tmp_path, monkeypatch):
    path = write(
        tmp_path / "m.gguf", make_reference("llama", intermediate_size=64), "llama", quantization="Q8_0"
    )
    whole = load(path).state_dict()
    monkeypatch.setattr("llm_models.loading.gguf_models._CHUNK_VALUES", 96)
    pieces = load(path).state_dict()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_end_of_turn_joins_end_of_text(make_reference, tmp_path):
    path = write(tmp_path / "m.gguf", make_reference("llama"), "llama")
    assert resolve(str(path)).generation_config == {"eos_token_id": [2, 3]}


# Faults.


def fails(kind, path, *mentions):
    with pytest.raises(ModelError) as caught:
        load(path)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    for mention in mentions:
        assert mention in message


@pytest.fixture
def reference(make_reference):
    return make_reference("llama")


@pytest.fixture
def path(reference, tmp_path):
    return write(tmp_path / "model.gguf", reference, "llama")


@pytest.mark.parametrize("magic", [b"GGML", b"\0\0\0\0", b"PK\3\4"])
def test_wrong_magic(path, magic):
    path.write_bytes(magic + path.read_bytes()[4:])
    fails(CorruptFile, path, "model.gguf", "no GGUF file")


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_unknown_version(path, version):
    content = path.read_bytes()
    path.write_bytes(content[:4] + struct.pack("<I", version) + content[8:])
    fails(CorruptFile, path, "model.gguf", "version")


def test_a_truncated_tensor_is_named(path):
    path.write_bytes(path.read_bytes()[:-2000])
    fails(CorruptFile, path, "model.gguf", "tensor", "truncated")


def test_truncation_anywhere_is_typed(path):
    content = path.read_bytes()
    for size in [*range(0, 1500, 37), 3000, len(content) // 2, len(content) - 33]:
        path.write_bytes(content[:size])
        fails(CorruptFile, path, "model.gguf")


def test_flipped_header_bytes_never_crash(path):
    """Random damage of the header ends in a typed error or loads; nothing else."""
    content, rng = path.read_bytes(), np.random.default_rng(0)
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(4, 2500)] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            resolve(str(path))
            outcomes.add("fine")
        except ModelError as error:
            outcomes.add(type(error).__name__)
    assert len(outcomes) > 2


@pytest.mark.parametrize(("kind", "label"), [(10, "Q2_K"), (39, "MXFP4"), (999, "999")])
def test_unknown_quantization_names_the_tensor(path, kind, label):
    content = bytearray(path.read_bytes())
    name = QUERY.encode()
    field = content.index(name) + len(name) + 4 + 2 * 8
    content[field : field + 4] = struct.pack("<I", kind)
    path.write_bytes(content)
    fails(UnknownQuantization, path, QUERY, label, "model.gguf")


def test_missing_tensor(reference, tmp_path):
    path = write(tmp_path / "m.gguf", reference, "llama", tensors={QUERY: None})
    fails(MissingTensor, path, "model.layers.1.self_attn.q_proj.weight", "m.gguf")


def test_unexpected_tensor(reference, tmp_path):
    extra = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    path = write(tmp_path / "m.gguf", reference, "llama", tensors=extra)
    fails(UnexpectedTensor, path, "blk.0.attn_sinks.weight", "m.gguf")


@pytest.mark.parametrize("shape", [(16, 32), (31, 32), (32, 16, 2), (32,)])
def test_wrong_shape(reference, tmp_path, shape):
    path = write(tmp_path / "m.gguf", reference, "llama", tensors={QUERY: np.ones(shape, np.float32)})
    fails(WrongShape, path, "q_proj", str(list(shape)), "m.gguf")


@pytest.mark.parametrize(
    ("keys", "kind", "field"),
    [
        ({"attention.head_count": None}, ConfigError, "llama.attention.head_count"),
        ({"attention.head_count": 0}, ConfigError, "llama.attention.head_count"),
        ({"attention.head_count": "4"}, ConfigError, "llama.attention.head_count"),
        ({"attention.head_count_kv": [2, 2, 4]}, UnsupportedConfig, "llama.attention.head_count_kv"),
        ({"attention.layer_norm_rms_epsilon": None}, ConfigError, "llama.attention.layer_norm_rms_epsilon"),
        ({"expert_count": 8, "expert_used_count": 2}, ConfigError, "num_experts"),
        ({"rope.scaling.type": "ntk", "rope.scaling.factor": 2.0}, UnsupportedConfig, "ntk"),
    ],
)
def test_bad_metadata_names_the_key(reference, tmp_path, keys, kind, field):
    fails(kind, write(tmp_path / "m.gguf", reference, "llama", keys=keys), field)


def test_unknown_architecture(reference, tmp_path):
    path = write(tmp_path / "m.gguf", reference, "mamba")
    fails(UnknownArchitecture, path, "mamba", "llama, qwen2, qwen3")
