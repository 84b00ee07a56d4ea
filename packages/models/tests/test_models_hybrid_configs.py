"""Published configs of recurrent and hybrid decoders, against what transformers 5 makes of them."""

import copy

import pytest
import transformers
from llm_models import spec_for
from llm_models.caches import KVCacheSpec, LatentCacheSpec, StateCacheSpec
from llm_models.decoder import decoder_caches, decoder_parameters
from llm_models.errors import ConfigError, UnsupportedConfig

# (class, config as on the Hub, with fewer and narrower layers)
PUBLISHED = {
    "falcon-mamba-7b": ("FalconMamba", {
        "conv_kernel": 4, "expand": 16, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 1024,
        "layer_norm_epsilon": 1e-05, "num_hidden_layers": 2, "state_size": 16, "time_step_rank": 256,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_bias": False, "use_conv_bias": True,
        "vocab_size": 128, "mixer_rms_eps": 1e-06,
    }),
    "jamba-v0.1": ("Jamba", {
        "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2,
        "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "mamba_conv_bias": True,
        "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2,
        "mamba_proj_bias": False, "max_position_embeddings": 262144, "num_attention_heads": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 8, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06, "sliding_window": None, "use_mamba_kernels": True, "vocab_size": 128,
    }),
    "bamba-9b": ("Bamba", {
        "attention_bias": False, "attn_layer_indices": [1], "attn_rotary_emb": 64, "hidden_act": "silu",
        "hidden_size": 64, "intermediate_size": 96, "mamba_conv_bias": True, "mamba_d_conv": 4,
        "mamba_d_head": 16, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 8,
        "max_position_embeddings": 4096, "num_attention_heads": 4, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "vocab_size": 128,
    }),
    "granite-4.0-h": ("GraniteMoeHybrid", {
        "attention_bias": False, "attention_multiplier": 0.0078125, "embedding_multiplier": 12,
        "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 32, "mamba_conv_bias": True,
        "layer_types": ["mamba", "attention", "mamba"], "logits_scaling": 8, "mamba_d_conv": 4,
        "mamba_d_head": 16, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 8,
        "max_position_embeddings": 131072, "num_attention_heads": 4, "num_experts_per_tok": 2,
        "num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 4, "rms_norm_eps": 1e-05,
        "position_embedding_type": "nope", "residual_multiplier": 0.22, "rope_theta": 10000,
        "shared_intermediate_size": 48, "tie_word_embeddings": True, "vocab_size": 128,
    }),
    "nemotron-h-8b": ("NemotronH", {
        "attention_bias": False, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 16,
        "hidden_size": 64, "hybrid_override_pattern": "M-M*E", "intermediate_size": 96,
        "layer_norm_epsilon": 1e-05, "mamba_head_dim": 16, "mamba_num_heads": 8, "mlp_bias": False,
        "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2", "n_groups": 8, "num_attention_heads": 4,
        "num_hidden_layers": 5, "num_key_value_heads": 2, "ssm_state_size": 128, "time_step_min": 0.001,
        "time_step_limit": [0.0, float("inf")], "use_conv_bias": True, "vocab_size": 128,
        "n_routed_experts": 4, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
    }),
    "recurrentgemma-2b": ("RecurrentGemma", {
        "attention_bias": False, "attention_window_size": 2048, "block_types": ["recurrent", "attention"],
        "conv1d_width": 4, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 80,
        "intermediate_size": 96, "logits_soft_cap": 30.0, "lru_width": 80, "num_attention_heads": 10,
        "num_hidden_layers": 3, "num_key_value_heads": 1, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "vocab_size": 128,
    }),
    "kimi-linear-48b": ("KimiLinear", {
        "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 96, "kv_lora_rank": 16, "model_max_length": 1048576, "mla_use_nope": True,
        "linear_attn_config": {"full_attn_layers": [2], "head_dim": 16, "kda_layers": [1, 3],
                               "num_heads": 2, "short_conv_kernel_size": 4},
        "moe_intermediate_size": 32, "moe_layer_freq": 1, "moe_renormalize": True, "num_experts": 4,
        "moe_router_activation_func": "sigmoid", "num_attention_heads": 4, "num_expert_group": 1,
        "num_experts_per_token": 2, "num_hidden_layers": 3, "num_key_value_heads": 4, "topk_group": 1,
        "num_shared_experts": 1, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "v_head_dim": 8,
        "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "vocab_size": 128,
    }),
    "lfm2-8b-a1b": ("Lfm2Moe", {
        "conv_L_cache": 3, "conv_bias": False, "hidden_size": 64, "intermediate_size": 96, "norm_eps": 1e-05,
        "layer_types": ["conv", "full_attention", "conv"], "max_position_embeddings": 128000,
        "moe_intermediate_size": 32, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 4,
        "num_dense_layers": 1, "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
        "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "use_expert_bias": True, "vocab_size": 128,
    }),
}  # fmt: skip


def spec_of(name: str, **changes: object):
    family, published = PUBLISHED[name]
    return spec_for({**published, "architectures": [f"{family}ForCausalLM"], **changes})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_and_new_spelling_mean_the_same(name):
    family, published = PUBLISHED[name]
    converted = getattr(transformers, f"{family}Config").from_dict(copy.deepcopy(published)).to_dict()
    assert spec_of(name) == spec_for({**converted, "architectures": [f"{family}ForCausalLM"]})


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("granite-4.0-h", [StateCacheSpec, KVCacheSpec, StateCacheSpec]),
        ("nemotron-h-8b", [StateCacheSpec, StateCacheSpec, KVCacheSpec]),
        ("recurrentgemma-2b", [StateCacheSpec, KVCacheSpec, StateCacheSpec]),
        ("kimi-linear-48b", [StateCacheSpec, LatentCacheSpec, StateCacheSpec]),
    ],
)
def test_layers_are_of_the_published_kinds(name, kinds):
    assert [type(cache) for cache in decoder_caches(spec_of(name))] == kinds


def test_layers_share_the_weights_of_the_first_with_a_block():
    """Zamba 2 holds each of its blocks once, however many layers it leads."""
    config = {
        "architectures": ["Zamba2ForCausalLM"], "hidden_size": 64, "n_mamba_heads": 8, "num_mem_blocks": 2,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"], "num_hidden_layers": 5,
        "num_attention_heads": 4, "vocab_size": 128, "mamba_d_state": 8, "adapter_rank": 8,
    }  # fmt: skip
    names = {parameter.name for parameter in decoder_parameters(spec_for(config))}
    holders = {name.split(".")[1] for name in names if name.endswith("attention.input.weight")}
    assert holders == {"1", "2"}
    adapters = {name.removesuffix(".down.weight") for name in names if name.endswith(".down.weight")}
    assert {name for name in adapters if ".adapters." in name} == {
        "layers.1.mlp.adapters.0", "layers.1.mlp.adapters.2", "layers.2.mlp.adapters.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "field", "kind"),
    [
        ("bamba-9b", {"mamba_d_head": 24}, "mamba_n_heads", ConfigError),
        ("bamba-9b", {"hidden_act": "gelu"}, "hidden_act", UnsupportedConfig),
        ("granite-4.0-h", {"position_embedding_type": "alibi"}, "position_embedding_type", UnsupportedConfig),
        ("granite-4.0-h", {"layer_types": ["mamba", "attention", "conv"]}, "layer_types", UnsupportedConfig),
        ("granite-4.0-h", {"layer_types": ["mamba"]}, "layer_types", ConfigError),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern", UnsupportedConfig),
        ("nemotron-h-8b", {"sliding_window": 64}, "sliding_window", UnsupportedConfig),
        ("recurrentgemma-2b", {"block_types": ["linear"]}, "block_types", UnsupportedConfig),
        ("recurrentgemma-2b", {"lru_width": 64}, "lru_width", ConfigError),
        ("kimi-linear-48b", {"mla_use_nope": False}, "mla_use_nope", UnsupportedConfig),
        ("kimi-linear-48b", {"moe_layer_freq": 2}, "moe_layer_freq", UnsupportedConfig),
        ("kimi-linear-48b", {"mlp_layer_types": ["dense"]}, "mlp_layer_types", ConfigError),
        (
            "kimi-linear-48b",
            {"moe_router_activation_func": "softmax"},
            "moe_router_activation_func",
            UnsupportedConfig,
        ),
    ],
)
def test_refused_fields_are_named(name, changes, field, kind):
    with pytest.raises(kind) as caught:
        spec_of(name, **changes)
    assert caught.value.field == field
