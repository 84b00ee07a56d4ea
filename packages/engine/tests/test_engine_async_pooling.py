"""Vectors and scores through `AsyncPoolingLLM` and a real core process, against `LLM` on the same folder."""

import asyncio
import os
import signal
import sys
import time

import numpy as np
import pytest
import pytest_asyncio
import tokenizers
import torch
import transformers
from llm_engine import (
    LLM,
    AsyncLLM,
    AsyncPoolingLLM,
    ContextLengthExceeded,
    EngineDead,
    EngineOptions,
    InvalidRequest,
    RestartPolicy,
    SamplingParams,
    StartupError,
    UnsupportedTask,
    start_engine,
)

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "eats",
    "food",
    "now",
]
TEXTS = ["the cat sat on the mat", "a dog eats", "the dog and the cat eats food now", "cat"]
OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "progress": False}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def make(folder, name="BertModel", **fields):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
        "initializer_range": 0.3,
        "pad_token_id": 0,
    }
    config = transformers.BertConfig(**(sizes | fields))
    getattr(transformers, name)(config).eval().save_pretrained(folder)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    words.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bert"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder):
    running = await start_engine(EngineOptions(model=str(folder), **OPTIONS))
    yield running
    await running.shutdown()


async def test_many_callers_at_once_get_what_the_offline_form_gives_each(engine, folder):
    with LLM(str(folder), **OPTIONS) as llm:
        expected = llm.embed(TEXTS, normalize=True, progress=False)
        scores = llm.score("a dog eats", TEXTS, progress=False)
    before = await engine.stats()
    calls = [engine.embed([text], normalize=True) for _ in range(16) for text in TEXTS]
    results = await asyncio.gather(*calls, engine.score([("a dog eats", text) for text in TEXTS]))
    for index, (got,) in enumerate(results[:-1]):
        want = expected[index % len(TEXTS)]
        assert got.embedding == pytest.approx(want.embedding, abs=1e-5)
        assert got.num_prompt_tokens == want.num_prompt_tokens
    assert [one.score for one in results[-1]] == pytest.approx([one.score for one in scores], abs=1e-5)
    after = await engine.stats()
    assert after.requests_added - before.requests_added == 65
    assert after.requests_finished["stop"] - before.requests_finished["stop"] == 65
    assert after.steps - before.steps < 65, "no two requests shared a pass"
    assert (after.running, after.waiting) == (0, 0)


async def test_what_is_wrong_is_named_before_anything_runs(engine):
    before = await engine.stats()
    for texts, field in ((["cat", "the " * 60], "texts[1]"), ([""], "texts"), ([[1], [99]], "texts[1]")):
        with pytest.raises(InvalidRequest) as caught:
            await engine.embed(texts)
        assert caught.value.field == field
    with pytest.raises(ContextLengthExceeded):
        await engine.score([("cat", "dog"), ("the " * 60, "cat")])
    with pytest.raises(UnsupportedTask, match="call embed, or score"):
        await engine.classify(["cat"])
    with pytest.raises(UnsupportedTask, match="call embed or score"):
        engine.generate("cat", SamplingParams())
    after = await engine.stats()
    assert after.requests_added == before.requests_added
    assert after.requests_refused == before.requests_refused + 5


async def test_a_caller_who_leaves_takes_back_what_has_not_run(engine):
    before = await engine.stats()
    long = ["the cat eats food now " * 6] * 8_000
    task = asyncio.ensure_future(engine.embed(long))
    while (await engine.stats()).steps == before.steps:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(engine.embed(["cat"]), timeout=5)
    after = await engine.stats()
    assert (after.running, after.waiting) == (0, 0)
    assert after.requests_finished["abort"] == before.requests_finished["abort"] + 1
    assert after.scheduled_tokens - before.scheduled_tokens < sum(len(text.split()) for text in long) / 2
    await asyncio.sleep(0.2)
    assert (await engine.stats()).scheduled_tokens == after.scheduled_tokens


async def test_a_small_request_does_not_wait_for_a_large_one(engine):
    before = await engine.stats()
    large = asyncio.ensure_future(engine.embed(["the cat eats food now " * 6] * 8_000))
    while (await engine.stats()).steps == before.steps:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await engine.embed(["cat"])
    assert not large.done()
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large


async def test_the_loop_turns_while_a_large_request_runs(engine):
    task = asyncio.ensure_future(engine.embed(["the cat eats food now " * 6] * 1_000))
    worst = 0.0
    while not task.done():
        begun = time.perf_counter()
        await asyncio.sleep(0.005)
        worst = max(worst, time.perf_counter() - begun)
    assert len(task.result()) == 1_000
    assert worst < 0.5


async def test_the_death_of_the_core_reaches_everyone(folder):
    engine = await AsyncPoolingLLM.start(EngineOptions(model=str(folder), **OPTIONS))
    try:
        task = asyncio.ensure_future(engine.embed(["the cat eats food now " * 6] * 8_000))
        await asyncio.sleep(0.2)
        os.kill(engine.core_pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="SIGKILL"):
            await asyncio.wait_for(task, timeout=10)
        assert not engine.is_healthy()
        with pytest.raises(EngineDead):
            await engine.embed(["cat"])
    finally:
        await engine.shutdown()


async def test_passes_run_again_in_the_core_that_comes_after(folder):
    engine = await AsyncPoolingLLM.start(EngineOptions(model=str(folder), **OPTIONS), restart=RestartPolicy())
    try:
        texts = ["the cat eats food now " * 6, "a dog sat"] * 2_000
        expected = await engine.embed(texts[:2])
        task = asyncio.ensure_future(engine.embed(texts))
        await asyncio.sleep(0.2)
        assert not task.done()
        pid = engine.core_pid
        os.kill(pid, signal.SIGKILL)
        outputs = await asyncio.wait_for(task, timeout=60)
        assert engine.state.generation == 2
        assert engine.core_pid != pid
        assert len(outputs) == len(texts)
        for output, other in zip(outputs[-2:], expected, strict=True):
            np.testing.assert_allclose(output.embedding, other.embedding, atol=1e-5)
        assert (await engine.stats()).running == 0
    finally:
        await engine.shutdown()


async def test_a_cross_encoder_scores_pairs_with_their_types(tmp_path):
    make(tmp_path, "BertForSequenceClassification", num_labels=1)
    pairs = [("the cat", "a cat sat"), ("a dog eats food", "the mat"), ("dog", "the dog eats now")]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        expected = [output.score for output in llm.score(pairs, progress=False)]
        raw = [output.reward for output in llm.reward(TEXTS, progress=False)]
    engine = await start_engine(EngineOptions(model=str(tmp_path), **OPTIONS))
    try:
        scores, rewards = await asyncio.gather(engine.score(pairs), engine.reward(TEXTS))
    finally:
        await engine.shutdown()
    assert [output.score for output in scores] == pytest.approx(expected, abs=1e-5)
    assert [output.reward for output in rewards] == pytest.approx(raw, abs=1e-4)
    assert np.ptp(expected) > 1e-3


async def test_each_front_end_names_the_other_for_the_other_kind(folder):
    with pytest.raises(StartupError, match="use AsyncPoolingLLM"):
        await AsyncLLM.start(EngineOptions(model=str(folder), **OPTIONS))


async def test_the_front_end_needs_no_torch():
    code = "import sys, llm_engine.async_start; sys.exit('torch' in sys.modules)"
    python = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await python.wait() == 0


async def test_short_vectors_are_as_the_config_says():
    from llm_engine.worker.pooling_info import short_vectors

    assert not short_vectors({}).allow(64)
    assert short_vectors({"is_matryoshka": True}).allow(64)
    listed = short_vectors({"matryoshka_dimensions": [32, 64]})
    assert listed.allow(64)
    assert not listed.allow(48)
