"""`deterministic` on a GPU: equal bits alone, together, chunked, hits, preempted, with graphs or none."""

from __future__ import annotations

import json
import random

import pytest
import torch
from engine_tiny_models import KINDS
from llm_engine import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
OPTIONS = {
    "device": "cuda",
    "load_format": "dummy",
    "max_model_len": 704,
    "kv_cache_bytes": 64 << 20,
    "max_num_seqs": 32,
    "progress": False,
}
WIDER = {"hidden_size": 512, "intermediate_size": 1024}
SAMPLING = SamplingParams(
    max_tokens=24, temperature=0.8, top_p=0.9, seed=3, logprobs=3, ignore_eos=True, detokenize=False
)
LENGTHS = (1, 7, 33, 70, 120, 300, 17, 64, 65, 600, 3, 9, 200, 31, 5, 28)
CASES = [(kind, "bfloat16", {}) for kind in KINDS]
CASES.append(("dense", "float32", {}))
CASES.append(("dense", "bfloat16", {"quantization": "fp8"}))
CASES.append(("dense", "bfloat16", {"kv_cache_dtype": "fp8"}))
TIGHT_LONGEST = 120
TIGHT_BLOCKS = {"dense": 20, "experts": 20, "windows": 50, "latents": 20}
"""A KV cache that does not hold all prompts of so many tokens; with windows 16 tokens take three blocks."""


@pytest.fixture
def make_llm(tmp_path):
    made = []

    def make(kind, **options):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        wider = WIDER if options["dtype"] != "float32" else {}
        (folder / "config.json").write_text(json.dumps({**KINDS[kind], **wider}))
        made.append(LLM(str(folder), **{**OPTIONS, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


def make_prompts(kind):
    numbers = random.Random(5)
    vocab_size = KINDS[kind]["vocab_size"]
    return [[numbers.randrange(5, vocab_size) for _ in range(length)] for length in LENGTHS]


def run(llm, prompts):
    """Token ids and logprobs of each prompt's answer."""
    answers = (request.outputs[0] for request in llm.generate(prompts, SAMPLING, progress=False))
    return [(answer.token_ids, answer.logprobs) for answer in answers]


@pytest.mark.parametrize(("kind", "dtype", "options"), CASES)
def test_nothing_around_a_request_changes_a_bit_of_it(make_llm, kind, dtype, options):
    prompts = make_prompts(kind)
    llm = make_llm(kind, dtype=dtype, deterministic=True, **options)
    expected = [run(llm, [prompt])[0] for prompt in prompts]
    assert run(llm, prompts) == expected
    assert run(llm, prompts[::-1]) == expected[::-1]
    stats = llm.stats()
    assert stats.graph_steps > 0
    assert stats.prefix_hit_tokens > 0
    eager = make_llm(
        kind,
        dtype=dtype,
        deterministic=True,
        graphs="none",
        max_num_batched_tokens=32,
        enable_prefix_caching=False,
        **options,
    )
    assert run(eager, prompts) == expected


@pytest.mark.parametrize(("kind", "dtype", "options"), CASES)
def test_preempted_requests_go_on_with_the_same_bits(make_llm, kind, dtype, options):
    prompts = [prompt for prompt in make_prompts(kind) if len(prompt) <= TIGHT_LONGEST]
    roomy = make_llm(kind, dtype=dtype, deterministic=True, **options)
    expected = [run(roomy, [prompt])[0] for prompt in prompts]
    tight = make_llm(
        kind,
        dtype=dtype,
        deterministic=True,
        max_model_len=TIGHT_LONGEST + 40,
        **options,
        kv_cache_bytes=OPTIONS["kv_cache_bytes"] // roomy.stats().kv_blocks_total * TIGHT_BLOCKS[kind],
    )
    assert run(tight, prompts) == expected
    assert tight.stats().preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_option_bits_do_change(make_llm, kind):
    prompts = make_prompts(kind)
    llm = make_llm(kind, dtype="bfloat16", enable_prefix_caching=False)
    assert run(llm, prompts) != [run(llm, [prompt])[0] for prompt in prompts]
