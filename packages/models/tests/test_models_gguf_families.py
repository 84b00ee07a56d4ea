"""GGUF files of each family, written from transformers models with the names of the `gguf` package."""

import json
import re
import warnings

import gguf
import numpy as np
import pytest
import torch
import transformers
from llm_models import ConfigError, known_architectures, load_model, resolve
from llm_models.loading.gguf_models import GGUFSource
from safetensors.torch import load_file

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
GEMMA = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
MIXTURE = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}  # fmt: skip
PHI3 = {"tie_word_embeddings": False, "sliding_window": 8}

# name: (GGUF architecture, transformers model, what differs from SIZES, further keys)
FAMILIES = {
    "gemma": ("gemma", "Gemma", GEMMA, {}),
    "gemma2": ("gemma2", "Gemma2", GEMMA | {"sliding_window": 8, "query_pre_attn_scalar": 16}, {
        "attention.sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("gemma3", "Gemma3", GEMMA | {
        "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
        {"attention.sliding_window": 8, "rope.freq_base": 1000000.0}),
    "phi3": ("phi3", "Phi3", PHI3, {"attention.sliding_window": 8}),
    "phi3-long": ("phi3", "Phi3", PHI3 | {
        "sliding_window": None, "rope_parameters": LONG, "original_max_position_embeddings": 32}, {
        "rope.scaling.original_context_length": 32}),
    "mixtral": ("llama", "Mixtral", {"num_local_experts": 4, "sliding_window": None}, {
        "expert_count": 4, "expert_used_count": 2, "rope.freq_base": 1000000.0}),
    "qwen2moe": ("qwen2moe", "Qwen2Moe", MIXTURE | {"shared_expert_intermediate_size": 40}, {
        "expert_count": 4, "expert_used_count": 2}),
    "qwen3moe": ("qwen3moe", "Qwen3Moe", MIXTURE | {"head_dim": 16, "norm_topk_prob": True}, {
        "expert_count": 4, "expert_used_count": 2, "attention.key_length": 16}),
}  # fmt: skip
STACKED = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
           "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}  # fmt: skip


def reference_model(name):
    _, kind, differs, _ = FAMILIES[name]
    config_class = {"Gemma3": "Gemma3Text"}.get(kind, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = getattr(transformers, f"{config_class}Config")(**(SIZES | differs))
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def to_gguf(name, checkpoint, config):
    """What llama.cpp's converter makes of a checkpoint: its names, order, offsets and stacks."""
    architecture = FAMILIES[name][0]
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names, found, experts = gguf.get_tensor_name_map(number, config.num_hidden_layers), {}, {}
    for hf, tensor in checkpoint.items():
        values = tensor.float().numpy()
        expert = re.fullmatch(r"model\.layers\.(\d+)\.\S+\.experts\.(\d+)\.(\w+)\.weight", hf)
        if expert:
            stack = f"blk.{expert[1]}.{STACKED[expert[3]]}.weight"
            experts.setdefault(stack, {})[int(expert[2])] = values
            continue
        theirs = names.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, hf
        if architecture == "llama" and ("q_proj" in hf or "k_proj" in hf):
            heads = config.num_attention_heads if "q_proj" in hf else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        if architecture.startswith("gemma") and hf.endswith("norm.weight"):
            values = values + 1
        if "shared_expert_gate" in hf:
            values = values.reshape(-1)
        found[theirs] = values
    stacks = {stack: np.stack([held[e] for e in sorted(held)]) for stack, held in experts.items()}
    return found | stacks


def write(path, name, model, tensors):
    architecture, _, _, further = FAMILIES[name]
    config = model.config
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": 10000.0,
    }
    if architecture.startswith("gemma"):
        keys["attention.key_length"] = config.head_dim
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (keys | further).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        if isinstance(value, list):
            add = writer.add_array
        add(f"{architecture}.{key}", value)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def checkpoint_of(model, folder):
    """The tensors as the hub holds them, and the config."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    if model.config.model_type.startswith("qwen"):
        # Qwen's own configs say num_experts; transformers 5 writes num_local_experts.
        config.setdefault("num_experts", config.get("num_local_experts"))
        (folder / "config.json").write_text(json.dumps(config))
    return load_file(folder / "model.safetensors"), config


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """A model, its checkpoint and its GGUF file."""
    model = reference_model(request.param)
    checkpoint, config = checkpoint_of(model, tmp_path / "hub")
    tensors = to_gguf(request.param, checkpoint, model.config)
    if request.param == "phi3-long":
        tensors["rope_factors_long.weight"] = np.array(LONG["long_factor"], np.float32)
        tensors["rope_factors_short.weight"] = np.array(LONG["short_factor"], np.float32)
    path = write(tmp_path / "model.gguf", request.param, model, tensors)
    return request.param, model, checkpoint, config, path


def test_tensors_have_the_names_and_values_of_the_checkpoint(family):
    _, _, checkpoint, _, path = family
    source = GGUFSource(path)
    assert source.tensors.keys() == checkpoint.keys()
    for hf, expected in checkpoint.items():
        assert source.tensors[hf].shape == tuple(expected.shape)
        out = torch.empty(expected.shape)
        source.copy_into(hf, out)
        # Adding 1 and taking it off again rounds.
        torch.testing.assert_close(out, expected, atol=2e-7, rtol=0)
        assert torch.equal(source.read(hf), out)
        view = torch.empty_like(out[:1])
        source.copy_view(hf, source.read(hf)[:1], view)
        assert torch.equal(view, out[:1])


def test_configs_say_the_same(family):
    _, _, _, theirs, path = family
    ours = resolve(str(path)).config
    assert ours["architectures"] == theirs["architectures"]
    assert ours["model_type"] == theirs["model_type"]
    assert transformers.AutoConfig.for_model(**ours).model_type == theirs["model_type"]
    for key in set(SIZES) - {"initializer_range", "attn_implementation", "bos_token_id", "pad_token_id"}:
        assert ours[key] == theirs[key], key
    optional = ("head_dim", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping", "num_experts",
        "final_logit_softcapping", "num_local_experts", "num_experts_per_tok", "norm_topk_prob",
        "moe_intermediate_size", "shared_expert_intermediate_size", "tie_word_embeddings")  # fmt: skip
    for key in optional:
        is_default = key == "layer_types" and set(theirs.get(key, ())) == {"full_attention"}
        if theirs.get(key) is not None and not is_default:
            assert ours[key] == theirs[key], key


def test_same_logits(family, paged_run, tmp_path):
    _, model, _, config, path = family
    if config["architectures"][0] not in known_architectures():
        pytest.skip("the architecture has no spec yet")
    ids = torch.randint(4, 96, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    ours, hub = (
        paged_run(load_model(resolve(str(files)), dtype=torch.float32, device="cpu")).step({"a": ids})["a"]
        for files in (path, tmp_path / "hub")
    )
    assert (ours - expected).abs().max() / expected.abs().max() <= 1e-4
    assert (ours - hub).abs().max() / hub.abs().max() <= 1e-5


def change(tmp_path, name, keys, tensors=None):
    """A file of a family with other keys."""
    model = reference_model(name)
    checkpoint, _ = checkpoint_of(model, tmp_path / "hub")
    made = to_gguf(name, checkpoint, model.config) | (tensors or {})
    architecture, kind, differs, further = FAMILIES[name]
    path = tmp_path / "changed.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, name, (architecture, kind, differs, further | keys))
        write(path, name, model, made)
    return path


def test_a_list_says_which_gemma3_layers_have_the_window(tmp_path):
    flags = [True, False, True, True, False, True, False]
    path = change(tmp_path, "gemma3", {"attention.sliding_window_pattern": flags})
    kinds = resolve(str(path)).config["layer_types"]
    assert [kind == "sliding_attention" for kind in kinds] == flags


def test_a_list_of_another_length(tmp_path):
    path = change(tmp_path, "gemma3", {"attention.sliding_window_pattern": [True, False]})
    with pytest.raises(ConfigError, match="sliding_window_pattern"):
        resolve(str(path))


def test_the_local_rope_base_of_newer_gemma3_files(tmp_path):
    path = change(tmp_path, "gemma3", {"rope.freq_base_swa": 500.0})
    assert resolve(str(path)).config["rope_local_base_freq"] == 500.0


def test_long_factors_without_short_ones(tmp_path):
    path = change(tmp_path, "phi3", {}, {"rope_factors_long.weight": np.ones(4, np.float32)})
    with pytest.raises(ConfigError, match="rope_factors_short"):
        resolve(str(path))


def test_another_number_of_experts_than_the_tensors_have(tmp_path):
    path = change(tmp_path, "qwen3moe", {"expert_count": 5})
    with pytest.raises(ConfigError, match="expert_count"):
        resolve(str(path))


def test_sampling_defaults_of_the_file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in {"temp": 0.6, "top_p": 0.95}.items():
        writer.add_float32(f"general.sampling.{key}", value)
    writer.add_int32("general.sampling.top_k", 20)
    for key in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 8)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = resolve(str(tmp_path / "m.gguf")).generation_config
    assert found == {
        "temperature": pytest.approx(0.6),
        "top_p": pytest.approx(0.95),
        "top_k": 20,
    }
