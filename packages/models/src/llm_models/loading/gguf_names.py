"""Owns which Hugging Face tensors a GGUF tensor holds, and what its converter did to them; reads no bytes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from llm_models.loading.gguf_files import GGUFTensor

# Rope factors ride in tensors, but belong to the config.
ROPE_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})

_TOP: Mapping[str, str] = MappingProxyType(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
)
_BASE: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# `{expert}` stands for a tensor of stacked experts, of which each has a name of its own.
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is special about the GGUF files of one architecture.

    Attributes:
        architecture: The Hugging Face name, for `architectures`.
        model_type: The Hugging Face name, for `model_type`.
        activation: The config's value of `hidden_act`.
        layer_names: GGUF name to Hugging Face name below the layer, where they differ from Llama's.
        interleaved: Query and key rows are permuted, since llama.cpp rotates neighbouring pairs here.
        norm_offset: What the converter added to norm weights.
    """

    architecture: str
    model_type: str
    activation: str = "silu"
    layer_names: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0

    def layer_name(self, part: str) -> str | None:
        """The name below the layer of GGUF part `part`, None when it is unknown."""
        return self.layer_names.get(part, _BASE.get(part))


_GELU = "gelu_pytorch_tanh"
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(architecture="LlamaForCausalLM", model_type="llama", interleaved=True),
        "qwen2": Family(architecture="Qwen2ForCausalLM", model_type="qwen2"),
        "qwen3": Family(architecture="Qwen3ForCausalLM", model_type="qwen3"),
        "qwen2moe": Family(
            architecture="Qwen2MoeForCausalLM", model_type="qwen2_moe", layer_names=_QWEN_EXPERTS
        ),
        "qwen3moe": Family(
            architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", layer_names=_QWEN_EXPERTS
        ),
        "gemma": Family(
            architecture="GemmaForCausalLM", model_type="gemma", activation=_GELU, norm_offset=1.0
        ),
        "gemma2": Family(
            architecture="Gemma2ForCausalLM",
            model_type="gemma2",
            activation=_GELU,
            layer_names=_SANDWICH,
            norm_offset=1.0,
        ),
        "gemma3": Family(
            architecture="Gemma3ForCausalLM",
            model_type="gemma3_text",
            activation=_GELU,
            layer_names=_SANDWICH,
            norm_offset=1.0,
        ),
        "phi3": Family(architecture="Phi3ForCausalLM", model_type="phi3", layer_names=_FUSED),
    }
)
# Files of these two call themselves "llama" too: a window or experts tell them apart.
MISTRAL = Family(architecture="MistralForCausalLM", model_type="mistral", interleaved=True)
MIXTRAL = Family(
    architecture="MixtralForCausalLM", model_type="mixtral", layer_names=_MIXTRAL_EXPERTS, interleaved=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a Hugging Face tensor lies: `rows` rows from `first` on of a GGUF tensor.

    Attributes:
        shape: The Hugging Face shape.
        heads: Number of heads whose rows are interleaved pairs, or None when the rows are in order.
        offset: What was added to the values.
    """

    tensor: GGUFTensor
    shape: tuple[int, ...]
    first: int
    rows: int
    heads: int | None = None
    offset: float = 0.0


def origins(
    tensors: Mapping[str, GGUFTensor], family: Family, *, heads: int, kv_heads: int
) -> Mapping[str, Origin]:
    """The Hugging Face tensors in a file, by name; those of unknown name keep it, to be reported."""
    found: dict[str, Origin] = {}
    for name, tensor in tensors.items():
        if name not in ROPE_TENSORS:
            found.update(_origins_of(tensor, family, heads, kv_heads))
    return found


def _origins_of(
    tensor: GGUFTensor, family: Family, heads: int, kv_heads: int
) -> Iterator[tuple[str, Origin]]:
    module, _, kind = tensor.name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
    part = layer[2] if layer else module
    below = family.layer_name(part) if layer else _TOP.get(part)
    if below is None:
        yield tensor.name, Origin(tensor=tensor, shape=tensor.shape, first=0, rows=tensor.rows)
        return
    name = f"model.layers.{layer[1]}.{below}.{kind}" if layer else f"{below}.{kind}"
    if "{expert}" in below and len(tensor.shape) == 3:
        experts, rows, columns = tensor.shape
        for expert in range(experts):
            origin = Origin(tensor=tensor, shape=(rows, columns), first=expert * rows, rows=rows)
            yield name.format(expert=expert), origin
        return
    shape = (1, *tensor.shape) if part == "ffn_gate_inp_shexp" and len(tensor.shape) == 1 else tensor.shape
    paired = {"attn_q": heads, "attn_k": kv_heads}.get(part) if family.interleaved else None
    offset = family.norm_offset if below.endswith("norm") else 0.0
    yield name, Origin(tensor=tensor, shape=shape, first=0, rows=tensor.rows, heads=paired, offset=offset)
