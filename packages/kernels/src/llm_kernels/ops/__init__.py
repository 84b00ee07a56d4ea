"""The public surface of llm_kernels: one function per op, and the questions about its back ends."""

from llm_kernels.decode_rows import DecodeRows, PreparedRows
from llm_kernels.invariance import batch_invariant, is_batch_invariance_wanted
from llm_kernels.metadata import AttentionMetadata, SharedPrefix
from llm_kernels.ops.activation import ActivationKind, activation, gated_activation
from llm_kernels.ops.attention import paged_attention
from llm_kernels.ops.attention_input import rotate_write_kv
from llm_kernels.ops.catalog import available_backends, describe_backends, selected, use_backend
from llm_kernels.ops.causal_conv import causal_conv1d
from llm_kernels.ops.decode_inputs import prepare_decode, store_tokens
from llm_kernels.ops.delta_rule import gated_delta_rule
from llm_kernels.ops.experts import grouped_linear, moe
from llm_kernels.ops.fp8_linear import fp8_linear, fp8_product, fp8_quantizes_from
from llm_kernels.ops.gated_linear import gated_linear
from llm_kernels.ops.head_linear import head_linear
from llm_kernels.ops.kv_write import write_kv, write_latent
from llm_kernels.ops.latent_attention import latent_attention
from llm_kernels.ops.linear import linear
from llm_kernels.ops.linear_attention import linear_attention
from llm_kernels.ops.norm import fused_add_layer_norm, fused_add_rms_norm, layer_norm, rms_norm
from llm_kernels.ops.quantize_fp8 import gated_activation_fp8, quantize_fp8, rms_norm_fp8
from llm_kernels.ops.rg_lru import rg_lru
from llm_kernels.ops.rope import rotary_embedding
from llm_kernels.ops.routing import route_experts
from llm_kernels.ops.sampling import draw_tokens, sample, token_ranks
from llm_kernels.ops.selective_scan import selective_scan
from llm_kernels.ops.ssd_scan import ssd_scan
from llm_kernels.ops.varlen_attention import varlen_attention
from llm_kernels.registry import BackendStatus
from llm_kernels.sampling_batch import Penalties, SampleOutput, SamplingBatch, TokenRanks

__all__ = [
    "ActivationKind",
    "AttentionMetadata",
    "BackendStatus",
    "DecodeRows",
    "Penalties",
    "PreparedRows",
    "SampleOutput",
    "SamplingBatch",
    "SharedPrefix",
    "TokenRanks",
    "activation",
    "available_backends",
    "batch_invariant",
    "causal_conv1d",
    "describe_backends",
    "draw_tokens",
    "fp8_linear",
    "fp8_product",
    "fp8_quantizes_from",
    "fused_add_layer_norm",
    "fused_add_rms_norm",
    "gated_activation",
    "gated_activation_fp8",
    "gated_delta_rule",
    "gated_linear",
    "grouped_linear",
    "head_linear",
    "is_batch_invariance_wanted",
    "latent_attention",
    "layer_norm",
    "linear",
    "linear_attention",
    "moe",
    "paged_attention",
    "prepare_decode",
    "quantize_fp8",
    "rg_lru",
    "rms_norm",
    "rms_norm_fp8",
    "rotary_embedding",
    "rotate_write_kv",
    "route_experts",
    "sample",
    "selected",
    "selective_scan",
    "ssd_scan",
    "store_tokens",
    "token_ranks",
    "use_backend",
    "varlen_attention",
    "write_kv",
    "write_latent",
]
