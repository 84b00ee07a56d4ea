"""Rows that found the same prefix, on a CUDA device: read once for all, with the tokens of each alone.

float32: the parts of a prefix are summed in another order, and in a half format a near-tie may flip a token.
"""

import json

import pytest
import torch
from llm_engine import LLM, SamplingParams
from llm_engine.worker.shared_prefix import SharedPrefixes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 5000,
    "max_position_embeddings": 4096,
    "eos_token_id": 4999,
}
WINDOWS = {
    **DENSE,
    "architectures": ["Gemma3ForCausalLM"],
    "sliding_window": 24,
    "query_pre_attn_scalar": 32,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
NUM_ROWS = 40


@pytest.fixture
def plans(monkeypatch):
    """For each search, the rows of the groups and what they share; None where nothing was worth it."""
    found = []
    find = SharedPrefixes.find

    def recording(self, slots, context_lens):
        plan = find(self, slots, context_lens)
        found.append(None if plan is None else [(len(g.rows), g.num_tokens) for g in plan.groups])
        return plan

    monkeypatch.setattr(SharedPrefixes, "find", recording)
    return found


def _prompts():
    """Two long heads, half of the rows on each; the first rows compute them, the others find them."""
    heads = [[(7 * i * i + 13 * i + h) % 4990 for i in range(2000)] for h in (1, 2)]
    return [heads[row % 2] + [(row * 31 + 7 * i) % 4990 for i in range(3 + row)] for row in range(NUM_ROWS)]


def _tokens(folder, prompts, **options):
    llm = LLM(str(folder), load_format="dummy", device="cuda", dtype="float32", progress=False, **options)
    try:
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, detokenize=False)
        llm.generate(prompts[:2], params, progress=False)
        outputs = llm.generate(prompts, params, progress=False)
        return [output.outputs[0].token_ids for output in outputs]
    finally:
        llm.shutdown()


@pytest.mark.parametrize("graphs", ["none", "full"])
@pytest.mark.parametrize("config", [DENSE, WINDOWS], ids=["dense", "windows"])
def test_shared_prefixes_change_no_token(tmp_path, plans, config, graphs):
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompts, options = _prompts(), {"max_num_seqs": 64, "kv_cache_bytes": 1 << 29, "graphs": graphs}
    alone = _tokens(tmp_path, prompts, enable_prefix_caching=False, **options)
    assert not any(plans)
    plans.clear()
    assert _tokens(tmp_path, prompts, **options) == alone
    assert sum(plan == [(NUM_ROWS // 2, 2000)] * 2 for plan in plans) > 15
