"""Owns which parameters a spec has and which tensors fill which rows of them; knows nothing about files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_models.spec import AttentionSpec, DecoderSpec, MLPSpec


@dataclass(frozen=True, slots=True)
class Part:
    """A checkpoint tensor that fills `rows` rows of a parameter."""

    tensor: str
    rows: int


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter of the runtime. Its parts lie below each other along dimension 0."""

    name: str
    kind: Literal["matrix", "bias", "norm"]
    parts: tuple[Part, ...]
    columns: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole parameter's shape."""
        return self.part_shape(sum(part.rows for part in self.parts))

    def part_shape(self, rows: int) -> tuple[int, ...]:
        """Shape of `rows` rows of the parameter."""
        return (rows,) if self.columns is None else (rows, self.columns)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a checkpoint tensor of `shape` goes: rows from `start` on of the parameter `parameter`."""

    parameter: str
    start: int
    shape: tuple[int, ...]


def parameter_specs(spec: DecoderSpec) -> tuple[ParameterSpec, ...]:
    """All parameters of a decoder, in the order in which a step reads them."""
    return tuple(_parameters(spec))


def expected_tensors(parameters: Sequence[ParameterSpec]) -> Mapping[str, Slot]:
    """Every checkpoint tensor that the parameters need, by name."""
    expected = {}
    for parameter in parameters:
        start = 0
        for part in parameter.parts:
            expected[part.tensor] = Slot(parameter.name, start, parameter.part_shape(part.rows))
            start += part.rows
    return expected


def _parameters(spec: DecoderSpec) -> Iterator[ParameterSpec]:
    names, width = spec.names, spec.hidden_size
    vocabulary = spec.embedding.vocab_size
    yield from _linear("embedding", {names.embedding: vocabulary}, width, bias=False)
    for index, block in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", names.layer.format(layer=index) + "."
        yield _norm(f"{ours}mixer_norm", theirs + names.mixer_norm, width)
        yield from _attention(spec, block.mixer, ours, theirs)
        yield _norm(f"{ours}feed_forward_norm", theirs + names.feed_forward_norm, width)
        yield from _mlp(spec, block.feed_forward, ours, theirs)
    yield _norm("final_norm", names.final_norm, width)
    if not spec.embedding.tied:
        yield from _linear("head", {names.head: vocabulary}, width, bias=False)


def _attention(spec: DecoderSpec, mixer: AttentionSpec, ours: str, theirs: str) -> Iterator[ParameterSpec]:
    names, width = spec.names, spec.hidden_size
    parts = {
        theirs + names.query: mixer.query_size,
        theirs + names.key: mixer.kv_size,
        theirs + names.value: mixer.kv_size,
    }
    yield from _linear(f"{ours}qkv", parts, width, bias=mixer.qkv_bias)
    if mixer.qk_norm is not None:
        yield _norm(f"{ours}query_norm", theirs + names.query_norm, mixer.head_size)
        yield _norm(f"{ours}key_norm", theirs + names.key_norm, mixer.head_size)
    yield from _linear(
        f"{ours}output", {theirs + names.output: width}, mixer.query_size, bias=mixer.output_bias
    )


def _mlp(spec: DecoderSpec, mlp: MLPSpec, ours: str, theirs: str) -> Iterator[ParameterSpec]:
    names, width, inner = spec.names, spec.hidden_size, mlp.intermediate_size
    parts = {theirs + names.gate: inner, theirs + names.up: inner}
    yield from _linear(f"{ours}gate_up", parts, width, bias=mlp.bias)
    yield from _linear(f"{ours}down", {theirs + names.down: width}, inner, bias=mlp.bias)


def _linear(name: str, parts: Mapping[str, int], columns: int, *, bias: bool) -> Iterator[ParameterSpec]:
    weights = tuple(Part(f"{module}.weight", rows) for module, rows in parts.items())
    yield ParameterSpec(f"{name}.weight", "matrix", weights, columns)
    if bias:
        biases = tuple(Part(f"{module}.bias", rows) for module, rows in parts.items())
        yield ParameterSpec(f"{name}.bias", "bias", biases)


def _norm(name: str, module: str, width: int) -> ParameterSpec:
    return ParameterSpec(f"{name}.weight", "norm", (Part(f"{module}.weight", width),))
