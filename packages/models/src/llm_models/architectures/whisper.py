"""Owns the spec of Whisper, sound to text; knows nothing about weights or the runtime."""

from collections.abc import Mapping
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.bart import NORM, layer, stack_names
from llm_models.architectures.encoder_decoder_parts import with_encoder
from llm_models.config import ConfigReader, architecture_name
from llm_models.names import Names
from llm_models.spec import (
    AudioEmbedding,
    DecoderSpec,
    Embedding,
    EncoderDecoderSpec,
    EncoderSpec,
    Head,
    LearnedPositions,
)


def _names() -> Names:
    shared = {"embed_positions": "positions", "layer_norm": "final_norm"}
    encoder = {"conv1": "conv1", "conv2": "conv2", **shared}
    decoder = stack_names("decoder", pre_norm=True, top={"embed_tokens": "embedding", **shared})
    return with_encoder(
        decoder.but(top={"proj_out": "head"}), stack_names("encoder", pre_norm=True, top=encoder)
    )


@architecture("WhisperForConditionalGeneration")
def whisper(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    """Whisper (arXiv:2212.04356); keys have no bias."""
    reader = ConfigReader(config)
    reader.refuse("quantization_config", "quantized safetensors checkpoints are not supported")
    reader.refuse("scale_embedding", "a scaled embedding is not supported")
    width, count = reader.positive_int("d_model"), reader.positive_int("max_target_positions", 448)
    states = reader.positive_int("max_source_positions", 1500)
    layers = {
        side: (layer(config, side, pre_norm=True, key_bias=False),) * reader.positive_int(f"{side}_layers")
        for side in ("encoder", "decoder")
    }
    return EncoderDecoderSpec(
        encoder=EncoderSpec(
            hidden_size=width,
            max_positions=states,
            embedding=AudioEmbedding(
                num_mel_bins=reader.positive_int("num_mel_bins", 80), num_positions=states
            ),
            layers=layers["encoder"],
            final_norm=NORM,
        ),
        decoder=DecoderSpec(
            architecture=architecture_name(config),
            hidden_size=width,
            max_positions=count,
            embedding=Embedding(
                vocab_size=reader.positive_int("vocab_size"), positions=LearnedPositions(count=count)
            ),
            layers=layers["decoder"],
            final_norm=NORM,
            head=Head(tied=reader.boolean("tie_word_embeddings", True)),
            names=_names(),
        ),
        start=reader.whole_number("decoder_start_token_id") if reader.has("decoder_start_token_id") else None,
    )
