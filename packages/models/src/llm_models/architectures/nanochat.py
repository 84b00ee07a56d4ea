"""Owns the spec of nanochat; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, rms_norm
from llm_models.architectures.layouts import plain_mlp, with_defaults
from llm_models.blocks.attention import QKNorm
from llm_models.blocks.layer import pre_norm
from llm_models.config import ConfigReader
from llm_models.errors import UnsupportedConfig
from llm_models.names import LLAMA_NAMES
from llm_models.rope import FrequencyFactors, Rope
from llm_models.spec import DecoderSpec, Embedding, Head

_NAMES = LLAMA_NAMES.but(
    {"mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"},
    without=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@architecture("NanoChatForCausalLM")
def nanochat(config: Mapping[str, Any]) -> DecoderSpec:
    """nanochat: norms without weights, one more of them behind the embedding, a rope that turns backwards."""
    config = with_defaults(config, final_logit_softcapping=15.0)
    reader, norm = ConfigReader(config), replace(rms_norm(config), weight=False)
    bias = reader.boolean("attention_bias", False)
    qk_norm = QKNorm(norm=norm, after_rope=True)
    mixer = attention(config, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm)
    layer = pre_norm(replace(mixer, rope=_backwards(mixer.rope)), plain_mlp(config, default="relu2"), norm)
    has_cap = reader.has("final_logit_softcapping")
    return decoder(
        config,
        [layer] * reader.positive_int("num_hidden_layers"),
        final_norm=norm,
        names=_NAMES,
        embedding=Embedding(vocab_size=reader.positive_int("vocab_size"), norm=norm),
        head=Head(tied=False, soft_cap=reader.positive_float("final_logit_softcapping") if has_cap else None),
    )


def _backwards(rope: Rope | None) -> Rope:
    if rope is None or rope.scaling is not None:
        raise UnsupportedConfig("rope_parameters.rope_type", "only the default is supported")
    return replace(rope, scaling=FrequencyFactors(factors=(-1.0,) * (rope.rotary_size // 2)))
