"""Owns the description of a decoder as plain frozen data; knows nothing about tensors, files or configs.

An architecture turns a Hugging Face config into a `DecoderSpec`, and the one `Decoder` runs any spec. New
kinds of mixer or feed-forward join the unions `MixerSpec` and `FeedForwardSpec`.
"""

from dataclasses import dataclass, field
from typing import Literal

from llm_models.errors import UnsupportedConfig

Activation = Literal["silu", "gelu", "gelu_tanh"]
NormPlacement = Literal["pre"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """Root-mean-square normalisation over the last dimension."""

    eps: float


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


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding of the first `rotary_size` dimensions of a head, in halves, not interleaved."""

    rotary_size: int
    theta: float
    max_positions: int
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Causal attention with grouped KV heads.

    `scale` multiplies the scores. `sliding_window` is how many keys a query sees, its own included.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    rope: RopeSpec
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: NormSpec | None = None
    sliding_window: int | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """Gated feed-forward: `down(activation(gate(x)) * up(x))`."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False


MixerSpec = AttentionSpec
FeedForwardSpec = MLPSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """One layer: a mixer and a feed-forward, each with a norm and a residual connection around it."""

    mixer: MixerSpec
    feed_forward: FeedForwardSpec
    norm: NormSpec
    norm_placement: NormPlacement = "pre"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """Token embedding and output head. `tied`: the head is the embedding's transpose."""

    vocab_size: int
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """Names of a checkpoint's modules; the defaults are those of Hugging Face's Llama family.

    `layer` has one `{layer}` field; the names below it are relative to it. `harmless` holds regular
    expressions of tensors that a checkpoint may hold although nothing needs them.
    """

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{layer}"
    mixer_norm: str = "input_layernorm"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    feed_forward_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    harmless: tuple[str, ...] = (r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Everything that the runtime and the loader must know about a decoder.

    Raises:
        UnsupportedConfig: There is no layer, or the layers differ in the shape of their KV cache.
    """

    architecture: str
    hidden_size: int
    max_positions: int
    embedding: EmbeddingSpec
    layers: tuple[BlockSpec, ...]
    final_norm: NormSpec
    names: TensorNames = field(default_factory=TensorNames)

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedConfig("num_hidden_layers", "a decoder needs at least one layer")
        if len({(block.mixer.num_kv_heads, block.mixer.head_size) for block in self.layers}) > 1:
            raise UnsupportedConfig("layers", "all layers must have the same KV heads and head size")
