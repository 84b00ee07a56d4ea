"""`deterministic` on the CPU: a request's tokens and logprobs have the same bits whatever happens around it.

Every prompt is run alone first. The same prompts then run together, in another order, in chunks, over cached
prefixes and with preemptions; without the option, some of that shows.
"""

from __future__ import annotations

import json
import random

import pytest
import torch
import transformers
from engine_tiny_models import KINDS
from llm_engine import LLM, SamplingParams
from llm_engine.core.messages import CoreInfo
from llm_engine.errors import InvalidOption, StartupError
from llm_engine.options import EngineOptions
from llm_engine.prompts import TokensPrompt
from llm_engine.request_builder import RequestBuilder
from llm_engine.worker.cache_layout import LayoutOptions, choose_layout
from llm_engine.worker.determinism import check_deterministic
from llm_engine.worker.errors import InvalidOption as InvalidWorkerOption
from llm_models import resolve
from llm_models.fallback.load import load_fallback

OPTIONS = {
    "device": "cpu",
    "dtype": "float32",
    "load_format": "dummy",
    "max_model_len": 256,
    "kv_cache_bytes": 32 << 20,
    "threads": 1,
    "progress": False,
}
CACHE_BYTES = {"dense": 400 << 10, "experts": 400 << 10, "windows": 400 << 10, "latents": 200 << 10}
"""Bytes of a KV cache that does not hold all prompts."""
SHARED = 40
SAMPLING = SamplingParams(
    max_tokens=10, temperature=0.8, top_p=0.9, seed=3, logprobs=3, ignore_eos=True, detokenize=False
)


@pytest.fixture
def make_llm(tmp_path):
    made = []

    def make(kind, **options):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(KINDS[kind]))
        made.append(LLM(str(folder), **{**OPTIONS, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


def make_prompts(vocab_size):
    """Prompts of many lengths, half of which begin alike."""
    numbers = random.Random(5)
    shared = [numbers.randrange(5, vocab_size) for _ in range(SHARED)]
    lengths = (1, 7, 33, 64, 90)
    prompts = [[numbers.randrange(5, vocab_size) for _ in range(length)] for length in lengths]
    return prompts + [shared + prompt[:20] for prompt in prompts]


def run(llm, prompts, params=SAMPLING):
    """Token ids and logprobs of each prompt's answer."""
    answers = (request.outputs[0] for request in llm.generate(prompts, params, progress=False))
    return [(answer.token_ids, answer.logprobs) for answer in answers]


def run_alone(llm, prompts, params=SAMPLING):
    return [run(llm, [prompt], params)[0] for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_around_a_request_changes_a_bit_of_it(make_llm, kind):
    prompts = make_prompts(KINDS[kind]["vocab_size"])
    plain = make_llm(kind, deterministic=True, enable_prefix_caching=False)
    expected = run_alone(plain, prompts)
    llm = make_llm(kind, deterministic=True)
    assert run(llm, prompts) == expected
    assert run(llm, prompts[::-1]) == expected[::-1]
    assert llm.stats().prefix_hit_tokens > SHARED
    assert run_alone(llm, prompts) == expected
    chunked = make_llm(kind, deterministic=True, max_num_batched_tokens=16, overlap=True)
    assert run(chunked, prompts) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_go_on_with_the_same_bits(make_llm, kind):
    prompts = make_prompts(KINDS[kind]["vocab_size"])
    expected = run_alone(make_llm(kind, deterministic=True), prompts)
    tight = make_llm(kind, deterministic=True, kv_cache_bytes=CACHE_BYTES[kind], max_model_len=128)
    assert run(tight, prompts) == expected
    assert tight.stats().preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_option_bits_do_change(make_llm, kind):
    prompts = make_prompts(KINDS[kind]["vocab_size"])
    llm = make_llm(kind, enable_prefix_caching=False)
    assert run(llm, prompts) != run_alone(llm, prompts)


def test_a_real_model(smollm2_path):
    texts = [
        "The capital of France is",
        "Once upon a time there was a",
        "def add(a, b):\n    return",
        "Water boils at a temperature of one hundred degrees, and",
    ]
    options = {
        "device": "cpu",
        "max_model_len": 256,
        "kv_cache_bytes": 64 << 20,
        "threads": 1,
        "progress": False,
    }
    params = SamplingParams(max_tokens=8, temperature=0.7, seed=1, logprobs=2, prompt_logprobs=1)
    llm = LLM(str(smollm2_path), deterministic=True, **options)
    chunked = LLM(str(smollm2_path), deterministic=True, max_num_batched_tokens=16, **options)
    try:
        together = llm.generate(texts, params, progress=False)
        for text, expected, other in zip(
            texts, together, chunked.generate(texts, params, progress=False), strict=True
        ):
            (alone,) = llm.generate(text, params, progress=False)
            for found in (alone, other):
                assert found.outputs[0].token_ids == expected.outputs[0].token_ids
                assert found.outputs[0].logprobs == expected.outputs[0].logprobs
                assert found.prompt_logprobs == expected.prompt_logprobs
    finally:
        llm.shutdown()
        chunked.shutdown()


def test_penalties_and_filters_of_neighbours_change_nothing(make_llm):
    prompts = make_prompts(KINDS["dense"]["vocab_size"])[:5]
    common = {"max_tokens": 8, "ignore_eos": True, "detokenize": False, "logprobs": 2}
    params = [
        SamplingParams(temperature=0, **common),
        SamplingParams(temperature=0.9, top_k=7, seed=1, **common),
        SamplingParams(temperature=1.1, top_p=0.5, seed=2, presence_penalty=0.5, **common),
        SamplingParams(temperature=0.8, min_p=0.1, seed=3, repetition_penalty=1.2, **common),
        SamplingParams(temperature=0.7, seed=4, logit_bias={17: 2.0}, frequency_penalty=0.3, **common),
    ]
    llm = make_llm("dense", deterministic=True)
    together = llm.generate(prompts, params, progress=False)
    for prompt, wanted, expected in zip(prompts, params, together, strict=True):
        (alone,) = llm.generate([prompt], wanted, progress=False)
        assert alone.outputs == expected.outputs


def test_requests_without_a_seed_do_not_depend_on_their_order(make_llm):
    prompts = make_prompts(KINDS["dense"]["vocab_size"])[:4]
    params = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True, detokenize=False, logprobs=0)
    llm = make_llm("dense", deterministic=True)
    assert run(llm, prompts, params) == run(llm, prompts[::-1], params)[::-1]


def _seeds(**options):
    info = CoreInfo(
        tokenizer_path=None,
        max_model_len=64,
        vocab_size=100,
        eos_token_ids=[99],
        num_blocks=8,
        block_size=16,
        device="cpu",
        dtype="float32",
        overlap=False,
        prefix_caching=True,
        sampling_defaults={},
    )
    builder = RequestBuilder(None, info, 5, **options)
    params = SamplingParams(n=2, max_tokens=4, detokenize=False)
    prompt = TokensPrompt(token_ids=[1, 2, 3])
    built = [builder.build(prompt, params, str(i), 0, lambda _: None) for i in range(2)]
    return [[choice.message.params.seed for choice in request.choices] for request in built]


def test_one_seed_serves_all_requests_without_one():
    assert _seeds(one_seed=True) == [[5, 6], [5, 6]]
    first, second = _seeds()
    assert first != second


def test_several_devices_are_refused():
    with pytest.raises(InvalidOption, match="tensor_parallel_size") as error:
        EngineOptions(model="smollm2", deterministic=True, tensor_parallel_size=2)
    assert error.value.field == "deterministic"
    with pytest.raises(InvalidOption, match="true or false"):
        EngineOptions(model="smollm2", deterministic=1)


RECURRENT = {
    "architectures": ["MambaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "state_size": 8,
    "conv_kernel": 4,
    "expand": 2,
    "intermediate_size": 128,
    "time_step_rank": 4,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": 500,
}
CAPPED = {**KINDS["windows"], "architectures": ["Gemma2ForCausalLM"], "final_logit_softcapping": 30.0}


@pytest.mark.parametrize(
    ("config", "reason"),
    [(RECURRENT, "causal_conv1d.*batch_invariant"), (CAPPED, "torch's tanh")],
    ids=["recurrent states", "a function of torch"],
)
def test_models_that_cannot_are_refused(tmp_path, config, reason):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match=f"deterministic: cannot be had of this model here: .*{reason}"):
        LLM(str(tmp_path), deterministic=True, **OPTIONS)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "RwkvForCausalLM"])
def test_models_of_transformers_are_refused(tmp_path, name):
    """Run through the fallback; one of the two turns what is found into an error of its own."""
    transformers.logging.disable_progress_bar()
    model = getattr(transformers, name)
    config = model.config_class(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model(config).save_pretrained(tmp_path)
    loaded = load_fallback(resolve(str(tmp_path)), dtype=torch.float32, device="cpu")
    options = LayoutOptions(
        dtype=torch.float32, block_size=16, max_tokens=64, prefix_caching=True, state_interval=None
    )
    with pytest.raises(InvalidWorkerOption, match=r"deterministic: .*torch's") as error:
        check_deterministic(loaded, choose_layout(loaded.caches, options))
    assert error.value.field == "deterministic"
