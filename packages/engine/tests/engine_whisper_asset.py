"""Turns the Whisper of the test assets, a CTranslate2 file, into a folder as on the hub.

CTranslate2 keeps query, key and value of self attention in one layer, and key and value of cross attention in
another. Keys have no bias: the rows for it are zero.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_START, _END, _NO_TIMES = 50257, 50256, 50362  # of models that know English alone


def read_ctranslate2(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a `model.bin`, by name."""
    content = path.read_bytes()
    at = 0

    def take(layout: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{layout}", content, at)
        at += struct.calcsize(f"<{layout}")
        return value

    def name() -> str:
        nonlocal at
        size = take("H")
        at += size
        return content[at - size : at - 1].decode()  # It ends in a zero byte.

    take("I"), name(), take("I")  # version, kind of model, its revision
    tensors = {}
    for _ in range(take("I")):
        title = name()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = take("B"), take("I")
        values = np.frombuffer(content[at : at + size], dtype=_TYPES[kind]).reshape(shape)
        tensors[title] = torch.from_numpy(values.copy())
        at += size
    return tensors


def convert(source: Path, target: Path) -> Path:
    """Writes the folder `target`; returns it."""
    found = read_ctranslate2(source / "model.bin")
    stacks = {side: _num_layers(found, side) for side in ("encoder", "decoder")}
    tensors = dict(_tensors(found, stacks))
    width = found["decoder/embeddings/weight"].shape[1]
    heads = int(found["encoder/num_heads"])
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": width,
        "vocab_size": len(found["decoder/embeddings/weight"]),
        "num_mel_bins": found["encoder/conv1/weight"].shape[1],
        "max_target_positions": len(found["decoder/position_encodings/encodings"]),
        "activation_function": "gelu",
        "eos_token_id": _END,
        "decoder_start_token_id": _START,
        "torch_dtype": "float16",
    }
    for side, layers in stacks.items():
        inner = len(found[f"{side}/layer_0/ffn/linear_0/weight"])
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": inner}
    rules = json.loads((source / "config.json").read_text())
    generation = {
        "eos_token_id": _END,
        "decoder_start_token_id": _START,
        "no_timestamps_token_id": _NO_TIMES,
        "suppress_tokens": rules["suppress_ids"],
        "begin_suppress_tokens": rules["suppress_ids_begin"],
    }
    features = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": config["num_mel_bins"]}
    target.mkdir(parents=True, exist_ok=True)
    for file, content in (
        ("config", config),
        ("generation_config", generation),
        ("preprocessor_config", features),
    ):
        (target / f"{file}.json").write_text(json.dumps(content))
    shutil.copy(source / "tokenizer.json", target)
    save_file(tensors, target / "model.safetensors")
    return target


def _num_layers(found: dict[str, torch.Tensor], side: str) -> int:
    layers = {name.split("/")[1] for name in found if name.startswith(f"{side}/layer_")}
    return len(layers - {"layer_norm"})


def _tensors(found: dict[str, torch.Tensor], stacks: dict[str, int]) -> Iterator[tuple[str, torch.Tensor]]:
    def module(name: str, source: str, rows: slice = slice(None), *, bias: bool = True):
        for leaf, titles in (("weight", ("weight", "gamma")), ("bias", ("bias", "beta"))):
            values = next(found[f"{source}/{title}"] for title in titles if f"{source}/{title}" in found)
            if leaf == "weight" or bias:
                yield f"model.{name}.{leaf}", values[rows].clone()

    width = found["decoder/embeddings/weight"].shape[1]
    first, second, third = (slice(i * width, (i + 1) * width) for i in range(3))
    yield "model.decoder.embed_tokens.weight", found["decoder/embeddings/weight"]
    for conv in ("conv1", "conv2"):
        yield from module(f"encoder.{conv}", f"encoder/{conv}")
    for side, layers in stacks.items():
        yield f"model.{side}.embed_positions.weight", found[f"{side}/position_encodings/encodings"]
        yield from module(f"{side}.layer_norm", f"{side}/layer_norm")
        for index in range(layers):
            at, of = f"{side}.layers.{index}", f"{side}/layer_{index}"
            own, cross = f"{of}/self_attention", f"{of}/attention"
            yield from module(f"{at}.self_attn.q_proj", f"{own}/linear_0", first)
            yield from module(f"{at}.self_attn.k_proj", f"{own}/linear_0", second, bias=False)
            yield from module(f"{at}.self_attn.v_proj", f"{own}/linear_0", third)
            yield from module(f"{at}.self_attn.out_proj", f"{own}/linear_1")
            yield from module(f"{at}.self_attn_layer_norm", f"{own}/layer_norm")
            if side == "decoder":
                yield from module(f"{at}.encoder_attn.q_proj", f"{cross}/linear_0")
                yield from module(f"{at}.encoder_attn.k_proj", f"{cross}/linear_1", first, bias=False)
                yield from module(f"{at}.encoder_attn.v_proj", f"{cross}/linear_1", second)
                yield from module(f"{at}.encoder_attn.out_proj", f"{cross}/linear_2")
                yield from module(f"{at}.encoder_attn_layer_norm", f"{cross}/layer_norm")
            yield from module(f"{at}.fc1", f"{of}/ffn/linear_0")
            yield from module(f"{at}.fc2", f"{of}/ffn/linear_1")
            yield from module(f"{at}.final_layer_norm", f"{of}/ffn/layer_norm")
