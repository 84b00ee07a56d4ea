"""Models with several KV groups through `LLM`: a short, shared, reused pool changes no token.

Every prompt is run alone without a prefix cache first. Then all run together where pages are short and move
from group to group, so rows are preempted and prefixes are found again.
"""

import json
import random

import pytest
import torch
from llm_engine import LLM, SamplingParams

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "max_position_embeddings": 256,
    "eos_token_id": 499,
    "rms_norm_eps": 1e-6,
}
LOCAL, FULL = "sliding_attention", "full_attention"
CONFIGS = {
    "windows": {
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "layer_types": [LOCAL, LOCAL, FULL, LOCAL],
    },
    "convolutions": {
        "architectures": ["Lfm2ForCausalLM"],
        "num_hidden_layers": 3,
        "conv_L_cache": 3,
        "norm_eps": 1e-6,
        "layer_types": ["conv", FULL, "conv"],
        "block_multiple_of": 16,
    },
    "delta rule": {
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", FULL, "linear_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e4,
    },
    "state space": {
        "architectures": ["MambaForCausalLM"],
        "num_hidden_layers": 2,
        "state_size": 8,
        "conv_kernel": 4,
        "expand": 2,
        "intermediate_size": 128,
        "time_step_rank": 4,
        "layer_norm_epsilon": 1e-5,
    },
}
OPTIONS = {
    "load_format": "dummy",
    "dtype": "float32",
    "block_size": 4,
    "state_interval": 16,
    "max_model_len": 128,
    "max_num_seqs": 10,
    "max_num_batched_tokens": 48,
    "kv_cache_bytes": 1 << 24,
    "threads": 1,
    "progress": False,
}


@pytest.fixture
def make_llm(tmp_path):
    made = []

    def make(name, device, **options):
        (tmp_path / "config.json").write_text(json.dumps({**COMMON, **CONFIGS[name]}))
        llm = LLM(str(tmp_path), device=device, **{**OPTIONS, **options})
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.shutdown()


def generate(llm, prompts):
    wanted = [
        SamplingParams(max_tokens=20 + 7 * (i % 4), ignore_eos=True, detokenize=False, temperature=0.0)
        for i in range(len(prompts))
    ]
    return llm.generate(prompts, wanted, progress=False)


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_do_not_depend_on_the_pool(make_llm, name, device):
    rng = random.Random(7)
    stem = rng.choices(range(490), k=50)
    prompts = [rng.choices(range(490), k=rng.randrange(1, 30)) for _ in range(6)]
    prompts += [stem[:length] + rng.choices(range(490), k=5) for length in (20, 34, 50)]
    alone = make_llm(name, device, max_num_seqs=1, enable_prefix_caching=False)
    expected = tokens(generate(alone, prompts))
    assert len({tuple(one) for one in expected}) == len(prompts)

    ample = make_llm(name, device)
    poison(ample)
    generate(ample, prompts)
    again = generate(ample, prompts)
    assert tokens(again) == expected
    layout = layout_of(ample)
    cached = [(len(prompt) - 1) // layout.alignment * layout.alignment for prompt in prompts]
    assert [output.num_cached_tokens for output in again] == cached

    short = make_llm(name, device, kv_cache_bytes=layout.pages(128) * layout.page_bytes)
    for _ in range(2):
        poison(short)
        assert tokens(generate(short, prompts)) == expected
    # A row of a model of states alone holds one page, which is seldom too many.
    assert short.stats().preemptions > 0 or name == "state space"


def layout_of(llm):
    return worker_of(llm)._loaded.info.kv_layout


def poison(llm):
    """Makes everything in the pages NaN, and forgets the prefixes: nobody may read what nobody wrote."""
    assert llm._client._core._cache.reset_prefix_cache()
    for storage in worker_of(llm)._runner._transfers._storages:
        storage.fill_(-1 if storage.dtype == torch.int64 else 255)


def worker_of(llm):
    return llm._client._core._executor._worker
