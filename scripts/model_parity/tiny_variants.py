"""Owns further tiny configs of a class: rope kinds, biases, ties and what else its checkpoints vary in."""

from typing import Any

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}
_SLIDING_ROPE = {"rope_type": "default", "rope_theta": 100.0}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "original_max_position_embeddings": 128,
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
}
_TIED = {"tie_word_embeddings": True}
_BIASES = {"attention_bias": True, "mlp_bias": True}

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": {
        "mha-tied": {"num_key_value_heads": 4} | _TIED,
        "biases": _BIASES,
        "llama3-rope": {"rope_parameters": _LLAMA3},
        "yarn-rope": {"rope_parameters": _YARN},
        "linear-rope": {"rope_parameters": _LINEAR_ROPE},
        "gelu": {"hidden_act": "gelu_pytorch_tanh", "head_dim": 16},
    },
    "MistralForCausalLM": {"no-window": {"sliding_window": None}},
    "Qwen2ForCausalLM": {
        "windows": {
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
            "layer_types": None,
        }
    },
    "Qwen3ForCausalLM": {"tied": _TIED, "biases": {"attention_bias": True}},
    "Qwen2MoeForCausalLM": {"dense-between": {"decoder_sparse_step": 2, "mlp_only_layers": [3]}},
    "Qwen3MoeForCausalLM": {
        "dense-between": {"decoder_sparse_step": 2},
        "not-normed": {"norm_topk_prob": False},
    },
    "Phi3ForCausalLM": {
        "longrope": {"rope_parameters": _LONGROPE},
        "longrope-beyond": {
            "original_max_position_embeddings": 4,
            "rope_parameters": _LONGROPE | {"original_max_position_embeddings": 4},
        },
        "partial": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
        },
        "window": {"sliding_window": 7},
    },
    "PhiForCausalLM": {"qk-norm": {"qk_layernorm": True}},
    "DeepseekV2ForCausalLM": {
        "plain-query": {"q_lora_rank": None},
        "greedy": {"topk_method": "greedy"},
        "yarn": {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.8}},
    },
    "DeepseekV3ForCausalLM": {
        "plain-query": {"q_lora_rank": None},
        "yarn": {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}},
        "halves": {"rope_interleave": False},
    },
    "Glm4MoeForCausalLM": {"qk-norm": {"use_qk_norm": True, "attention_bias": True}},
    "CohereForCausalLM": {"qk-norm": {"use_qk_norm": True}, "biases": {"attention_bias": True}},
    "OlmoForCausalLM": {"clipped": {"clip_qkv": 1.0}},
    "OlmoeForCausalLM": {"clipped": {"clip_qkv": 1.0}},
    "FalconForCausalLM": {
        "new-decoder": {"new_decoder_architecture": True, "num_kv_heads": 2},
        "new-decoder-one-norm": {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
        },
        "alibi": {"alibi": True},
        "sequential-biases": {"parallel_attn": False, "bias": True, "multi_query": False},
    },
    "GPTNeoXForCausalLM": {"sequential": {"use_parallel_residual": False}},
    "GPTBigCodeForCausalLM": {"mha": {"multi_query": False}},
    "MptForCausalLM": {"clipped": {"attn_config": {"clip_qkv": 1.0}}},
    "OPTForCausalLM": {
        "post-norm": {"do_layer_norm_before": False, "num_hidden_layers": 2, "init_std": 0.12},
        "projected": {"word_embed_proj_dim": 48},
    },
    "StableLmForCausalLM": {
        "parallel-qk-norm": {"use_parallel_residual": True, "qk_layernorm": True},
        "biases": {"use_qkv_bias": True},
    },
    "PersimmonForCausalLM": {"no-qk-norm": {"qk_layernorm": False}},
    "GraniteMoeHybridForCausalLM": {
        "nope": {"position_embedding_type": None},
        "dense-tied": {"num_local_experts": 0, "mamba_proj_bias": True} | _TIED,
    },
    "BambaForCausalLM": {"biases": {"mamba_proj_bias": True, "mamba_conv_bias": False} | _BIASES},
    "MiniMaxForCausalLM": {
        "factors": {
            "full_attn_alpha_factor": 1.3,
            "full_attn_beta_factor": 0.8,
            "linear_attn_alpha_factor": 0.9,
            "linear_attn_beta_factor": 1.2,
            "mlp_alpha_factor": 1.1,
            "mlp_beta_factor": 0.7,
        }
    },
    "Zamba2ForCausalLM": {
        "no-adapters-biases": {
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
            "num_mem_blocks": 1,
            "add_bias_linear": True,
        }
    },
    "ZambaForCausalLM": {"biases": {"mamba_proj_bias": True, "mamba_conv_bias": False}},
    "Lfm3ForCausalLM": {"no-gate": {"use_attention_gate": False, "use_sandwich_norm": False}},
    "KimiLinearForCausalLM": {"query-latent": {"q_lora_rank": 20}, "default-layers": {"layer_types": None}},
    "BailingHybridForCausalLM": {"unbounded": {"kda_safe_gate": False, "q_lora_rank": 20}},
    "OlmoHybridForCausalLM": {
        "nope": {
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
            "linear_allow_neg_eigval": False,
        }
    },
    "Lfm2MoeForCausalLM": {"no-correction": {"use_expert_bias": False, "norm_topk_prob": False}},
    "RecurrentGemmaForCausalLM": {"biases": {"attention_bias": True, "lru_width": 96}},
    "Gemma3ForCausalLM": {
        "untied-soft-cap": {"tie_word_embeddings": False, "final_logit_softcapping": 10.0},
        "linear-rope": {"rope_parameters": {_FULL: _LINEAR_ROPE, _SLIDING: _SLIDING_ROPE}},
    },
    "Olmo3ForCausalLM": {"yarn-rope": {"rope_parameters": {_FULL: _YARN, _SLIDING: _SLIDING_ROPE}}},
    "GraniteForCausalLM": {"biases": _BIASES},
    "GraniteSWAForCausalLM": {"ropes": {"layer_rope_theta": [100.0, 0, 1000.0, 100.0]}},
    "HyperCLOVAXForCausalLM": {"no-post-norm": {"use_post_norm": False}},
    "HunYuanDenseV1ForCausalLM": {
        "raised-base": {
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 100.0}
        }
    },
    "ArceeForCausalLM": {"biases": _BIASES},
    "DiffLlamaForCausalLM": {"biases-mha": {"attention_bias": True, "num_key_value_heads": 4}},
    "SeedOssForCausalLM": {"biases": {"attention_out_bias": True, "mlp_bias": True}},
    "Ernie4_5ForCausalLM": {"biases-untied": {"use_bias": True, "tie_word_embeddings": False}},
    "MinistralForCausalLM": {"mixed": {"layer_types": [_FULL, _SLIDING] * 2}},
    "Starcoder2ForCausalLM": {"window": {"sliding_window": 7}},
    "Gemma4ForCausalLM": {
        "mixture": {
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "num_kv_shared_layers": 0,
        },
        "keys-are-values": {"attention_k_eq_v": True},
    },
    "Exaone4ForCausalLM": {"no-window": {"sliding_window": None, "layer_types": [_FULL] * 4}},
    "Mamba2ForCausalLM": {"biases": {"use_bias": True, "use_conv_bias": False}},
    "MambaForCausalLM": {"biases": {"use_bias": True, "use_conv_bias": False}},
    "FalconH1ForCausalLM": {
        "norm": {"mamba_rms_norm": True},
        "norm-after-gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        "biases": {"mamba_proj_bias": True} | _BIASES,
    },
    "HunYuanMoEV1ForCausalLM": {"biases": {"attention_bias": True}},
    "SmolLM3ForCausalLM": {"windows": {"use_sliding_window": True, "sliding_window": 7, "layer_types": None}},
    "JambaForCausalLM": {"tied": _TIED},
    "NemotronHForCausalLM": {"latent-experts": {"moe_latent_size": 24}},
    "MixtralForCausalLM": {"window": {"sliding_window": 7}},
    "PhimoeForCausalLM": {
        "longrope-biases": {
            "rope_parameters": _LONGROPE | {"short_mscale": 1.2, "long_mscale": 1.3},
            "attention_bias": True,
            "lm_head_bias": True,
        },
    },
    "GptOssForCausalLM": {"tight-clamp": {"swiglu_limit": 0.6, "attention_bias": False}},
    "Glm4MoeLiteForCausalLM": {"plain-query-halves": {"q_lora_rank": None, "rope_interleave": False}},
    "Ernie4_5_MoeForCausalLM": {
        "biases-between": {"use_bias": True, "moe_layer_interval": 2, "tie_word_embeddings": False}
    },
    "GraniteMoeForCausalLM": {"biases": {"attention_bias": True}},
    "GraniteMoeSharedForCausalLM": {"none-shared": {"shared_intermediate_size": 0}},
    "Llama4ForCausalLM": {
        "all-sparse": {
            "interleave_moe_layer_step": 1,
            "use_qk_norm": False,
            "num_experts_per_tok": 1,
            "attention_bias": True,
            "attn_temperature_tuning": False,
        },
    },
    "MiniMaxM2ForCausalLM": {
        "partial": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
        },
    },
    "AfmoeForCausalLM": {"scaled-biases": {"mup_enabled": True, "route_scale": 1.5, "attention_bias": True}},
    "Cohere2MoeForCausalLM": {
        "sigmoid-sum": {
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
            "prefix_dense_intermediate_size": 72,
            "rms_norm_eps": 1e-5,
        },
    },
    "MiMoV2FlashForCausalLM": {"biases": {"attention_bias": True, "attention_value_scale": 1.4}},
    "LagunaForCausalLM": {
        "windows": {
            "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
            "num_attention_heads_per_layer": [4, 2, 4, 2],
            "gating": "per-element",
            "moe_router_logit_softcapping": 1.5,
            "moe_routed_scaling_factor": 2.0,
            "attention_bias": True,
        },
    },
    "HYV3ForCausalLM": {"biases": {"attention_bias": True}},
    "MellumForCausalLM": {
        "windows": {
            "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "rope_parameters": {_FULL: _YARN, _SLIDING: _SLIDING_ROPE},
            "norm_topk_prob": False,
        }
    },
    "LongcatFlashForCausalLM": {
        "biases": {"attention_bias": True},
        # Experts of an odd width are shared out among ranks whole.
        "odd-width": {"expert_ffn_hidden_size": 33},
    },
    "Gemma3nForCausalLM": {
        "partial-table": {
            "vocab_size_per_layer_input": 80,
            "num_kv_shared_layers": 0,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "activation_sparsity_pattern": None,
            "attention_bias": True,
        }
    },
    "AriaTextForCausalLM": {"biases": _BIASES},
    "MiniCPM3ForCausalLM": {
        "longrope": {
            "q_lora_rank": None,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": _LONGROPE
            | {"long_factor": [1.5, 2.0, 3.0, 4.0], "short_factor": [1.0, 1.1, 1.3, 1.7]},
        },
    },
    "YoutuForCausalLM": {"plain-query-halves": {"q_lora_rank": None, "rope_interleave": False}},
    "ModernBertForSequenceClassification": {
        "mean-biases": {
            "classifier_pooling": "mean",
            "classifier_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        }
    },
    "DebertaModel": {"content-only": {"pos_att_type": ["c2p"]}},
    "DebertaV2Model": {
        "third": {"position_biased_input": False, "type_vocab_size": 0},
        "own-projections": {"share_att_key": False, "norm_rel_ebd": "none", "position_buckets": -1},
    },
    "EuroBertForSequenceClassification": {"bos": {"classifier_pooling": "bos"}},
    "Gemma3TextModel": {"both-sides": {"use_bidirectional_attention": True, "sliding_window": 9}},
    "GteModel": {"no-types": {"type_vocab_size": 0}},
}
"""Further configs of a class, by name: changes to its tiny config."""
