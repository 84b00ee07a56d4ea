"""A KV cache in e4m3 through the engine: half the bytes, tokens near those of the model's own format."""

import json

import pytest
import torch
from llm_engine import LLM, SamplingParams
from llm_engine.errors import InvalidOption
from llm_engine.options import EngineOptions
from llm_engine.worker import InvalidOption as InvalidWorkerOption
from llm_engine.worker.cache_layout import LayoutOptions, caches_in, choose_layout
from llm_models.caches import KVCacheSpec, LatentCacheSpec, StateCacheSpec

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "max_position_embeddings": 256,
    "eos_token_id": 499,
}
PROMPTS = [[(7 * i + 3 * j) % 490 for j in range(length)] for i, length in enumerate([1, 5, 20, 40])]
KV = KVCacheSpec(num_kv_heads=2, head_size=64, value_size=64)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What each format generates: greedy tokens and their logprobs; and the bytes of a page."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False, logprobs=1)
    results = {}
    for name in ("auto", "fp8"):
        llm = LLM(
            str(folder),
            load_format="dummy",
            device="cpu",
            threads=1,
            progress=False,
            kv_cache_bytes=1 << 20,
            kv_cache_dtype=name,
        )
        try:
            done = [one.outputs[0] for one in llm.generate(PROMPTS, params, progress=False)]
            worker = llm._client._core._executor._worker
            results[name] = (
                done,
                worker._runner.caches[0][0].dtype,
                worker._loaded.info.kv_layout.page_bytes,
            )
        finally:
            llm.shutdown()
    return results


def test_the_cache_takes_one_byte_a_number(outputs):
    assert outputs["fp8"][1] == torch.float8_e4m3fn
    assert outputs["auto"][1] == torch.float32
    assert 4 * outputs["fp8"][2] == outputs["auto"][2]


def test_scores_are_near_those_of_the_models_format(outputs):
    """The first token of each prompt, whose own logits the cache of the prompt went into."""
    for exact, rounded in zip(outputs["auto"][0], outputs["fp8"][0], strict=True):
        first, second = (out.logprobs[0].logprob for out in (exact, rounded))
        assert second == pytest.approx(first, abs=0.1)
    pairs = [
        (a.logprob, b.logprob)
        for exact, rounded in zip(outputs["auto"][0], outputs["fp8"][0], strict=True)
        for a, b in zip(exact.logprobs, rounded.logprobs, strict=True)
    ]
    assert any(a != b for a, b in pairs)


def test_only_keys_and_values_change():
    latent = LatentCacheSpec(size=64)
    state = StateCacheSpec(state_shapes=((4, 4),), state_dtypes=(torch.float32,))
    specs = caches_in("fp8", (KV, latent, state))
    assert specs[0].dtypes(torch.bfloat16) == (torch.float8_e4m3fn,) * 2
    assert specs[1:] == (latent, state)
    assert caches_in("auto", (KV, latent)) == (KV, latent)


def test_pages_of_the_layout_halve():
    options = LayoutOptions(dtype=torch.bfloat16, block_size=16, max_tokens=1024)
    pages = [choose_layout(caches_in(name, (KV, KV)), options).page_bytes for name in ("auto", "fp8")]
    assert pages[0] == 2 * pages[1]


def test_what_cannot_be_is_refused():
    for name, caches in (("fp8", (LatentCacheSpec(size=64),)), ("int8", (KV,))):
        with pytest.raises(InvalidWorkerOption) as caught:
            caches_in(name, caches)
        assert caught.value.field == "kv_cache_dtype"
    with pytest.raises(InvalidOption, match="kv_cache_dtype"):
        EngineOptions(model="smollm2", kv_cache_dtype="int8")
