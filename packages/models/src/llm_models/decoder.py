"""Owns the one runtime that executes any `DecoderSpec`; knows nothing about files, requests or scheduling.

Host time per layer bounds small-batch decoding on a GPU, so layers are plain objects with slots that hold
their tensors and constants; nothing is looked up or computed in a step that could be known before.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.ops import AttentionMetadata
from torch import Tensor, nn

from llm_models.rope import cos_sin_table
from llm_models.spec import AttentionSpec, BlockSpec, DecoderSpec, MLPSpec, RopeSpec

KVCaches = Sequence[tuple[Tensor, Tensor]]


class Decoder(nn.Module):
    """A decoder with its weights on one device.

    The parameters are registered (`named_parameters`, `state_dict`), but do not move them: the layers hold
    them, and the tables of cos and sin, by reference. Load onto the device instead.

    Args:
        spec: What to run.
        parameters: Every tensor of `parameter_specs(spec)`, by name, on one device and in one dtype.
    """

    def __init__(self, spec: DecoderSpec, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec = spec
        _register(self, parameters)
        self._embedding = parameters["embedding.weight"]
        self._head = parameters.get("head.weight", self._embedding)
        tables: dict[RopeSpec, Tensor] = {}
        self._layers = tuple(
            _build_layer(spec, index, parameters, tables) for index in range(len(spec.layers))
        )
        self._first_norm = parameters["layers.0.mixer_norm.weight"]
        self._first_eps = spec.layers[0].norm.eps

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights, the hidden states and the KV cache."""
        return self._embedding.dtype

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, metadata: AttentionMetadata, kv_caches: KVCaches) -> Tensor:
        """Runs the tokens of one step and writes their keys and values into the caches.

        Args:
            input_ids: int64 [T], every id within the vocabulary.
            metadata: Which rows and cache blocks the tokens belong to; positions below `spec.max_positions`.
            kv_caches: Per layer the key and the value cache, each of `kv_cache_shape`.

        Returns:
            Hidden states after the final norm, [T, hidden_size], in the weights' dtype.

        Raises:
            ValueError: Not one pair of caches a layer.
        """
        residual_TE = F.embedding(input_ids, self._embedding)
        x_TE = torch.empty_like(residual_TE)
        ops.rms_norm(x_TE, residual_TE, self._first_norm, self._first_eps)
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            x_TE = layer.run(x_TE, residual_TE, metadata, cache)
        return x_TE

    @torch.inference_mode()
    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores every token of the vocabulary for the given rows of hidden states.

        Returns:
            float32 [R, vocab_size].
        """
        return self.raw_logits(hidden_RE).float()

    @torch.inference_mode()
    def raw_logits(self, hidden_RE: Tensor) -> Tensor:
        """As `logits` in the weights' dtype, for who reads them once: a wider copy costs more than that.

        Returns:
            [R, vocab_size].
        """
        scores_RV: Tensor = ops.linear(hidden_RE, self._head)
        return scores_RV

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """Shape of a layer's key cache and of its value cache: [blocks, block size, KV heads, head size]."""
        mixer = self.spec.layers[0].mixer
        return (num_blocks, block_size, mixer.num_kv_heads, mixer.head_size)

    def kv_bytes_per_block(self, block_size: int, dtype: torch.dtype | None = None) -> int:
        """Bytes of one block over all layers, keys and values together; `dtype` is the model's by default."""
        blocks, tokens, heads, size = self.kv_cache_shape(1, block_size)
        return 2 * len(self._layers) * blocks * tokens * heads * size * (dtype or self.dtype).itemsize

    def allocate_kv_caches(
        self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Allocates zeroed caches for all layers on the model's device."""
        shape = self.kv_cache_shape(num_blocks, block_size)

        def cache() -> Tensor:
            return torch.zeros(shape, dtype=dtype or self.dtype, device=self.device)

        return [(cache(), cache()) for _ in self._layers]


class _Layer:
    """One block. It also applies the norm that comes next: the following block's first, or the final one."""

    __slots__ = ("_feed_forward", "_mixer", "_next_eps", "_next_norm", "_norm", "_norm_eps")

    def __init__(
        self,
        mixer: "_Attention",
        feed_forward: "_MLP",
        norm: tuple[Tensor, float],
        next_norm: tuple[Tensor, float],
    ) -> None:
        self._mixer = mixer
        self._feed_forward = feed_forward
        self._norm, self._norm_eps = norm
        self._next_norm, self._next_eps = next_norm

    def run(
        self, x_TE: Tensor, residual_TE: Tensor, metadata: AttentionMetadata, cache: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Takes and gives a normed input; the residual stream is updated in place."""
        x_TE = self._mixer.run(x_TE, metadata, cache)
        ops.fused_add_rms_norm(x_TE, residual_TE, self._norm, self._norm_eps)
        x_TE = self._feed_forward.run(x_TE)
        ops.fused_add_rms_norm(x_TE, residual_TE, self._next_norm, self._next_eps)
        return x_TE


class _Attention:
    """Grouped-query attention over the paged cache."""

    __slots__ = (
        "_cos_sin",
        "_head_size",
        "_heads",
        "_key_norm",
        "_kv_heads",
        "_norm_eps",
        "_output",
        "_output_bias",
        "_qkv",
        "_qkv_bias",
        "_query_norm",
        "_scale",
        "_sizes",
        "_window",
    )

    def __init__(
        self, spec: AttentionSpec, weights: Mapping[str, Tensor], prefix: str, cos_sin: Tensor
    ) -> None:
        self._heads, self._kv_heads, self._head_size = spec.num_heads, spec.num_kv_heads, spec.head_size
        self._sizes = (spec.query_size, spec.kv_size, spec.kv_size)
        self._scale, self._window = spec.scale, spec.sliding_window
        self._cos_sin = cos_sin
        self._qkv, self._qkv_bias = weights[prefix + "qkv.weight"], weights.get(prefix + "qkv.bias")
        self._output, self._output_bias = (
            weights[prefix + "output.weight"],
            weights.get(prefix + "output.bias"),
        )
        self._query_norm = weights.get(prefix + "query_norm.weight")
        self._key_norm = weights.get(prefix + "key_norm.weight")
        self._norm_eps = spec.qk_norm.eps if spec.qk_norm is not None else 0.0

    def run(self, x_TE: Tensor, metadata: AttentionMetadata, cache: tuple[Tensor, Tensor]) -> Tensor:
        tokens, size = x_TE.shape[0], self._head_size
        qkv = ops.linear(x_TE, self._qkv, self._qkv_bias)
        query, key, value = qkv.split_with_sizes(self._sizes, dim=1)
        query_THD = query.view(tokens, self._heads, size)
        key_TKD = key.view(tokens, self._kv_heads, size)
        value_TKD = value.view(tokens, self._kv_heads, size)
        if self._query_norm is not None and self._key_norm is not None:
            ops.rms_norm(query_THD, query_THD, self._query_norm, self._norm_eps)
            ops.rms_norm(key_TKD, key_TKD, self._key_norm, self._norm_eps)
        ops.rotary_embedding(query_THD, key_TKD, metadata.positions, self._cos_sin)
        key_cache, value_cache = cache
        ops.write_kv(key_TKD, value_TKD, key_cache, value_cache, metadata.slot_mapping)
        out_THD = torch.empty((tokens, self._heads, size), dtype=x_TE.dtype, device=x_TE.device)
        ops.paged_attention(
            out_THD,
            query_THD,
            key_cache,
            value_cache,
            metadata,
            scale=self._scale,
            sliding_window=self._window,
        )
        return ops.linear(out_THD.view(tokens, -1), self._output, self._output_bias)


class _MLP:
    """Gated feed-forward with gate and up projection in one matrix."""

    __slots__ = ("_activation", "_down", "_down_bias", "_gate_up", "_gate_up_bias", "_inner")

    def __init__(self, spec: MLPSpec, weights: Mapping[str, Tensor], prefix: str) -> None:
        self._activation, self._inner = spec.activation, spec.intermediate_size
        self._gate_up, self._gate_up_bias = (
            weights[prefix + "gate_up.weight"],
            weights.get(prefix + "gate_up.bias"),
        )
        self._down, self._down_bias = weights[prefix + "down.weight"], weights.get(prefix + "down.bias")

    def run(self, x_TE: Tensor) -> Tensor:
        gate_up = ops.linear(x_TE, self._gate_up, self._gate_up_bias)
        inner_TI = torch.empty((x_TE.shape[0], self._inner), dtype=x_TE.dtype, device=x_TE.device)
        ops.gated_activation(inner_TI, gate_up, self._activation)
        return ops.linear(inner_TI, self._down, self._down_bias)


def _build_layer(
    spec: DecoderSpec, index: int, weights: Mapping[str, Tensor], tables: dict[RopeSpec, Tensor]
) -> _Layer:
    block, prefix = spec.layers[index], f"layers.{index}."
    rope = block.mixer.rope
    if rope not in tables:  # Layers with the same rope share one table.
        tables[rope] = cos_sin_table(rope, weights["embedding.weight"].device)
    return _Layer(
        _Attention(block.mixer, weights, prefix, tables[rope]),
        _MLP(block.feed_forward, weights, prefix),
        (weights[prefix + "feed_forward_norm.weight"], block.norm.eps),
        _next_norm(spec.layers, index, weights, spec),
    )


def _next_norm(
    layers: Sequence[BlockSpec], index: int, weights: Mapping[str, Tensor], spec: DecoderSpec
) -> tuple[Tensor, float]:
    if index + 1 == len(layers):
        return weights["final_norm.weight"], spec.final_norm.eps
    return weights[f"layers.{index + 1}.mixer_norm.weight"], layers[index + 1].norm.eps


def _register(root: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Registers the tensors under their dotted names, through empty modules."""
    for name, tensor in parameters.items():
        module = root
        *path, leaf = name.split(".")
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        module.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
