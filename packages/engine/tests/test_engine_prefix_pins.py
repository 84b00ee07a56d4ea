"""Beginnings of prompts that stay in the prefix cache: times, quotas, and what stands in nobody's way."""

import asyncio

import numpy as np
import pytest
from llm_engine import AsyncLLM, EngineOptions, SamplingParams
from llm_engine.cache_pins import CachePin, check_pins
from llm_engine.core.prefix_pins import PrefixPins
from llm_engine.errors import InvalidRequest
from llm_kvcache import FullAttention, KVCache

BLOCK = 16


@pytest.fixture
def cache():
    return KVCache([FullAttention(BLOCK)], 64)


def computed(cache, token_ids, *, salt=None):
    """Have the cache hold the prompt, with nobody using it."""
    seq = cache.open(token_ids, salt=salt)
    cache.match(seq)
    cache.grow(seq, len(token_ids) - cache.num_reserved(seq))
    cache.commit(seq, len(token_ids))
    cache.release(seq)
    return token_ids


def prompt(num_tokens, first=0):
    return np.arange(first, first + num_tokens, dtype=np.int32)


def keep(pins, token_ids, *wishes, tenant="", now_s=0.0, salt=None):
    return pins.keep(token_ids, [CachePin(*wish) for wish in wishes], salt=salt, tenant=tenant, now_s=now_s)


def test_whole_blocks_stay_until_their_time_is_over(cache):
    pins = PrefixPins(cache, 0.5, 0.5, 0.0)
    assert keep(pins, computed(cache, prompt(100)), (70, 300.0)) == [64]
    for first in range(1000, 9000, 1000):
        computed(cache, prompt(32 * BLOCK, first))  # more than there is room for
    seq = cache.open(prompt(100))
    assert cache.lookup(seq) == 64
    cache.release(seq)
    pins.tick(299.0)
    assert cache.stats().pinned == 4
    pins.tick(300.5)
    assert (cache.stats().pinned, len(pins)) == (0, 0)


def test_a_growing_conversation_counts_once(cache):
    pins = PrefixPins(cache, 0.5, 0.5, 0.0)
    for turn in range(1, 30):
        assert keep(pins, computed(cache, prompt(turn * BLOCK)), (turn * BLOCK, 300.0), now_s=turn) == [
            turn * BLOCK
        ]
        assert cache.stats().pinned == turn
        assert len(pins) == 1


def test_each_use_starts_the_time_anew_and_never_shortens_it(cache):
    pins = PrefixPins(cache, 0.5, 0.5, 0.0)
    text = computed(cache, prompt(64))
    assert keep(pins, text, (64, 300.0)) == [64]
    assert keep(pins, text, (64, 300.0), now_s=200.0) == [64]
    pins.tick(400.0)
    assert cache.stats().pinned == 4
    assert keep(pins, text, (64, 3600.0), now_s=400.0) == [64]
    assert keep(pins, text, (64, 300.0), now_s=401.0) == [64]
    pins.tick(3900.0)
    assert cache.stats().pinned == 4
    pins.tick(4001.0)
    assert cache.stats().pinned == 0


def test_two_times_of_one_prompt(cache):
    pins = PrefixPins(cache, 0.5, 0.5, 0.0)
    assert keep(pins, computed(cache, prompt(96)), (32, 3600.0), (96, 300.0)) == [32, 96]
    pins.tick(301.0)
    assert cache.stats().pinned == 2


def test_what_the_quota_has_no_room_for_is_told_and_what_was_kept_stays(cache):
    pins = PrefixPins(cache, 0.25, 1.0, 0.0)  # 16 blocks
    assert keep(pins, computed(cache, prompt(10 * BLOCK)), (10 * BLOCK, 300.0)) == [10 * BLOCK]
    assert keep(pins, computed(cache, prompt(20 * BLOCK)), (20 * BLOCK, 300.0), now_s=1.0) == [0]
    assert cache.stats().pinned == 10
    assert keep(pins, computed(cache, prompt(7 * BLOCK, 5000)), (7 * BLOCK, 300.0), now_s=1.0) == [0]
    pins.tick(301.0)
    assert keep(pins, computed(cache, prompt(7 * BLOCK, 5000)), (7 * BLOCK, 300.0), now_s=301.0) == [
        7 * BLOCK
    ]


def test_a_tenant_cannot_take_what_belongs_to_all(cache):
    pins = PrefixPins(cache, 0.5, 0.125, 0.0)  # 8 blocks a tenant
    assert keep(pins, computed(cache, prompt(8 * BLOCK)), (8 * BLOCK, 300.0), tenant="a") == [8 * BLOCK]
    assert keep(pins, computed(cache, prompt(BLOCK, 5000)), (BLOCK, 300.0), tenant="a") == [0]
    assert keep(pins, computed(cache, prompt(BLOCK, 5000)), (BLOCK, 300.0), tenant="b") == [BLOCK]
    pins.tick(301.0)
    assert keep(pins, computed(cache, prompt(BLOCK, 6000)), (BLOCK, 300.0), tenant="a", now_s=301.0) == [
        BLOCK
    ]


def test_nothing_cached_is_nothing_kept(cache):
    pins = PrefixPins(cache, 0.5, 0.5, 0.0)
    assert keep(pins, prompt(64), (64, 300.0)) == [0]
    assert keep(pins, computed(cache, prompt(64), salt=b"other"), (64, 300.0)) == [0]
    assert len(pins) == 0


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ([CachePin(5, 300.0)], "within"),
        ([CachePin(1, 0.0)], "seconds"),
        ([CachePin(1, float("nan"))], "seconds"),
        ([CachePin(1, 10.0)] * 5, "at most 4"),
        ([(1, 10.0)], "CachePin"),
    ],
)
def test_pins_out_of_range_are_refused(pins, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        check_pins(pins, 4)
    assert caught.value.field == "cache_pins"


def test_a_real_engine_keeps_a_prompt_and_pins_stand_in_nobodys_way():
    async def scenario():
        engine = await AsyncLLM.start(
            EngineOptions(
                model="smollm2",
                max_model_len=128,
                kv_cache_bytes=8 * 16 * 46080,
                progress=False,
                pinned_cache_share=1.0,
            )
        )
        try:
            params = SamplingParams(max_tokens=1, temperature=0.0)
            text = list(range(100, 148))

            async def ask(token_ids, params=params, **options):
                deltas = [delta async for delta in engine.generate(token_ids, params, **options)]
                return deltas[0]

            first = await ask(text, cache_pins=[CachePin(40, 300.0)])
            assert (first.pinned_tokens, first.num_cached_tokens) == ((32,), 0)
            await engine.stats(check_cache=True)
            for start in (1000, 2000):  # what is not pinned goes
                await ask(list(range(start, start + 80)))
            again = await ask(text)
            assert (again.num_cached_tokens, again.pinned_tokens) == (32, ())
            other = await ask(text, cache_salt=b"other")
            assert other.num_cached_tokens == 0
            # A request that needs every block is not kept waiting by pins.
            whole = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
            await ask(list(range(5000, 5000 + 118)), whole)
            await engine.stats(check_cache=True)
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(scenario(), 60))
