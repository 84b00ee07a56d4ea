"""Owns the numbers of the tiny models: what every config is shrunk to, and what single families need.

Sizes differ from each other where they can (heads * head size is not the hidden size, windows are shorter
than the prompts, scales are not 1), so that mixing two up shows.
"""

from typing import Any

# Applied to every field of that name whose default is not None, at any depth of the config.
SHRUNK: dict[str, Any] = {
    # Sizes
    "vocab_size": 99, "vocab_size_per_layer_input": 99, "unpadded_vocab_size": 99, "hidden_size": 64,
    "n_embd": 64, "d_model": 64, "embedding_size": 48, "emb_dim": 64, "dim_model": 64, "lru_width": 64,
    "attention_hidden_size": 128, "intermediate_size": 80, "ffn_dim": 80, "d_ff": 80, "dff": 80,
    "dim_ff": 80, "d_inner": 80, "n_inner": 80, "ffn_hidden_size": 80, "intermediate_size_mlp": 72,
    "dense_intermediate_size": 72, "feed_forward_size": 80, "decoder_ffn_dim": 80, "encoder_ffn_dim": 72,
    "embedding_dim": 64, "hidden_dim": 80, "dim": 64, "hidden_size_per_layer_input": 12, "laurel_rank": 6,
    "backbone_hidden_size": 64, "shared_transformer_size": 80,
    # Layers, heads
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 2, "decoder_layers": 3,
    "encoder_layers": 2, "num_decoder_layers": 3, "num_encoder_layers": 2, "depth": 2, "num_blocks": 3,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "attention_heads": 4, "num_decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "kv_n_heads": 2,
    "head_dim": 24, "dim_head": 16, "d_kv": 16, "d_head": 16, "swa_head_dim": 16,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1,
    # Positions, windows
    "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128, "max_seq_len": 128,
    "context_length": 128, "max_source_positions": 64, "max_target_positions": 128, "sliding_window": 7,
    "sliding_window_size": 7, "attention_window_size": 7, "window_size": 7, "local_attention": 12,
    "attention_chunk_size": 12, "keep_window_size": 128, "position_embedding_size": 64,
    "num_position_embeddings": 64,
    # Experts
    "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8,
    "num_experts_per_tok": 2, "top_k_experts": 2, "moe_topk": 2, "moe_k": 2, "moe_top_k": 2,
    "moe_intermediate_size": 32, "expert_ffn_hidden_size": 32, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1,
    "shared_expert_intermediate_size": 40, "shared_intermediate_size": 40,
    "shared_experts_intermediate_size": 40, "moe_shared_expert_intermediate_size": 40,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "zero_expert_num": 4, "num_dense_layers": 1,
    "moe_latent_size": 24,
    # Latent attention, sparse attention
    "q_lora_rank": 20, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "qk_head_dim": 20, "o_lora_rank": 16, "o_groups": 2, "index_head_dim": 16,
    "index_n_heads": 16, "index_topk": 8, "index_block_size": 4, "index_topk_blocks": 3,
    # Recurrent layers
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_head_dim": 8, "linear_num_heads": 4, "mamba_d_state": 8,
    "mamba_d_head": 16, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_ssm": 128,
    "mamba_chunk_size": 8, "chunk_size": 8, "mamba_dt_rank": 4, "state_size": 8, "ssm_state_size": 8,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
    # Scales
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.3,
    "logits_scaling": 2.0, "final_logit_softcapping": 10.0, "attn_logit_softcapping": 8.0,
    "query_pre_attn_scalar": 20,
    # Vision and audio parts, which no check runs
    "image_size": 16, "patch_size": 8, "num_channels": 3, "num_mel_bins": 8,
    # Everything else
    "initializer_range": 0.2, "init_std": 0.2, "embed_init_std": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_nextn_predict_layers": 0, "is_decoder": True,
    "num_mtp_layers": 0, "type_vocab_size": 2, "hc_lowrank": 12, "loop_gate_rank": 8, "adapter_rank": 8,
    "router_hidden_size": 16,
}  # fmt: skip

ALWAYS = frozenset({"pad_token_id", "unpadded_vocab_size"})
"""Fields of SHRUNK that are set even where the default is None."""

_LINEAR, _FULL, _SLIDING = "linear_attention", "full_attention", "sliding_attention"
# Post-norm models of many layers forget the token: fewer layers, smaller weights.
_BERT: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.12}
_BART: dict[str, Any] = {"decoder_layers": 2, "init_std": 0.12}
_GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0, 0.0],
    "intermediate_size": 80,
    "head_dim": 16,
}
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "use_double_wide_mlp": True,
}
_ASSISTANT: dict[str, Any] = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "layer_types": [_SLIDING, _FULL],
    "num_kv_shared_layers": 2,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "BertLMHeadModel": _BERT,
    "BertGenerationDecoder": _BERT,
    "BigBirdForCausalLM": _BERT,
    "CamembertForCausalLM": _BERT,
    "Data2VecTextForCausalLM": _BERT,
    "ElectraForCausalLM": _BERT,
    "ErnieForCausalLM": _BERT,
    "RobertaForCausalLM": _BERT,
    "XLMRobertaForCausalLM": _BERT,
    "RoFormerForCausalLM": _BERT,
    "GitForCausalLM": _BERT,
    "MegatronBertForCausalLM": _BERT,
    "RemBertForCausalLM": _BERT | {"input_embedding_size": 48, "output_embedding_size": 56},
    "RoCBertForCausalLM": _BERT
    | {
        "pronunciation_embed_dim": 12,
        "pronunciation_vocab_size": 99,
        "shape_embed_dim": 12,
        "shape_vocab_size": 99,
    },
    "XmodForCausalLM": _BERT | {"default_language": "en_XX"},
    "XLMRobertaXLForCausalLM": _BERT,
    "BlenderbotSmallForCausalLM": _BART,
    "MarianForCausalLM": _BART | {"decoder_vocab_size": 99, "scale_embedding": True},
    "PLBartForCausalLM": _BART,
    "TrOCRForCausalLM": _BART,
    "ProphetNetForCausalLM": {"num_decoder_layers": 2, "init_std": 0.12, "is_decoder": True, "ngram": 2},
    "BltForCausalLM": {
        "encoder_config": {
            "hidden_size_global": 64,
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "vocab_size": 260,
            "num_attention_heads": 4,
            "intermediate_size": 80,
            "initializer_range": 0.2,
        },
        "decoder_config": {
            "hidden_size_global": 64,
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "vocab_size": 260,
            "num_attention_heads": 4,
            "intermediate_size": 80,
            "initializer_range": 0.2,
        },
        "global_config": {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 80,
            "initializer_range": 0.2,
        },
        "patcher_config": {
            "vocab_size": 260,
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 80,
            "initializer_range": 0.2,
        },
        "vocab_size": 260,
        "encoder_hash_byte_group_vocab": 200,
    },
    "BailingHybridForCausalLM": {"num_hidden_layers": 4, "layer_types": [_LINEAR, _FULL, _LINEAR, _LINEAR]},
    "CodeGenForCausalLM": {"rotary_dim": 8},
    "GPTJForCausalLM": {"rotary_dim": 8},
    "CohereForCausalLM": {"logit_scale": 0.3},
    "Cohere2ForCausalLM": {"logit_scale": 0.3},
    "CohereCompassForCausalLM": {
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
        "rope_parameters": {_SLIDING: {"rope_type": "default", "rope_theta": 1000.0}, _FULL: None},
    },
    "CTRLLMHeadModel": {"dff": 80},
    "CpmAntForCausalLM": {
        "prompt_types": 4,
        "prompt_length": 4,
        "segment_types": 4,
        "position_bias_num_buckets": 32,
        "position_bias_max_distance": 64,
    },
    "DbrxForCausalLM": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 1000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "DeepseekV2ForCausalLM": {
        "num_experts_per_tok": 2,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
    },
    "DeepseekV4ForCausalLM": {
        "head_dim": 16,
        "num_key_value_heads": 1,
        "num_hidden_layers": 4,
        "partial_rotary_factor": 0.5,
        "layer_types": [_SLIDING, "heavily_compressed_attention", "compressed_sparse_attention", _SLIDING],
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "hc_mult": 2,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    },
    "DogeForCausalLM": {"head_dim": 16},
    "Dots1ForCausalLM": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "max_window_layers": 2,
        "layer_types": None,
    },
    "FalconForCausalLM": {
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "num_kv_heads": None,
    },
    "FalconH1ForCausalLM": {
        "lm_head_multiplier": 0.7,
        "embedding_multiplier": 2.0,
        "mlp_multipliers": [0.9, 0.6],
        "key_multiplier": 0.8,
        "attention_out_multiplier": 0.7,
        "attention_in_multiplier": 1.2,
        "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 1.2],
        "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.7,
    },
    "FuyuForCausalLM": {"text_config": {"model_type": "persimmon"}},
    "Gemma3nForCausalLM": _GEMMA3N,
    "Gemma3nForConditionalGeneration": {"text_config": _GEMMA3N},
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": {"text_config": _GEMMA4},
    "Gemma4UnifiedForCausalLM": {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1},
    "Gemma4UnifiedForConditionalGeneration": {
        "text_config": {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1}
    },
    "Gemma4AssistantForCausalLM": {"text_config": _ASSISTANT},
    "Gemma4UnifiedAssistantForCausalLM": {
        "text_config": {"num_hidden_layers": 2, "head_dim": 16, "layer_types": [_SLIDING, _FULL]}
    },
    "HrmTextForCausalLM": {"initializer_range": 0.1},
    "GPTNeoForCausalLM": {"num_layers": 3, "attention_types": [[["global", "local", "global"], 1]]},
    "HeliumForCausalLM": {"head_dim": 16},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 24},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 24},
    "MinistralForCausalLM": {"head_dim": 24},
    "InklingForCausalLM": {"logits_mup_width_multiplier": 2.0},
    "GraniteMoeHybridForCausalLM": {
        "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
        "position_embedding_type": "rope",
    },
    "BambaForCausalLM": {"attn_layer_indices": [1, 3]},
    "Lfm2ForCausalLM": {"layer_types": ["conv", _FULL, "conv", "conv"], "block_auto_adjust_ff_dim": False},
    "Llama4ForCausalLM": {"layer_types": None, "interleave_moe_layer_step": 2, "floor_scale": 16},
    "JambaForCausalLM": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "KimiLinearForCausalLM": {"num_hidden_layers": 4, "layer_types": [_LINEAR, _FULL, _LINEAR, _LINEAR]},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", _FULL, "conv", "conv"]},
    "Dots3NoteForCausalLM": {
        "head_dim": 20,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 18,
        "swa_kv_lora_rank": 14,
        "swa_head_dim": 20,
        "swa_qk_nope_head_dim": 12,
        "swa_v_head_dim": 10,
    },
    "LongcatFlashForCausalLM": {"head_dim": 8},
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 16},
    # Transformers saves three convolutions as equal shares of one, so they must be of one size.
    "OlmoHybridForCausalLM": {"linear_key_head_dim": 24},
    "MoshiForCausalLM": {"audio_vocab_size": 40},
    "MusicgenForCausalLM": {"num_codebooks": 1, "initializer_factor": 0.2},
    "MusicgenMelodyForCausalLM": {"num_codebooks": 1, "initializer_factor": 0.2},
    "NemotronForCausalLM": {"num_key_value_heads": 2},
    "NemotronHForCausalLM": {
        "layers_block_type": [_LINEAR, "moe", _FULL, "mlp", _LINEAR],
        "num_hidden_layers": None,
    },
    "Qwen4ExpForCausalLM": {
        "layer_types": [_LINEAR, "indexed_attention", _LINEAR, "indexed_attention"],
        "hc_count": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ple_layer_ids": [1],
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 2,
        "head_dim": 16,
        "eos_token_id": 2,
    },
    "ReformerModelWithLMHead": {
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [24, 40],
        "attn_layers": ["local", "lsh"],
        "attention_head_size": 16,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "hash_seed": 1,
        "num_buckets": 4,
        "num_hidden_layers": None,
    },
    "RwkvForCausalLM": {"attention_hidden_size": 64, "rescale_every": 0},
    "XLMWithLMHeadModel": {"causal": True, "n_layers": 2, "max_vocab": 99},
    "XLNetLMHeadModel": {"attn_type": "uni", "n_layer": 2, "initializer_range": 0.12, "d_inner": 80},
    "Zamba2ForCausalLM": {
        "layers_block_type": [_LINEAR, "hybrid", _LINEAR, "hybrid", "hybrid"],
        "num_hidden_layers": 5,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
        "intermediate_size": 80,
        "num_key_value_heads": 4,
    },
    "ZambaForCausalLM": {
        "num_hidden_layers": 6,
        "layers_block_type": [_LINEAR, _LINEAR, "hybrid", _LINEAR, "hybrid", _LINEAR],
        "attention_head_dim": 32,
    },
    "xLSTMForCausalLM": {"chunk_size": 16, "qk_dim_factor": 0.5, "num_blocks": 3, "num_hidden_layers": 3},
    **{
        name: _BERT | {"num_labels": 3}
        for family in (
            "Bert",
            "Roberta",
            "XLMRoberta",
            "Camembert",
            "NomicBert",
            "DistilBert",
            "MPNet",
            "Electra",
            "Gte",
            "JinaEmbeddingsV3",
        )
        for name in (
            f"{family}Model",
            f"{family}ForSequenceClassification",
            f"{family}ForTokenClassification",
        )
    },
    **{
        name: _BERT
        | {
            "num_labels": 3,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 24,
        }
        for name in ("DebertaModel", "DebertaForSequenceClassification", "DebertaForTokenClassification")
    },
    **{
        name: _BERT
        | {
            "num_labels": 3,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        }
        for name in (
            "DebertaV2Model",
            "DebertaV2ForSequenceClassification",
            "DebertaV2ForTokenClassification",
        )
    },
    "ZayaForCausalLM": {
        "num_experts_per_tok": 1,
        "sliding_window": 7,
        "layer_types": ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
    },
}
"""What a class needs besides SHRUNK; None leaves a shrunk field at its default."""

ENCODERS: tuple[str, ...] = (
    "BertModel",
    "RobertaModel",
    "XLMRobertaModel",
    "ModernBertModel",
    "NomicBertModel",
    "DistilBertModel",
    "MPNetModel",
    "DebertaModel",
    "DebertaV2Model",
    "ElectraModel",
    "GteModel",
    "JinaEmbeddingsV3Model",
    "EuroBertModel",
    "AlbertModel",
    "RobertaPreLayerNormModel",
    "XLMRobertaXLModel",
    "Gemma3TextModel",
    "T5EncoderModel",
    "Qwen3Model",
    "MistralModel",
    "LlamaModel",
    "CamembertModel",
)
_CLASSIFIED = (
    "Bert",
    "Roberta",
    "XLMRoberta",
    "ModernBert",
    "DistilBert",
    "MPNet",
    "Deberta",
    "DebertaV2",
    "Electra",
    "NomicBert",
    "Gte",
    "JinaEmbeddingsV3",
    "EuroBert",
    "Albert",
    "RobertaPreLayerNorm",
    "XLMRobertaXL",
    "Camembert",
    "Llama",
    "Qwen2",
    "Qwen3",
    "Mistral",
)
CLASSIFIERS: tuple[str, ...] = tuple(
    f"{family}For{task}Classification" for task in ("Sequence", "Token") for family in _CLASSIFIED
)
ENCODER_DECODERS: tuple[str, ...] = (
    "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration",
    "UMT5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "PLBartForConditionalGeneration",
    "MBartForConditionalGeneration",
    "BlenderbotForConditionalGeneration",
    "PegasusForConditionalGeneration",
    "MarianMTModel",
    "M2M100ForConditionalGeneration",
    "WhisperForConditionalGeneration",
)

NOT_BUILT: dict[str, str] = {
    "WhisperForCausalLM": "a decoder that only runs on the states of an audio encoder",
    "Gemma3nForConditionalGeneration": "its vision part needs timm; the text model is Gemma3nForCausalLM",
    "Gemma4AssistantForCausalLM": "a draft that reads another model's keys and values; it cannot run alone",
    "Gemma4UnifiedAssistantForCausalLM": "a draft that reads another model's keys and values",
}
"""Classes that transformers cannot run on token ids alone in this environment, and why."""

NOT_EAGER: dict[str, str] = {"FalconForCausalLM:alibi": "sdpa"}
"""Attention of the reference where the eager one is at fault: Falcon's adds the distances twice."""
