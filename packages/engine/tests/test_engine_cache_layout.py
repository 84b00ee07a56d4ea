"""Which groups models get, and that the caches in a page neither overlap nor leave it."""

import math

import msgspec
import pytest
import torch
from llm_engine.worker import InvalidOption, WorkerError
from llm_engine.worker.cache_layout import PAGE_ALIGNMENT, LayoutOptions, choose_layout
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import allocate_pool
from llm_kvcache import ChunkedLocal, FullAttention, KVCache, MLALatent, RecurrentState, SlidingWindow
from llm_models.caches import CrossCacheSpec, KVCacheSpec, LatentCacheSpec, StateCacheSpec


def attention(heads=8, size=128, **spans):
    return KVCacheSpec(num_kv_heads=heads, head_size=size, value_size=size, **spans)


def states(*shapes):
    dtypes = (None, *[torch.float32] * (len(shapes) - 1))
    return StateCacheSpec(state_shapes=shapes, state_dtypes=dtypes)


def layout_of(specs, **options):
    options = {"dtype": torch.bfloat16, "block_size": 16, "max_tokens": 131_072, **options}
    return choose_layout(specs, LayoutOptions(**options))


def sizes(layout):
    return [(group.kind, group.block_size, group.span, len(group.caches)) for group in layout.groups]


GEMMA_27B = [attention(16, window=None if index % 6 == 5 else 1024) for index in range(62)]
GPT_OSS = [attention(8, 64, window=None if index % 2 else 128) for index in range(24)]
LLAMA_4 = [attention(chunk=None if index % 4 == 3 else 8192) for index in range(48)]
QWEN_NEXT = [attention(2, 256) if i % 4 == 3 else states((8192, 3), (32, 128, 128)) for i in range(48)]
JAMBA = [attention() if index % 8 == 4 else states((8192, 3), (8192, 16)) for index in range(32)]
MAMBA = [states((5120, 3), (5120, 16))] * 64
DEEPSEEK = [LatentCacheSpec(size=576)] * 61
MODELS = {
    "gemma": GEMMA_27B,
    "gpt-oss": GPT_OSS,
    "llama 4": LLAMA_4,
    "qwen next": QWEN_NEXT,
    "jamba": JAMBA,
    "mamba": MAMBA,
    "deepseek": DEEPSEEK,
    "uneven": [attention(heads, window=window) for heads in (1, 2, 5) for window in (None, 64, 128)],
}


def test_one_kind_is_one_group_with_pages_of_its_own_size():
    layout = layout_of([attention()] * 32)
    assert sizes(layout) == [("full", 16, 0, 32)]
    assert layout.page_bytes == 32 * 2 * 16 * 8 * 128 * 2
    assert sizes(layout_of(DEEPSEEK)) == [("latent", 16, 0, 61)]


def test_layers_with_windows_are_cut_to_the_size_of_the_others():
    assert sizes(layout_of(GEMMA_27B)) == [
        ("full", 16, 0, 10),
        *[("window", 16, 1024, 11)] * 2,
        *[("window", 16, 1024, 10)] * 3,
    ]
    assert sizes(layout_of(GPT_OSS)) == [("full", 16, 0, 12), ("window", 16, 128, 12)]
    assert sizes(layout_of(LLAMA_4)) == [("full", 16, 0, 12), *[("chunk", 16, 8192, 12)] * 3]


def test_a_window_that_no_sequence_leaves_is_none():
    assert sizes(layout_of(GEMMA_27B, max_tokens=1000)) == [("full", 16, 0, 62)]
    assert sizes(layout_of(LLAMA_4, max_tokens=8000)) == [("full", 16, 0, 48)]


@pytest.mark.parametrize("name", ["qwen next", "jamba"])
def test_blocks_of_attention_grow_to_the_size_of_states(name):
    layout = layout_of(MODELS[name])
    of_kind = {group.kind: group for group in layout.groups}
    assert of_kind["full"].block_size > 16
    assert of_kind["state"].block_size % of_kind["full"].block_size == 0
    assert layout.alignment == of_kind["state"].block_size <= 4096
    used = [
        sum(MODELS[name][cache].bytes_per_block(group.block_size, torch.bfloat16) for cache in group.caches)
        for group in layout.groups
    ]
    assert min(used) > 0.7 * layout.page_bytes


def test_checkpoints_follow_the_options():
    assert layout_of(MAMBA).alignment == 512
    assert layout_of(MAMBA, state_interval=48).alignment == 48
    with pytest.raises(InvalidOption, match="state_interval"):
        layout_of(MAMBA, state_interval=24)
    # Nobody looks for checkpoints without prefix caching: one block lasts for the longest sequence.
    layout = layout_of(QWEN_NEXT, prefix_caching=False, max_tokens=5000)
    assert {group.block_size for group in layout.groups if group.kind == "state"} == {8192}


def test_an_encoders_tokens_are_a_group():
    cross = CrossCacheSpec(num_kv_heads=8, head_size=128)
    layout = layout_of([spec for _ in range(6) for spec in (attention(), cross)])
    assert sizes(layout) == [("full", 16, 0, 6), ("cross", 16, 0, 6)]
    assert layout.alignment == 16
    with pytest.raises(WorkerError, match="caches nothing"):
        layout_of([cross])


@pytest.mark.parametrize("name", MODELS)
def test_every_cache_is_in_one_group_and_the_library_takes_them(name):
    layout = layout_of(MODELS[name])
    members = [cache for group in layout.groups for cache in group.caches]
    assert sorted(members) == list(range(len(MODELS[name])))
    for cache, group in enumerate(layout.cache_groups()):
        assert cache in layout.groups[group].caches
    assert len(layout.groups) <= 16
    cache = KVCache([group.for_cache() for group in layout.groups], 1000)
    assert math.lcm(*(group.block_size for group in cache.groups)) == layout.alignment
    known = {FullAttention, MLALatent, SlidingWindow, ChunkedLocal, RecurrentState}
    assert {type(group) for group in cache.groups} <= known
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=KVLayout) == layout


@pytest.mark.parametrize("num_pages", [0, 1, 5, 100, 3333])
@pytest.mark.parametrize("name", MODELS)
def test_the_longest_sequence_just_fits(name, num_pages):
    layout = layout_of(MODELS[name])
    longest = layout.longest(num_pages)
    assert layout.pages(longest) <= num_pages < layout.pages(longest + 1)


SMALL = {
    "one group": [attention(2, 16)] * 3,
    "windows": [attention(2, 16, window=8 if index else None) for index in range(6)],
    "states": [attention(1, 24), states((5, 3), (7,)), LatentCacheSpec(size=20), states((5, 3), (7,))],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SMALL)
def test_tensors_of_a_page_lie_side_by_side(name, dtype):
    """Every byte of a group's tensors is written with a number of its own, and all are still there."""
    num_pages, specs = 5, SMALL[name]
    layout = layout_of(specs, dtype=dtype, max_tokens=64)
    pool = allocate_pool(specs, layout, num_pages, dtype, torch.device("cpu"))
    for spec, cache, group in zip(specs, pool.caches, layout.cache_groups(), strict=True):
        block_size = layout.groups[group].block_size
        assert [tuple(tensor.shape) for tensor in cache] == list(spec.shapes(num_pages, block_size))
        assert [tensor.dtype for tensor in cache] == list(spec.dtypes(dtype))
        assert all(tensor[0].is_contiguous() for tensor in cache)
        assert all(tensor.data_ptr() % 64 == 0 for tensor in cache)
    before = pool.caches[0][0].data_ptr() if len(layout.groups) > 1 else None
    for group in layout.groups:
        tensors = [tensor for cache in group.caches for tensor in pool.caches[cache]]
        for number, tensor in enumerate(tensors):
            tensor.copy_(torch.arange(num_pages).add(10 * number).view(-1, *[1] * (tensor.dim() - 1)))
        for number, tensor in enumerate(tensors):
            assert (tensor.flatten(1) == torch.arange(num_pages).add(10 * number)[:, None]).all()
            if before is not None:
                assert (tensor.data_ptr() - tensors[0].data_ptr()) % PAGE_ALIGNMENT == 0
    stored = sum(storage.nbytes for storage in pool.storages)
    assert stored == num_pages * layout.page_bytes


def test_a_page_is_one_row_of_the_storages():
    specs = SMALL["windows"]
    layout = layout_of(specs, max_tokens=64, dtype=torch.float32)
    pool = allocate_pool(specs, layout, 4, torch.float32, torch.device("cpu"))
    for cache in pool.caches:
        for tensor in cache:
            tensor[2] = 1.0
    for storage in pool.storages:
        assert storage[2].any()
        assert not storage[[0, 1, 3]].any()
