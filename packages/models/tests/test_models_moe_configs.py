"""Tests that mixtures of experts are read from configs as the Hub has them, and unknown ones refused."""

import pytest
from llm_models.blocks.attention import Attention
from llm_models.blocks.latent_attention import LatentAttention
from llm_models.blocks.layer import Layer
from llm_models.blocks.mlp import MLP
from llm_models.blocks.moe import MoE
from llm_models.caches import KVCacheSpec
from llm_models.decoder import decoder_caches, decoder_parameters
from llm_models.errors import ConfigError, UnsupportedConfig
from llm_models.names import NameIndex
from llm_models.parameters import Shard
from llm_models.registry import spec_for
from llm_models.rope import YarnScaling

_SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
_EXPERTS = {"n_routed_experts": 16, "moe_intermediate_size": 64, "num_experts_per_tok": 4}


def _spec(name, **fields):
    return spec_for({"architectures": [name], **_SIZES, **fields})


def _blocks(spec, kind):
    layers = [layer for layer in spec.layers if isinstance(layer, Layer)]
    found = [block for layer in layers for branch in layer.branches for block in branch.blocks]
    return [block for block in found if isinstance(block, kind)]


def test_gpt_oss():
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 128, "truncate": False,
        "beta_fast": 32.0, "beta_slow": 1.0,
    }  # fmt: skip
    spec = _spec(
        "GptOssForCausalLM", num_local_experts=32, experts_per_token=4, num_experts_per_tok=4, head_dim=64,
        rope_theta=150000, rope_scaling=yarn, sliding_window=128, swiglu_limit=7.0, attention_bias=True,
    )  # fmt: skip
    mixers = _blocks(spec, Attention)
    assert [mixer.sliding_window for mixer in mixers] == [128, None, 128, None]
    assert all(mixer.sinks and mixer.qkv_bias and mixer.output_bias for mixer in mixers)
    assert isinstance(mixers[0].rope.scaling, YarnScaling)
    assert not mixers[0].rope.scaling.truncate
    assert mixers[0].rope.theta == 150000
    moe = _blocks(spec, MoE)[0]
    assert (moe.num_experts, moe.limit, moe.alpha, moe.bias) == (32, 7.0, 1.702, True)


def test_layers_for_further_tokens_are_harmless_and_only_those():
    spec = _spec(
        "Glm4MoeForCausalLM", **_EXPERTS, n_shared_experts=1, partial_rotary_factor=0.5, rope_theta=1000000,
        num_nextn_predict_layers=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    index = NameIndex(spec.names)
    assert index.harmless("model.layers.4.self_attn.q_proj.weight")
    assert not index.harmless("model.layers.3.self_attn.unknown.weight")
    assert not index.harmless("model.layers.5.self_attn.q_proj.weight")
    assert len(_blocks(spec, MLP)) == 1
    mixer = _blocks(spec, Attention)[0]
    assert mixer.rope.rotary_size == mixer.head_size // 2


def test_mimo_from_fields_of_the_hub():
    spec = _spec(
        "MiMoV2FlashForCausalLM", **_EXPERTS, head_dim=192, v_head_dim=128, sliding_window_size=128,
        hybrid_layer_pattern=[0, 1, 1, 0], moe_layer_freq=[0, 1, 1, 1], rope_theta=5000000,
        swa_rope_theta=10000, partial_rotary_factor=0.334, swa_num_key_value_heads=4,
        routed_scaling_factor=None, attention_value_scale=None,
    )  # fmt: skip
    mixers = _blocks(spec, Attention)
    assert [mixer.sliding_window for mixer in mixers] == [None, 129, 129, None]
    assert [mixer.num_kv_heads for mixer in mixers] == [2, 4, 4, 2]
    assert [mixer.rope.theta for mixer in mixers] == [5e6, 1e4, 1e4, 5e6]
    assert mixers[0].rope.rotary_size == 64
    assert mixers[0].value_scale == 1.0
    assert decoder_caches(spec)[1] == KVCacheSpec(num_kv_heads=4, head_size=192, value_size=128, window=129)
    with pytest.raises(UnsupportedConfig, match="swa_num_key_value_heads"):
        _spec("MiMoV2FlashForCausalLM", **_EXPERTS, swa_num_key_value_heads=2)


def test_llama4_inside_the_multimodal_config():
    text = {**_SIZES, "num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size_mlp": 1024,
            "interleave_moe_layer_step": 2, "attention_chunk_size": 64, "no_rope_layers": [], "head_dim": 32,
            "rope_theta": 500000.0}  # fmt: skip
    spec = spec_for({"architectures": ["Llama4ForConditionalGeneration"], "text_config": text})
    mixers = _blocks(spec, Attention)
    assert [mixer.chunk for mixer in mixers] == [64, 64, 64, None]
    assert [mixer.rope is None for mixer in mixers] == [False, False, False, True]
    assert [mixer.temperature is None for mixer in mixers] == [True, True, True, False]
    assert len(_blocks(spec, MoE)) == 2
    assert _blocks(spec, MLP)[0].intermediate_size == 1024
    places = NameIndex(spec.names).sources("layers.1.mlp.experts.3.up.weight")
    assert places[0].tensor == "language_model.model.layers.1.feed_forward.experts.gate_up_proj"


def test_minimax_m2_names_the_turning_part_by_its_size():
    spec = _spec("MiniMaxM2ForCausalLM", num_local_experts=8, head_dim=128, rotary_dim=64, rope_theta=5e6)
    assert _blocks(spec, Attention)[0].rope.rotary_size == 64


def test_latent_norms_have_an_eps_of_their_own():
    sizes = {"kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
             "v_head_dim": 32, "rms_norm_eps": 1e-5}  # fmt: skip
    mixer = _blocks(_spec("Glm4MoeLiteForCausalLM", **_EXPERTS, **sizes), LatentAttention)[0]
    assert mixer.norm.eps == 1e-6


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("GptOssForCausalLM", {"hidden_act": "gelu"}, "hidden_act"),
        ("Cohere2MoeForCausalLM", {"expert_selection_fn": "relu"}, "expert_selection_fn"),
        ("Cohere2MoeForCausalLM", {"shared_expert_combination_strategy": "max"}, "combination_strategy"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": 8, "moe_topk": [2, 2]}, "moe_topk"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": 8, "num_shared_expert": 2}, "num_shared_expert"),
        ("HYV3ForCausalLM", {"mlp_bias": True}, "mlp_bias"),
        ("LagunaForCausalLM", {"gating": "per-token"}, "gating"),
        ("LagunaForCausalLM", {"num_attention_heads_per_layer": [8]}, "num_attention_heads_per_layer"),
        ("Glm4MoeForCausalLM", {**_EXPERTS, "mlp_layer_types": ["dense", "other"] * 2}, "mlp_layer_types"),
        ("PhimoeForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("Llama4ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ],
)
def test_what_is_not_known_is_refused(name, fields, field):
    with pytest.raises((ConfigError, UnsupportedConfig), match=field):
        _spec(name, **fields)


def test_experts_of_an_odd_width_are_shared_out_whole():
    spec = _spec("MixtralForCausalLM", intermediate_size=511, num_local_experts=8, num_experts_per_tok=2)
    for rank in range(2):
        parameters = {p.name: p for p in decoder_parameters(spec, Shard(rank, 2))}
        down = parameters["layers.0.mlp.experts.down.weight"]
        assert down.shape == (4, 256, 511)
        # Tensors of the other rank's experts have a place too, but nothing of them is taken.
        own = [index for index, part in enumerate(down.parts) if part.taken[0]]
        assert len(down.parts) == 8
        assert own == list(range(4 * rank, 4 * rank + 4))
