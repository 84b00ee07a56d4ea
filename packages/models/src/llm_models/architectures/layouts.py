"""Owns what several families of dense decoders share: window patterns, orders of norms, ropes by layer.

Knows nothing about any family, weights or the runtime.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llm_models.architectures.common import layer_kinds
from llm_models.blocks.layer import BlockSpec, Branch, Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.norm import Norm
from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def with_defaults(config: Mapping[str, Any], **defaults: object) -> dict[str, Any]:
    """The config with what it leaves out; a field that is there and null stays so."""
    return {**defaults, **config}


def attention_windows(config: Mapping[str, Any], is_full: Callable[[int], bool]) -> list[int | None]:
    """The sliding window of every layer; None for those that see everything.

    Args:
        config: The model config, with `sliding_window`; `layer_types` decides where it is there.
        is_full: Which layers see everything, where it is not.

    Raises:
        UnsupportedConfig: A kind of layer is neither full nor sliding attention.
        ConfigError: Layers slide, but no window is named.
    """
    reader = ConfigReader(config)
    window = reader.positive_int("sliding_window") if reader.has("sliding_window") else None
    kinds = layer_kinds(config)
    if kinds is None:
        layers = range(reader.positive_int("num_hidden_layers"))
        kinds = [FULL if is_full(layer) else SLIDING for layer in layers]
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise UnsupportedConfig("layer_types", f"{kind!r} is not supported")
    if window is None and SLIDING in kinds:
        raise ConfigError("sliding_window", f"is missing, while layers are of kind {SLIDING}")
    return [window if kind == SLIDING else None for kind in kinds]


def every_nth(count: int) -> Callable[[int], bool]:
    """Whether a layer is the last of `count` layers that take turns."""
    return lambda layer: (layer + 1) % count == 0


def sliding_rope_config(config: Mapping[str, Any], theta: object) -> Mapping[str, Any]:
    """The config as the sliding layers' rope is to be read from it.

    In older configs `rope_scaling` and `rope_theta` are those of the full layers only; `theta` is that of the
    sliding ones. `rope_parameters` has a section for each.
    """
    if config.get("rope_parameters") is not None:
        return config
    return {**config, "rope_theta": theta, "rope_scaling": None}


def plain_mlp(config: Mapping[str, Any], *, bias: bool = False, default: str = "relu2") -> MLP:
    """Reads a feed-forward without a gate, whose activation is `default` where the config names none."""
    reader = ConfigReader(config)
    return MLP(
        intermediate_size=reader.positive_int("intermediate_size"),
        activation=reader.activation("hidden_act", default),
        gated=False,
        bias=bias,
    )


def sandwich(mixer: BlockSpec, feed_forward: BlockSpec, norm: Norm, *, scale: float = 1.0) -> Layer:
    """A norm before and one after each block."""
    blocks = (mixer, feed_forward)
    return Layer(tuple(Branch(blocks=(block,), pre=norm, post=norm, scale=scale) for block in blocks))


def outer_norm(mixer: BlockSpec, feed_forward: BlockSpec, norm: Norm) -> Layer:
    """A norm after each block only, before its output is added."""
    return Layer(tuple(Branch(blocks=(block,), post=norm) for block in (mixer, feed_forward)))


def parallel(mixer: BlockSpec, feed_forward: BlockSpec, norm: Norm) -> Layer:
    """Both blocks side by side behind one norm."""
    return Layer((Branch(blocks=(mixer, feed_forward), pre=norm),))
