"""Configs of dense decoders as they are published, against what transformers 5 makes of them."""

import copy

import pytest
import transformers
from llm_models import spec_for
from llm_models.errors import ConfigError, UnsupportedConfig

LONGROPE = {
    "long_factor": [1.0, 2.0] * 24, "short_factor": [1.0, 1.1] * 24, "type": "longrope",
}  # fmt: skip
PHI3 = {
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_scaling": LONGROPE, "rope_theta": 10000.0, "sliding_window": 262144,
    "hidden_act": "silu", "vocab_size": 32064, "tie_word_embeddings": False,
}  # fmt: skip
# (class, config as on the Hub)
PUBLISHED = {
    "gemma-2b": ("Gemma", {
        "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 16384,
        "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 2,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
        "torch_dtype": "bfloat16", "vocab_size": 256000,
    }),
    "gemma-2-2b": ("Gemma2", {
        "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
        "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
        "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 4,
        "query_pre_attn_scalar": 224, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
        "vocab_size": 256000,
    }),
    "gemma-3-1b": ("Gemma3Text", {
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 7, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
    }),
    "phi-3-mini-128k": ("Phi3", PHI3),
    "phi-4-mini": ("Phi3", PHI3 | {
        "num_attention_heads": 24, "num_key_value_heads": 8, "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
    }),
    "glm-4-9b-chat-hf": ("Glm", {
        "attention_bias": True, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 13696,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07,
        "rope_theta": 10000.0, "vocab_size": 151552, "hidden_act": "silu", "tie_word_embeddings": False,
    }),
    "command-r": ("Cohere", {
        "attention_bias": False, "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 22528,
        "layer_norm_eps": 1e-05, "logit_scale": 0.0625, "max_position_embeddings": 8192,
        "num_attention_heads": 64, "num_hidden_layers": 2, "num_key_value_heads": 64,
        "rope_theta": 8000000.0, "use_qk_norm": False, "vocab_size": 256000,
    }),
    "command-r7b": ("Cohere2", {
        "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "layer_norm_eps": 1e-05, "logit_scale": 0.25,
        "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 8,
        "num_key_value_heads": 8, "rope_scaling": None, "rope_theta": 50000, "sliding_window": 4096,
        "sliding_window_pattern": 4, "vocab_size": 256000,
    }),
    "olmo-7b": ("Olmo", {
        "clip_qkv": 8.0, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
        "num_hidden_layers": 2, "num_key_value_heads": 32, "max_position_embeddings": 2048,
        "rope_theta": 10000.0, "vocab_size": 50304, "tie_word_embeddings": False, "hidden_act": "silu",
    }),
    "olmo-3": ("Olmo3", {
        "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 4,
        "num_key_value_heads": 32, "max_position_embeddings": 65536, "rope_theta": 500000,
        "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
                         "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
        "rms_norm_eps": 1e-06, "sliding_window": 4096, "vocab_size": 100278, "hidden_act": "silu",
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "tie_word_embeddings": False,
    }),
    "granite-3.0": ("Granite", {
        "attention_bias": False, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0,
        "max_position_embeddings": 4096, "mlp_bias": False, "num_attention_heads": 32,
        "num_hidden_layers": 2, "num_key_value_heads": 8, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05, "rope_theta": 10000, "tie_word_embeddings": True, "vocab_size": 49155,
    }),
    "exaone-4-32b": ("Exaone4", {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "max_position_embeddings": 131072,
        "num_attention_heads": 40, "num_hidden_layers": 4, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
        "tie_word_embeddings": False, "vocab_size": 102400,
    }),
    "smollm3": ("SmolLM3", {
        "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
        "layer_types": ["full_attention"] * 4, "max_position_embeddings": 65536, "max_window_layers": 28,
        "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0],
        "num_attention_heads": 16, "num_hidden_layers": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
        "vocab_size": 128256,
    }),
    "apertus": ("Apertus", {
        "attention_bias": False, "hidden_act": "xielu", "hidden_size": 4096, "intermediate_size": 21504,
        "max_position_embeddings": 65536, "mlp_bias": False, "num_attention_heads": 32,
        "num_hidden_layers": 2, "num_key_value_heads": 8, "qk_norm": True, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3"},
        "rope_theta": 12000000, "tie_word_embeddings": False, "vocab_size": 131072,
    }),
    "hunyuan-7b": ("HunYuanDenseV1", {
        "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "use_cla": False,
        "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "type": "dynamic"},
        "rope_theta": 10000.0, "use_qk_norm": True, "vocab_size": 128167, "tie_word_embeddings": True,
    }),
    "ernie-4.5": ("Ernie4_5", {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 131072, "num_attention_heads": 16, "num_hidden_layers": 2,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 500000, "use_bias": False,
        "tie_word_embeddings": True, "vocab_size": 103424,
    }),
    "minitron": ("Nemotron", {
        "attention_bias": False, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 3072,
        "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": False, "norm_eps": 1e-05,
        "num_attention_heads": 24, "num_hidden_layers": 2, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "vocab_size": 256000,
        "tie_word_embeddings": False,
    }),
    "stablelm-2-12b": ("StableLm", {
        "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 13824, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.25, "qk_layernorm": True, "rope_theta": 10000,
        "tie_word_embeddings": False, "use_parallel_residual": True, "use_qkv_bias": False,
        "vocab_size": 100352,
    }),
    "persimmon": ("Persimmon", {
        "hidden_act": "relu2", "hidden_size": 4096, "intermediate_size": 16384, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 16384, "num_attention_heads": 64, "num_hidden_layers": 2,
        "partial_rotary_factor": 0.5, "qk_layernorm": True, "rope_theta": 25000.0, "vocab_size": 262144,
        "tie_word_embeddings": False,
    }),
    "starcoder2-3b": ("Starcoder2", {
        "activation_function": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
        "intermediate_size": 12288, "max_position_embeddings": 16384, "norm_epsilon": 1e-05,
        "num_attention_heads": 24, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "rope_theta": 999999.4420358813, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    }),
    "ministral-3": ("Ministral3", {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "sliding_window": None, "vocab_size": 131072,
        "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "rope_theta": 1000000.0,
                            "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
                            "original_max_position_embeddings": 16384, "rope_type": "yarn",
                            "type": "yarn"},
        "tie_word_embeddings": False,
    }),
    "gemma-4-e2b": ("Gemma4Text", {
        "attention_k_eq_v": False, "enable_moe_block": False, "final_logit_softcapping": 30.0,
        "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1536, "hidden_size_per_layer_input": 256, "intermediate_size": 6144,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3, "num_hidden_layers": 15,
        "max_position_embeddings": 131072, "num_attention_heads": 8, "num_global_key_value_heads": None,
        "num_key_value_heads": 1, "num_kv_shared_layers": 8, "rms_norm_eps": 1e-06, "sliding_window": 512,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                               "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "use_double_wide_mlp": True, "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
    }),
    "gemma-4-31b": ("Gemma4Text", {
        "attention_k_eq_v": True, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "hidden_size_per_layer_input": 0,
        "intermediate_size": 21504, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "max_position_embeddings": 262144, "num_attention_heads": 32, "num_global_key_value_heads": 4,
        "num_hidden_layers": 6, "num_key_value_heads": 16, "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-06, "sliding_window": 1024, "vocab_size": 262144,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_old_and_new_spelling_mean_the_same(name):
    family, published = PUBLISHED[name]
    architectures = {"architectures": [f"{family.removesuffix('Text')}ForCausalLM"]}
    converted = getattr(transformers, f"{family}Config").from_dict(copy.deepcopy(published)).to_dict()
    assert spec_for({**published, **architectures}) == spec_for({**converted, **architectures})


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_older_names_of_longrope(kind):
    config = {"architectures": ["Phi3ForCausalLM"], **PHI3}
    assert spec_for(config | {"rope_scaling": LONGROPE | {"type": kind}}) == spec_for(config)


def test_the_text_part_has_the_defaults_of_its_class():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 6, "sliding_window": 1024,
            "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}  # fmt: skip
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    converted = transformers.Gemma3Config.from_dict(copy.deepcopy(config)).to_dict()
    spec = spec_for(config)
    assert spec == spec_for({**converted, "architectures": config["architectures"]})
    assert (spec.embedding.vocab_size, spec.head.tied, len(spec.layers)) == (262208, True, 6)


@pytest.mark.parametrize(
    ("name", "changes", "field", "kind"),
    [
        (
            "gemma-3-1b",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention",
            UnsupportedConfig,
        ),
        ("gemma-3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping", UnsupportedConfig),
        ("gemma-2-2b", {"sliding_window": None}, "sliding_window", ConfigError),
        ("gemma-2-2b", {"layer_types": ["chunked_attention"] * 4}, "layer_types", UnsupportedConfig),
        ("gemma-2-2b", {"layer_types": ["full_attention"]}, "layer_types", ConfigError),
        ("gemma-2-2b", {"hidden_activation": "snake"}, "hidden_activation", UnsupportedConfig),
        ("olmo-7b", {"clip_qkv": -1.0}, "clip_qkv", ConfigError),
        ("hunyuan-7b", {"use_cla": True}, "use_cla", UnsupportedConfig),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers", ConfigError),
        ("gemma-4-e2b", {"num_kv_shared_layers": 15}, "num_kv_shared_layers", ConfigError),
        ("gemma-4-e2b", {"vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input", ConfigError),
        (
            "gemma-4-31b",
            {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention",
            UnsupportedConfig,
        ),
    ],
)
def test_refused_fields_are_named(name, changes, field, kind):
    family, published = PUBLISHED[name]
    config = {**published, "architectures": [f"{family.removesuffix('Text')}ForCausalLM"], **changes}
    with pytest.raises(kind) as caught:
        spec_for(config)
    assert caught.value.field == field
