"""Owns the description of a model as plain frozen data; knows nothing about tensors, files or configs.

An architecture turns a Hugging Face config into a `DecoderSpec`, and the one `Decoder` runs any spec. What a
layer consists of is in `blocks`: each kind of mixer and feed-forward is one file there.
"""

from dataclasses import dataclass

from llm_models.blocks.layer import LayerSpec
from llm_models.blocks.norm import Norm
from llm_models.errors import UnsupportedConfig
from llm_models.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositions:
    """An embedding of the position, added to that of the token.

    Attributes:
        count: Rows of the table.
        offset: Row of position 0.
        after_projection: Whether they join after the embedding's projection to the hidden size.
    """

    count: int
    offset: int = 0
    after_projection: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinusoidalPositions:
    """Sines and cosines of the position, added to the token's embedding.

    Attributes:
        count: Rows of the table.
        offset: Row of position 0.
        reaches_slowest: The last pair turns once in 2 pi 10000 positions; else the one after it would.
    """

    count: int
    offset: int = 0
    reaches_slowest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """From token ids to the first hidden states.

    Attributes:
        vocab_size: Rows of the table.
        scale: Factor of the embeddings, rounded to the model's number format.
        size: Columns of the table, where a projection leads to the hidden size; None: the hidden size.
        projection_bias: Whether that projection has a bias.
        positions: What is added for a token's position; None where positions enter elsewhere.
        token_types: Rows of a table of the tokens' types, added too; 0 for none.
        norm: Applied to the sum; None for none.
    """

    vocab_size: int
    scale: float = 1.0
    size: int | None = None
    projection_bias: bool = False
    positions: LearnedPositions | SinusoidalPositions | None = None
    token_types: int = 0
    norm: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """From hidden states to the scores of the vocabulary.

    Attributes:
        tied: The matrix is the embedding's.
        bias: Whether there is a bias.
        bias_default: Its values where the checkpoint does not hold it; None: it must.
        scale: Factor of the scores.
        soft_cap: Scores become `soft_cap * tanh(score / soft_cap)`.
        size: Input features, where a projection leads from the hidden size to them; None: the hidden size.
        unit_rows: The matrix's rows are scaled to length 1.
    """

    tied: bool
    bias: bool = False
    bias_default: float | None = None
    scale: float = 1.0
    soft_cap: float | None = None
    size: int | None = None
    unit_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Everything that the runtime and the loader must know about a decoder.

    Attributes:
        architecture: Its name in Hugging Face configs.
        hidden_size: Width of the residual stream.
        max_positions: Longest sequence.
        embedding: The way in.
        layers: In order.
        final_norm: Before the head; None for none.
        head: The way out.
        names: Where a checkpoint keeps the tensors.

    Raises:
        UnsupportedConfig: There is no layer.
    """

    architecture: str
    hidden_size: int
    max_positions: int
    embedding: Embedding
    layers: tuple[LayerSpec, ...]
    final_norm: Norm | None
    head: Head
    names: Names

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedConfig("num_hidden_layers", "a decoder needs at least one layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEmbedding:
    """From frames of a log-mel spectrogram to the first hidden states: two convolutions over time.

    Both have three taps and a GELU; the second halves the number of frames. Then learned positions are added.

    Attributes:
        num_mel_bins: Values of a frame.
        num_positions: Rows of the table of positions: states of the longest input.
    """

    num_mel_bins: int
    num_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What turns an input into states that a decoder attends to.

    Attributes:
        hidden_size: Width of the states.
        max_positions: States of the longest input.
        embedding: The way in.
        layers: In order; their attention is not causal.
        final_norm: Of the states; None for none.
        shares_table: The decoder's table of tokens is the encoder's too.
    """

    hidden_size: int
    max_positions: int
    embedding: Embedding | AudioEmbedding
    layers: tuple[LayerSpec, ...]
    final_norm: Norm | None
    shares_table: bool = False

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedConfig("encoder_layers", "an encoder needs at least one layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderSpec:
    """A decoder whose layers attend to what an encoder makes of another input.

    Attributes:
        encoder: Its tensors' canonical names begin with `encoder.`, also in `decoder.names`.
        decoder: Has blocks of cross attention.
        start: Token that the decoder's sequence starts with; None where the prompt says so.
    """

    encoder: EncoderSpec
    decoder: DecoderSpec
    start: int | None = None
