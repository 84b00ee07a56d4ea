"""The host cache end to end: evicted prefixes and preempted requests come back, and no token changes."""

import json
import random

import pytest
import torch
from llm_engine import LLM, SamplingParams

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2000,
    "max_position_embeddings": 2048,
    "eos_token_id": 1999,
}
BLOCK_BYTES = 2 * 2 * 16 * 2 * 32 * 4


@pytest.fixture
def make_llm(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    made = []

    def make(device, *, num_blocks, host_blocks=0, **options):
        llm = LLM(
            str(tmp_path),
            load_format="dummy",
            device=device,
            dtype="float32",
            progress=False,
            max_model_len=512,
            max_num_seqs=8,
            kv_cache_bytes=num_blocks * BLOCK_BYTES,
            host_cache_gib=host_blocks * BLOCK_BYTES / 2**30,
            **options,
        )
        made.append(llm)
        return llm

    yield make
    for llm in made:
        llm.shutdown()


def prompts(count, length, seed=0):
    numbers = random.Random(seed)
    return [[numbers.randrange(1990) for _ in range(length)] for _ in range(count)]


def run(llm, requests, max_tokens=8):
    wanted = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False, temperature=0.0)
    return llm.generate(requests, wanted, progress=False)


def ids(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overlap", [False, True])
def test_an_evicted_prefix_comes_back(make_llm, device, overlap):
    llm = make_llm(device, num_blocks=36, host_blocks=200, overlap=overlap)
    requests = prompts(6, 200)  # 13 blocks each: two fit
    first = ids(run(llm, requests))
    for _ in range(3):
        again = run(llm, requests)
        assert ids(again) == first
        assert [output.num_cached_tokens for output in again] == [192] * 6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_requests_end_with_the_same_tokens(make_llm, device, overlap):
    roomy = make_llm(device, num_blocks=400, overlap=overlap)
    requests = prompts(8, 60, seed=1)
    expected = ids(run(roomy, requests, max_tokens=120))
    tight = make_llm(device, num_blocks=36, host_blocks=100, overlap=overlap)
    assert ids(run(tight, requests, max_tokens=120)) == expected
    assert tight.stats().preemptions > 0


def test_without_a_host_cache_an_evicted_prefix_is_computed_again(make_llm):
    llm = make_llm("cpu", num_blocks=36)
    requests = prompts(6, 200)
    first = ids(run(llm, requests))
    again = run(llm, requests)
    assert ids(again) == first
    assert sum(output.num_cached_tokens for output in again) < 6 * 192
