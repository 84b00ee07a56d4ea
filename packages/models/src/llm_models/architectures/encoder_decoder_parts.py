"""Owns what specs of encoder-decoders have in common; knows nothing about any family."""

from dataclasses import replace

from llm_models.names import Fused, Names, Target, in_layer


def with_encoder(decoder: Names, encoder: Names) -> Names:
    """The names of both in one map; what `encoder` leads to is below `encoder.`."""
    inside = {f"{encoder.layer}.{name}": in_layer(target) for name, target in encoder.inside.items()}
    added = {name: _in_encoder(target) for name, target in {**encoder.top, **inside}.items()}
    return replace(
        decoder, top={**decoder.top, **added}, harmless=tuple({*decoder.harmless, *encoder.harmless})
    )


def _in_encoder(target: Target) -> Target:
    if isinstance(target, Fused):
        return replace(target, targets=tuple(f"encoder.{name}" for name in target.targets))
    return f"encoder.{target}"
