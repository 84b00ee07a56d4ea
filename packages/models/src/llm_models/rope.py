"""Owns rotary frequencies, from a config to tables of cos and sin; knows nothing about attention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llm_models.config import ConfigReader
from llm_models.errors import ConfigError, UnsupportedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1 scaling: long wavelengths divided by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN: a ramp between interpolated and kept frequencies, and a scale on cos and sin."""

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyFactors:
    """One divisor per frequency, as GGUF files store Llama 3.1 scaling (`rope_freqs.weight`)."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE: one divisor per frequency, other ones for models that are used beyond the original length.

    Which set holds is decided once, by the longest sequence that the model is built for: keys in the cache
    cannot be turned again, and a request must not depend on its neighbours' lengths.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    attention_factor: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling | FrequencyFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of the first `rotary_size` dimensions of a head.

    Attributes:
        rotary_size: Dimensions that turn.
        theta: Base of the wavelengths.
        max_positions: Rows of the table.
        scaling: How the frequencies are stretched.
        interleaved: Whether dimension 2i turns with 2i + 1, instead of i with i + rotary_size / 2.
    """

    rotary_size: int
    theta: float
    max_positions: int
    scaling: RopeScaling | None = None
    interleaved: bool = False


def rope_from_config(
    config: Mapping[str, Any],
    *,
    head_size: int,
    max_positions: int,
    layer_type: str | None = None,
    theta: float = 10000.0,
    partial: float = 1.0,
    interleaved: bool = False,
) -> Rope:
    """Reads `rope_theta` and `rope_scaling`, or the `rope_parameters` that transformers 5 writes instead.

    Args:
        config: The model config.
        head_size: Size of one attention head.
        max_positions: Positions that the table must hold.
        layer_type: Where `rope_parameters` has one section a kind of layer: which.
        theta: Where the config names none.
        partial: The rotated share of a head, where the config names none.
        interleaved: As in `Rope`.

    Raises:
        ConfigError: A field is missing or out of range.
        UnsupportedConfig: The scaling type is unknown.
    """
    top = ConfigReader(config)
    section = top.section("rope_parameters") or top.section("rope_scaling")
    if section is not None and layer_type is not None:
        section = section.section(layer_type) or section
    theta = top.positive_float("rope_theta", theta)
    partial = top.positive_float("partial_rotary_factor", partial)
    if section is not None:
        theta = section.positive_float("rope_theta", theta)
        partial = section.positive_float("partial_rotary_factor", partial)
    is_proportional = section is not None and section.string("rope_type", "default") == "proportional"
    rotary_size = head_size
    if not is_proportional:
        rotary_size = int(head_size * partial + 1e-6)  # 64 / 96 * 96 must not become 63.
    if partial > 1 or rotary_size % 2 or rotary_size == 0:
        raise ConfigError("partial_rotary_factor", f"leads to {rotary_size} rotary of {head_size} dimensions")
    scaling: RopeScaling | None = None
    if section is not None and is_proportional:
        scaling = _proportional(head_size, partial, section.positive_float("factor", 1.0))
    elif section is not None:
        scaling = _scaling(top, section, rotary_size, max_positions)
    return Rope(
        rotary_size=rotary_size,
        theta=theta,
        max_positions=max_positions,
        scaling=scaling,
        interleaved=interleaved,
    )


def inverse_frequencies(spec: Rope) -> tuple[Tensor, float]:
    """The angle per position of each rotary pair, and the factor on cos and sin.

    Returns:
        float32 [rotary_size / 2] on the CPU, and the factor (1 but for YaRN).
    """
    exponents = torch.arange(0, spec.rotary_size, 2, dtype=torch.int64).float() / spec.rotary_size
    frequencies = 1.0 / spec.theta**exponents
    match spec.scaling:
        case None:
            return frequencies, 1.0
        case LinearScaling(factor=factor):
            return frequencies / factor, 1.0
        case FrequencyFactors(factors=factors):
            return frequencies / torch.tensor(factors, dtype=torch.float32), 1.0
        case LongRopeScaling() as scaling:
            is_long = spec.max_positions > scaling.original_max_positions
            factors = scaling.long_factors if is_long else scaling.short_factors
            divisors = torch.tensor(factors, dtype=torch.float32)
            # In this order, as the divisors enter the wavelengths before they are inverted.
            return 1.0 / (divisors * spec.theta**exponents), scaling.attention_factor
        case Llama3Scaling():
            return _llama3(frequencies, spec.scaling), 1.0
        case YarnScaling():
            return _yarn(spec, spec.scaling), spec.scaling.attention_factor


def cos_sin_table(spec: Rope, device: torch.device) -> Tensor:
    """Tabulates cos and sin for every position.

    Returns:
        float32 [max_positions, rotary_size]: the cosines of all pairs, then their sines.
    """
    frequencies, factor = inverse_frequencies(spec)
    positions = torch.arange(spec.max_positions, dtype=torch.float32, device=device)
    angles_PF = torch.outer(positions, frequencies.to(device))
    return torch.cat((angles_PF.cos(), angles_PF.sin()), dim=-1) * factor


def _scaling(
    top: ConfigReader, section: ConfigReader, rotary_size: int, max_positions: int
) -> RopeScaling | None:
    kind = section.string("rope_type", section.string("type", "default"))
    match kind:
        case "default" | "mrope":  # Text has the same position in all sections of a multimodal rope.
            return None
        case "dynamic":  # Stretches only beyond max_position_embeddings, which no sequence exceeds here.
            return None
        case "linear":
            return LinearScaling(factor=section.positive_float("factor"))
        case "llama3":
            return _llama3_from_config(section, max_positions)
        case "yarn":
            return _yarn_from_config(section, max_positions)
        case "longrope" | "su":
            return _longrope_from_config(top, section, rotary_size, max_positions)
        case "gguf_factors":  # Our own, for the divisors in GGUF files; no Hugging Face config uses it.
            return FrequencyFactors(factors=_factors(section, "factors", rotary_size))
        case _:
            raise UnsupportedConfig("rope_scaling.rope_type", f"{kind!r} is not supported")


def _proportional(head_size: int, share: float, factor: float) -> RopeScaling:
    """Only the first share of the pairs turns, with the wavelengths of whole heads."""
    turning = int(share * head_size // 2)
    return FrequencyFactors(factors=(factor,) * turning + (math.inf,) * (head_size // 2 - turning))


def _llama3_from_config(section: ConfigReader, max_positions: int) -> Llama3Scaling:
    low, high = section.positive_float("low_freq_factor"), section.positive_float("high_freq_factor")
    if low >= high:
        raise ConfigError("rope_scaling.high_freq_factor", f"{high} must be above low_freq_factor {low}")
    return Llama3Scaling(
        factor=section.positive_float("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=section.positive_int("original_max_position_embeddings", max_positions),
    )


def _factors(section: ConfigReader, field: str, rotary_size: int) -> tuple[float, ...]:
    factors = tuple(float(factor) for factor in section.sequence(field))
    if len(factors) != rotary_size // 2 or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"rope_scaling.{field}", f"must be {rotary_size // 2} finite numbers above 0")
    return factors


def _longrope_from_config(
    top: ConfigReader, section: ConfigReader, rotary_size: int, max_positions: int
) -> LongRopeScaling:
    field = "original_max_position_embeddings"
    original = section.positive_int(field, top.positive_int(field, max_positions))
    factor = section.positive_float("factor", top.positive_int("max_position_embeddings") / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short_factors=_factors(section, "short_factor", rotary_size),
        long_factors=_factors(section, "long_factor", rotary_size),
        original_max_positions=original,
        attention_factor=section.positive_float("attention_factor", default),
    )


def _yarn_from_config(section: ConfigReader, max_positions: int) -> YarnScaling:
    original = section.positive_int("original_max_position_embeddings", max_positions)
    factor = section.positive_float("factor", max_positions / original)
    if section.has("mscale") and section.has("mscale_all_dim"):
        default = _magnitude(factor, section.positive_float("mscale")) / _magnitude(
            factor, section.positive_float("mscale_all_dim")
        )
    else:
        default = _magnitude(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        attention_factor=section.positive_float("attention_factor", default),
        beta_fast=section.positive_float("beta_fast", 32.0),
        beta_slow=section.positive_float("beta_slow", 1.0),
        truncate=section.boolean("truncate", True),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    original, low, high = scaling.original_max_positions, scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    ramp = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - ramp) * frequencies / scaling.factor + ramp * frequencies


def _yarn(spec: Rope, scaling: YarnScaling) -> Tensor:
    size = spec.rotary_size

    def pair_turning(rotations: float) -> float:
        turns = scaling.original_max_positions / (rotations * 2 * math.pi)
        return size * math.log(turns) / (2 * math.log(spec.theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    # A zero width would divide by zero: the ramp is then a step.
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    wavelengths = spec.theta ** (torch.arange(0, size, 2).float() / size)
    return ramp / (scaling.factor * wavelengths) + (1 - ramp) / wavelengths
