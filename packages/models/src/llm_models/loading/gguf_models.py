"""Owns what GGUF files of decoders mean in Hugging Face terms: config keys, tensor names, row order.

Knows nothing about the container's bytes or the runtime.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_models.errors import ConfigError, UnknownArchitecture, UnsupportedConfig
from llm_models.loading.gguf_files import GGUFFile, GGUFTensor, StringArray
from llm_models.loading.source import TensorInfo
from llm_models.spec import TensorNames

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ROPE_FACTORS = "rope_freqs.weight"
_TOP = {"token_embd": "embedding", "output_norm": "final_norm", "output": "head"}
_LAYER = {
    "attn_norm": "mixer_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Values decoded at a time: keeps the float32 copy of a large embedding small.
_CHUNK_VALUES = 1 << 20


def config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """Synthesises a Hugging Face config from a file's metadata and tensors.

    There is no `dtype`: the weights are decoded to whatever the caller asks for.

    Raises:
        ConfigError: A metadata key is missing or makes no sense.
        UnknownArchitecture: The file's architecture is not one of those read here.
        UnsupportedConfig: A feature of the file is not supported.
    """
    keys = _Keys(file)
    heads = keys.integer("attention.head_count")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError("vocab_size", "the GGUF file has no token_embd.weight matrix to take it from")
    config: dict[str, Any] = {
        "architectures": [keys.architecture],
        "model_type": keys.prefix,
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
    }
    config["head_dim"] = keys.integer("attention.key_length", config["hidden_size"] // heads)
    rotary = keys.integer("rope.dimension_count", config["head_dim"])
    config["partial_rotary_factor"] = rotary / config["head_dim"]
    config["rope_scaling"] = _rope_scaling(file, keys)
    return config | _window(keys) | _token_ids(file.metadata)


def generation_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """The ids that begin and end a text, in the keys of a `generation_config.json`.

    `eos_token_id` is a list when the file names an end-of-turn token beside the end-of-text one.
    """
    ids = _token_ids(file.metadata)
    turn = file.metadata.get("tokenizer.ggml.eot_token_id")
    if isinstance(turn, int) and turn != ids.get("eos_token_id"):
        ids["eos_token_id"] = [ids["eos_token_id"], turn] if "eos_token_id" in ids else turn
    return ids


class GGUFSource:
    """The tensors of a GGUF file under their Hugging Face names, in Hugging Face's row order.

    Raises:
        CorruptFile: See `GGUFFile`.
        UnknownQuantization: See `GGUFFile`.
        UnknownArchitecture: The file's architecture is not one of those read here.
    """

    def __init__(self, path: Path) -> None:
        self.root = path
        self._file = GGUFFile(path)
        keys = _Keys(self._file)
        self._heads = keys.integer("attention.head_count")
        self._kv_heads = keys.integer("attention.head_count_kv", self._heads)
        self._permuted = keys.prefix == "llama"
        self._origin = {
            _hf_name(name): tensor for name, tensor in self._file.tensors.items() if name != _ROPE_FACTORS
        }
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, tensor.shape, tensor.format.name, path)
            for name, tensor in self._origin.items()
        }

    def copy_into(self, name: str, out: Tensor) -> None:
        """Decodes tensor `name` into `out`, a few rows at a time. See `TensorSource`."""
        tensor = self._origin[name]
        raw = self._file.raw(tensor)
        order = self._row_order(tensor)
        rows_RC = out if out.dim() == 2 else out.unsqueeze(1)
        step = max(1, _CHUNK_VALUES // rows_RC.shape[1])
        for start in range(0, tensor.rows, step):
            packed = raw[start : start + step] if order is None else raw[order[start : start + step]]
            blocks = packed.reshape(-1, tensor.format.block_bytes)
            values = tensor.format.decode(blocks).reshape(len(packed), -1)
            rows_RC[start : start + step].copy_(_as_tensor(values))

    def read(self, name: str) -> Tensor:
        """Tensor `name`, decoded: float32 but for F16 and BF16. See `TensorSource`."""
        tensor = self._origin[name]
        plain = _PLAIN.get(tensor.format.name)
        if plain is None or self._row_order(tensor) is not None:
            out = torch.empty(tensor.shape, dtype=plain or torch.float32)
            self.copy_into(name, out)
            return out
        return self._file.plain(tensor, plain)

    def _row_order(self, tensor: GGUFTensor) -> NDArray[np.int64] | None:
        """The file's row that belongs in each of our rows, or None when the order is the same.

        llama.cpp rotates neighbouring pairs, so its llama files interleave the halves of query and key heads.
        """
        part = tensor.name.split(".")[-2]
        if not self._permuted or part not in {"attn_q", "attn_k"}:
            return None
        heads = self._heads if part == "attn_q" else self._kv_heads
        if tensor.rows % (2 * heads):
            return None  # The shape check names this fault.
        order: NDArray[np.int64] = np.arange(tensor.rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return order


class _Keys:
    """Typed reading of the keys below the file's architecture."""

    def __init__(self, file: GGUFFile) -> None:
        self._metadata = file.metadata
        self.prefix = file.metadata.get("general.architecture")
        if self.prefix not in _ARCHITECTURES:
            raise UnknownArchitecture(str(self.prefix), tuple(_ARCHITECTURES))
        if self._metadata.get(f"{self.prefix}.expert_count"):
            raise UnsupportedConfig(f"{self.prefix}.expert_count", "mixtures of experts are not supported")
        windowed = self.prefix == "llama" and self.has("attention.sliding_window")
        self.architecture = "MistralForCausalLM" if windowed else _ARCHITECTURES[self.prefix]

    def has(self, key: str) -> bool:
        """Whether the key is there and not zero, which stands for "unused"."""
        return bool(self._metadata.get(f"{self.prefix}.{key}"))

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self._error(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key, value)
        return float(value)

    def string(self, key: str, default: str) -> str:
        value = self._metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, str):
            raise self._error(key, value)
        return value

    def _error(self, key: str, value: object) -> ConfigError:
        if isinstance(value, np.ndarray | StringArray):
            return UnsupportedConfig(f"{self.prefix}.{key}", "differs between layers")
        return ConfigError(
            f"{self.prefix}.{key}", "is missing" if value is None else f"must not be {value!r}"
        )


def _rope_scaling(file: GGUFFile, keys: _Keys) -> dict[str, Any] | None:
    factors = file.tensors.get(_ROPE_FACTORS)
    if factors is not None:
        values = factors.format.decode(file.raw(factors).reshape(-1, factors.format.block_bytes))
        return {"rope_type": "gguf_factors", "factors": values.reshape(-1).tolist()}
    kind = keys.string("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if keys.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
    return scaling


def _window(keys: _Keys) -> dict[str, Any]:
    if not keys.has("attention.sliding_window"):
        return {}
    return {"sliding_window": keys.integer("attention.sliding_window"), "use_sliding_window": False}


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown name stays, to be reported as unexpected."""
    names = TensorNames()
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
    if layer is None:
        return f"{getattr(names, _TOP[module])}.{kind}" if module in _TOP else name
    if layer[2] not in _LAYER:
        return name
    return f"{names.layer.format(layer=layer[1])}.{getattr(names, _LAYER[layer[2]])}.{kind}"


def _as_tensor(values: NDArray[np.float32]) -> Tensor:
    if not values.flags.writeable:  # F32 rows are a view of the read-only file.
        values = values.copy()
    return torch.from_numpy(values)
