"""Owns synthesising Hugging Face configs from GGUF metadata; knows nothing about weights or the runtime."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llm_models.errors import ConfigError
from llm_models.loading.gguf_files import GGUFFile
from llm_models.loading.gguf_keys import Keys

_EMBEDDING = "token_embd.weight"
# Not in the files: what all Gemma 3 models have, and the layers of the models that scale otherwise.
_GEMMA3_PATTERN, _GEMMA3_LOCAL_THETA = 6, 10000.0
_ROUNDING = 1e-5  # Of a float32 in the metadata.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class _Header:
    """What a family's own config keys are taken from; `config` holds the keys that all families share."""

    file: GGUFFile
    keys: Keys
    config: Mapping[str, Any]


def config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """Synthesises a Hugging Face config from a file's metadata and tensors.

    There is no `dtype`: the weights are decoded to whatever the caller asks for.

    Raises:
        ConfigError: A metadata key is missing or makes no sense.
        UnknownArchitecture: The file's architecture is not one of those read here.
        UnsupportedConfig: A feature of the file is not supported.
    """
    keys = Keys(file)
    config = _common(file, keys)
    config["rope_scaling"] = _rope_scaling(file, keys)
    extend = _EXTENSIONS.get(keys.prefix)
    if extend is not None:
        config |= extend(_Header(file, keys, config))
    return config | _token_ids(file.metadata)


def generation_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """The ids that begin and end a text and the sampling defaults, in the keys of a `generation_config.json`.

    `eos_token_id` is a list when the file names an end-of-turn token beside the end-of-text one.
    """
    generation = _token_ids(file.metadata)
    turn = file.metadata.get("tokenizer.ggml.eot_token_id")
    if isinstance(turn, int) and turn != generation.get("eos_token_id"):
        both = [generation["eos_token_id"], turn] if "eos_token_id" in generation else turn
        generation["eos_token_id"] = both
    for key, name in _SAMPLING.items():
        value = file.metadata.get(f"general.sampling.{name}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            generation[key] = value
    return generation


def _common(file: GGUFFile, keys: Keys) -> dict[str, Any]:
    embedding = file.tensors.get(_EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError("vocab_size", f"the GGUF file has no {_EMBEDDING} matrix to take it from")
    heads, family = keys.integer("attention.head_count"), keys.family
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "hidden_act": family.activation,
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
    }
    config["head_dim"] = keys.integer("attention.key_length", config["hidden_size"] // heads)
    rotary = keys.integer("rope.dimension_count", config["head_dim"])
    config["partial_rotary_factor"] = rotary / config["head_dim"]
    if keys.has("attention.sliding_window"):
        config |= {"sliding_window": keys.integer("attention.sliding_window"), "use_sliding_window": False}
    return config


def _rope_scaling(file: GGUFFile, keys: Keys) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "gguf_factors", "factors": _factors(file, "rope_freqs.weight")}
    kind = keys.string("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if keys.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
    return scaling


def _factors(file: GGUFFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    values = tensor.format.decode(file.raw(tensor).reshape(-1, tensor.format.block_bytes))
    factors: list[float] = values.reshape(-1).tolist()
    return factors


def _gemma(header: _Header) -> dict[str, Any]:
    return {"hidden_activation": header.keys.family.activation}


def _gemma2(header: _Header) -> dict[str, Any]:
    # Even layers have the window.
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in _layers(header)]
    return _gemma(header) | {
        "query_pre_attn_scalar": _query_scalar(header),
        "attn_logit_softcapping": header.keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.keys.number("final_logit_softcapping", 30.0),
        "sliding_window": header.keys.integer("attention.sliding_window", 4096),
        "layer_types": kinds,
    }


def _gemma3(header: _Header) -> dict[str, Any]:
    return _gemma(header) | {
        "query_pre_attn_scalar": _query_scalar(header),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": header.keys.number("final_logit_softcapping")
        if header.keys.has("final_logit_softcapping")
        else None,
        "sliding_window": header.keys.integer("attention.sliding_window"),
        "layer_types": _layer_types(header),
        "rope_local_base_freq": header.keys.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA),
    }


def _layer_types(header: _Header) -> list[str]:
    """Which layers have the window: flags or a number in newer files, else all but each sixth."""
    key = "attention.sliding_window_pattern"
    pattern = header.keys.per_layer(key) if header.keys.has(key) else _GEMMA3_PATTERN
    if isinstance(pattern, int):
        windowed = [(layer + 1) % pattern != 0 for layer in _layers(header)]
    else:
        windowed = [bool(flag) for flag in pattern]
    if len(windowed) != header.config["num_hidden_layers"]:
        raise ConfigError(f"{header.keys.prefix}.{key}", f"has {len(windowed)} entries")
    return ["sliding_attention" if flag else "full_attention" for flag in windowed]


def _query_scalar(header: _Header) -> int | float:
    """Its inverse square root is the attention scale: the head size, but for the 27B models."""
    keys, config = header.keys, header.config
    if keys.has("attention.scale"):
        scalar = keys.number("attention.scale") ** -2
        return round(scalar) if abs(scalar - round(scalar)) < _ROUNDING * scalar else scalar
    if config["num_hidden_layers"] == _GEMMA_27B_LAYERS[keys.prefix]:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _phi3(header: _Header) -> dict[str, Any]:
    original = header.keys.integer(
        "rope.scaling.original_context_length", header.config["max_position_embeddings"]
    )
    extended: dict[str, Any] = {"original_max_position_embeddings": original}
    if "rope_factors_long.weight" in header.file.tensors:
        scaling: dict[str, Any] = {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "long_factor": _factors(header.file, "rope_factors_long.weight"),
            "short_factor": _factors(header.file, _short_factors(header)),
        }
        if header.keys.has("rope.scaling.attn_factor"):
            scaling["attention_factor"] = header.keys.number("rope.scaling.attn_factor")
        extended["rope_scaling"] = scaling
    return extended


def _short_factors(header: _Header) -> str:
    name = "rope_factors_short.weight"
    if name not in header.file.tensors:
        raise ConfigError("rope_scaling", f"the GGUF file has long rope factors, but no {name}")
    return name


def _mixture(header: _Header) -> dict[str, Any]:
    experts = header.keys.integer("expert_count")
    extended: dict[str, Any] = {
        "num_experts": experts,
        "num_local_experts": experts,
        "num_experts_per_tok": header.keys.integer("expert_used_count"),
        # Mixtral and Qwen3 scale the chosen experts' weights to a sum of 1, Qwen2 does not.
        "norm_topk_prob": header.keys.prefix != "qwen2moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    stacked = header.file.tensors.get("blk.0.ffn_gate_exps.weight")
    if stacked is None or len(stacked.shape) != 3:
        raise ConfigError("num_experts", "the GGUF file has no stacked tensors of experts")
    if stacked.shape[0] != experts:
        raise ConfigError(
            f"{header.keys.prefix}.expert_count", f"is {experts}, the file has {stacked.shape[0]}"
        )
    extended["moe_intermediate_size"] = stacked.shape[1]
    shared = header.file.tensors.get("blk.0.ffn_gate_shexp.weight")
    if shared is not None:
        extended["shared_expert_intermediate_size"] = shared.shape[0]
    return extended


def _llama(header: _Header) -> dict[str, Any]:
    return _mixture(header) if header.keys.has("expert_count") else {}


def _layers(header: _Header) -> range:
    return range(header.config["num_hidden_layers"])


_EXTENSIONS: Mapping[str, Callable[[_Header], dict[str, Any]]] = MappingProxyType(
    {
        "llama": _llama,
        "qwen2moe": _mixture,
        "qwen3moe": _mixture,
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "phi3": _phi3,
    }
)


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in found.items() if isinstance(value, int)}
