"""Models that transformers has no class for: tiny ones of an equal class, written in their own layout."""

import json

import pytest
import torch
import torch.nn.functional as F
import transformers
from llm_models import load_model, resolve
from safetensors.torch import save_file

TOLERANCE = 1e-4
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEAD, THETA = 8, 1000.0
ROPE = {"rope_type": "default", "rope_theta": THETA}
MHA = {"num_key_value_heads": 4}


def reference(name, **changes):
    """A seeded transformers model whose norms and biases are random too."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(SHAPE | {"rope_parameters": ROPE} | changes))
    model_class = getattr(transformers, f"{name}ForCausalLM")
    model = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def renamed(state, rules):
    """Every tensor under its new name; each of `rules` is (old, new)."""
    result = {}
    for name, tensor in state.items():
        for old, new in rules:
            name = name.replace(old, new)
        result[name] = tensor.clone()
    return result


def fused(state, parts, name, join=torch.cat):
    """The tensors called `...parts` joined under `...name`."""
    joined = {key: value for key, value in state.items() if not any(part in key for part in parts)}
    for key in state:
        if parts[0] in key:
            tensors = [state[key.replace(parts[0], part)] for part in parts]
            joined[key.replace(parts[0], name)] = join(tensors)
    return joined


def by_kv_head(tensors):
    """Query heads of a KV head, then its key, then its value."""
    heads = [tensor.unflatten(0, (2, -1)) for tensor in tensors]
    return torch.cat(heads, dim=1).flatten(0, 1)


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
PLAIN = {key: value for key, value in SHAPE.items() if not key.endswith("token_id")} | {"rms_norm_eps": 1e-6}


def internlm():
    model = reference("Llama", attention_bias=True, **MHA)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias.normal_()
    config = PLAIN | MHA | {"rotary": {"base": THETA, "type": "dynamic"}, "bias": True}
    return model, "InternLMForCausalLM", config, model.state_dict()


def internlm2():
    model = reference("Llama", attention_bias=True)
    state = fused(model.state_dict(), QKV, "attention.wqkv", by_kv_head)
    rules = [
        ("embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    ]  # fmt: skip
    config = PLAIN | {"bias": True, "rope_theta": THETA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    return model, "InternLM2ForCausalLM", config, renamed(state, rules)


def internlm3():
    model = reference("Llama", attention_bias=True, mlp_bias=True, head_dim=16)
    config = PLAIN | {"bias": True, "qkv_bias": True, "head_dim": 16, "rope_theta": THETA}
    return model, "InternLM3ForCausalLM", config, model.state_dict()


def baichuan_7b():
    model = reference("Llama", rope_parameters=ROPE | {"rope_theta": 10000.0}, **MHA)
    config = PLAIN | {"model_max_length": 128}
    del config["num_key_value_heads"]
    return model, "BaiChuanForCausalLM", config, fused(model.state_dict(), QKV, "self_attn.W_pack")


def baichuan2_13b():
    model = reference("Llama", **MHA)
    state = fused(model.state_dict(), QKV, "self_attn.W_pack")
    config = PLAIN | {"model_max_length": 128, "z_loss_weight": 0}
    del config["num_key_value_heads"], config["max_position_embeddings"]
    return AlibiLlama(model), "BaichuanForCausalLM", config, state


class AlibiLlama:
    """A Llama with ALiBi instead of rope, and the rows of its head at length 1."""

    def __init__(self, model):
        self.model = model
        model.model.rotary_emb.inv_freq.zero_()
        model.lm_head.weight = torch.nn.Parameter(F.normalize(model.lm_head.weight))

    def __call__(self, input_ids, **_):
        count = input_ids.shape[1]
        slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(4)])
        distance = torch.arange(count)[None, :] - torch.arange(count)[:, None]
        bias = slopes[:, None, None] * distance
        mask = bias.masked_fill(distance > 0, torch.finfo(torch.float32).min)
        return self.model(input_ids=input_ids, attention_mask=mask[None], use_cache=False)


def qwen():
    model = reference("Qwen2", **MHA)
    state = fused(model.state_dict(), QKV, "attn.c_attn")
    rules = [
        ("model.embed_tokens", "transformer.wte"), ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"), ("self_attn.o_proj", "attn.c_proj"),
        ("mlp.gate_proj", "mlp.w2"), ("mlp.up_proj", "mlp.w1"), ("mlp.down_proj", "mlp.c_proj"),
    ]  # fmt: skip
    config = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "kv_channels": 8, "seq_length": 128, "max_position_embeddings": 512,
        "layer_norm_epsilon": 1e-6, "rotary_emb_base": THETA, "rotary_pct": 1.0, "no_bias": True,
        "use_dynamic_ntk": True, "use_logn_attn": True, "tie_word_embeddings": False,
    }  # fmt: skip
    return model, "QWenLMHeadModel", config, renamed(state, rules)


def chatglm():
    model = reference("Glm", head_dim=8, rope_parameters=ROPE | {"partial_rotary_factor": 0.5})
    rules = [
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("lm_head", "transformer.output_layer"),
        ("model.layers", "transformer.encoder.layers"), ("model.norm", "transformer.encoder.final_layernorm"),
        ("self_attn.o_proj", "self_attention.dense"), ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ]  # fmt: skip
    state = renamed(fused(model.state_dict(), QKV, "self_attention.query_key_value"), rules)
    state["transformer.rotary_pos_emb.inv_freq"] = torch.ones(2)
    config = {
        "padded_vocab_size": 96, "hidden_size": 32, "ffn_hidden_size": 48, "num_layers": 3, "kv_channels": 8,
        "num_attention_heads": 4, "multi_query_attention": True, "multi_query_group_num": 2,
        "seq_length": 128, "layernorm_epsilon": 1.5625e-07, "add_bias_linear": False, "add_qkv_bias": True,
        "rope_ratio": THETA / 10000.0, "rmsnorm": True, "original_rope": True, "post_layer_norm": True,
    }  # fmt: skip
    return model, "ChatGLMModel", config, state


def exaone():
    model = reference("Llama")
    rules = [
        ("model.embed_tokens", "transformer.wte"), ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.attention.out_proj"), ("self_attn.", "attn.attention."),
        ("mlp.gate_proj", "mlp.c_fc_0"), ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"),
    ]  # fmt: skip
    config = PLAIN | {
        "num_layers": 3, "activation_function": "silu", "layer_norm_epsilon": 1e-6, "rope_theta": THETA,
    }  # fmt: skip
    del config["num_hidden_layers"], config["rms_norm_eps"]
    return model, "ExaoneForCausalLM", config, renamed(model.state_dict(), rules)


def minicpm():
    factors = {"embedding_multiplier": 3.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 2.0}
    model = reference("Granite", attention_multiplier=HEAD**-0.5, tie_word_embeddings=True, **factors)
    config = PLAIN | {"scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 16, "rope_theta": THETA}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    return model, "MiniCPMForCausalLM", config, state


def orion():
    model = reference("StableLm", rope_parameters=ROPE | {"partial_rotary_factor": 1.0}, layer_norm_eps=1e-5)
    config = PLAIN | {"rms_norm_eps": 1e-5, "rope_theta": THETA}
    return model, "OrionForCausalLM", config, model.state_dict()


def iquestcoder():
    model = reference("Llama", head_dim=16)
    config = PLAIN | {"head_dim": 16, "rope_theta": THETA, "clip_qkv": None, "use_sliding_window": False}
    return model, "IQuestCoderForCausalLM", config, model.state_dict()


LAYOUTS = [
    internlm, internlm2, internlm3, baichuan_7b, baichuan2_13b, qwen, chatglm, exaone, minicpm, orion,
    iquestcoder,
]  # fmt: skip


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: layout.__name__)
def pair(request, tmp_path_factory):
    model, name, config, state = request.param()
    folder = tmp_path_factory.mktemp(name)
    (folder / "config.json").write_text(json.dumps({"architectures": [name], "hidden_act": "silu"} | config))
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, folder / "model.safetensors")
    return model, load_model(resolve(str(folder)), dtype=torch.float32, device="cpu")


def tokens(count, seed):
    return torch.randint(4, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def assert_same(ours, theirs):
    difference = (ours - theirs).abs().max() / theirs.abs().max()
    assert difference <= TOLERANCE, f"relative difference {difference:.2e}"


def test_one_pass(pair, paged_run):
    model, ours = pair
    ids = tokens(41, seed=1)
    assert_same(paged_run(ours).step({"a": ids})["a"], expected(model, ids))


def test_chunks(pair, paged_run):
    model, ours = pair
    ids, run, parts = tokens(41, seed=2), paged_run(ours, seed=3), []
    for start, end in ((0, 7), (7, 8), (8, 24), (24, 40), (40, 41)):
        parts.append(run.step({"a": ids[start:end]})["a"])
    assert_same(torch.cat(parts), expected(model, ids))
