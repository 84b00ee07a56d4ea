"""Owns the specs of EXAONE 3 and 4; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.common import attention, decoder, gated_mlp, rms_norm
from llm_models.architectures.layouts import attention_windows, every_nth, outer_norm, with_defaults
from llm_models.architectures.llama import llama
from llm_models.architectures.olmo import OUTER_NORM_NAMES
from llm_models.blocks.attention import QKNorm
from llm_models.config import ConfigReader
from llm_models.names import ROTARY_BUFFERS, Names
from llm_models.spec import DecoderSpec

_EXAONE3_NAMES = Names(
    top={"transformer.wte": "embedding", "transformer.ln_f": "final_norm", "lm_head": "head"},
    layer="transformer.h.{i}",
    inside={
        "ln_1": "attention.norm",
        "attn.attention.q_proj": "attention.query",
        "attn.attention.k_proj": "attention.key",
        "attn.attention.v_proj": "attention.value",
        "attn.attention.out_proj": "attention.output",
        "ln_2": "mlp.norm",
        "mlp.c_fc_0": "mlp.gate",
        "mlp.c_fc_1": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    optional_prefix="transformer.",
    harmless=(*ROTARY_BUFFERS, r"transformer\.rotary\.inv_freq", r".*\.rotary\.inv_freq"),
)


@architecture("ExaoneForCausalLM")
def exaone(config: Mapping[str, Any]) -> DecoderSpec:
    """EXAONE 3 and 3.5: a Llama under other names."""
    spelled = {
        "num_hidden_layers": config.get("num_layers"),
        "hidden_act": config.get("activation_function"),
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "tie_word_embeddings": False,
    }
    spelled = {field: value for field, value in spelled.items() if value is not None}
    return replace(llama(with_defaults(config, **spelled)), names=_EXAONE3_NAMES)


@architecture("Exaone4ForCausalLM")
def exaone4(config: Mapping[str, Any]) -> DecoderSpec:
    """EXAONE 4: norms after the blocks and over each head; large ones have layers without window and rope."""
    reader, norm, mlp = ConfigReader(config), rms_norm(config, default=1e-5), gated_mlp(config)
    config = with_defaults(config, sliding_window=4096)
    has_window = config["sliding_window"] is not None
    period = reader.positive_int("sliding_window_pattern", 4) if "layer_types" not in config else 1
    mixer = replace(attention(config), qk_norm=QKNorm(norm=norm))
    layers = []
    for window in attention_windows(config, every_nth(period if has_window else 1)):
        rope = None if has_window and window is None else mixer.rope
        layers.append(outer_norm(replace(mixer, sliding_window=window, rope=rope), mlp, norm))
    return decoder(config, layers, final_norm=norm, names=OUTER_NORM_NAMES)
