"""Owns the specs of Baichuan 1 and 2; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import alibi_slopes, attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import with_defaults
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.names import LLAMA_NAMES, rows
from llm_models.spec import DecoderSpec, Head

_NAMES = LLAMA_NAMES.but(
    {"self_attn.W_pack": rows("attention.query", "attention.key", "attention.value")},
    without=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
)
_BAICHUAN2_VOCABULARY = 125696


# Baichuan 7B of the first generation spells itself with a capital C.
@architecture("BaichuanForCausalLM", "BaiChuanForCausalLM")
def baichuan(config: Mapping[str, Any]) -> DecoderSpec:
    """Baichuan: Llama with a fused projection; the 13B has ALiBi instead of rope.

    Configs do not say which of the two it is, but only those with rope have `max_position_embeddings`. The
    second generation, told by its vocabulary or its `z_loss_weight`, normalises the rows of the head.
    """
    reader = ConfigReader(config)
    has_rope = reader.has("max_position_embeddings")
    config = with_defaults(config, max_position_embeddings=config.get("model_max_length"))
    mixer = attention({**config, "num_key_value_heads": None})
    if not has_rope:
        mixer = replace(mixer, rope=None, alibi_slopes=alibi_slopes(mixer.num_heads))
    norm = rms_norm(config)
    layers = [pre_norm(mixer, gated_mlp(config), norm)] * reader.positive_int("num_hidden_layers")
    is_second = "z_loss_weight" in config or config.get("vocab_size") == _BAICHUAN2_VOCABULARY
    head = Head(tied=False, unit_rows=is_second)
    return decoder(config, layers, final_norm=norm, names=_NAMES, head=head)
