"""Small random models of five kinds for the engine's tests on a GPU; knows nothing about the engine."""

import tokenizers
import torch
import transformers

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 5000,
    "max_position_embeddings": 8192,
    "eos_token_id": 4999,
}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "eos_token_id",
)
KINDS = {
    "dense": DENSE,
    "experts": {
        **DENSE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "windows": {
        **DENSE,
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": 24,
        "query_pre_attn_scalar": 32,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "latents": {
        **{name: DENSE[name] for name in _SIZES},
        "architectures": ["DeepseekV2ForCausalLM"],
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    },
}
"""Configurations whose dummy weights do; float32, where no tie is near."""

_SAVED = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True}
_WINDOWS = {
    "sliding_window": 48,
    "query_pre_attn_scalar": 64,
    "layer_types": ["sliding_attention", "full_attention"],
}
_LATENTS = {
    **{name: value for name, value in KINDS["latents"].items() if name not in {*_SAVED, "architectures"}},
    "num_key_value_heads": 8,
    "head_dim": 16,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "moe_intermediate_size": 256,
}
SAVED_KINDS = {
    "dense": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _MOE),
    "windows": ("Gemma3TextConfig", "Gemma3ForCausalLM", _WINDOWS),
    "latents": ("DeepseekV2Config", "DeepseekV2ForCausalLM", _LATENTS),
}
"""Models of `save_model`, whose logits lie apart in half precision too."""


def save_model(folder, kind):
    """Writes a bfloat16 checkpoint of a kind of `SAVED_KINDS`, with a tokenizer."""
    config, model, differs = SAVED_KINDS[kind]
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**{**_SAVED, **differs})
    getattr(transformers, model)(settings).to(torch.bfloat16).save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(1024)}, unk_token="w0")
    tokenizers.Tokenizer(words).save(str(folder / "tokenizer.json"))
    return str(folder)
