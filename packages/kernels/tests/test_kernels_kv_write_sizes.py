"""Writing keys and values of unlike sizes, and latents, into caches whose blocks lie apart."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

SLOTS = torch.tensor([37, -1, 0, 12, 63, 5])


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("head_size", "value_size"), [(24, 16), (8, 200)])
def test_write_kv(name, dtype, head_size, value_size):
    key, value = _randn(6, 3, head_size), _randn(6, 3, value_size, seed=1)
    pool = torch.zeros(4, 16 * 3 * (head_size + value_size) + 32, dtype=dtype)
    split = 16 * 3 * head_size
    key_cache = pool[:, :split].unflatten(1, (16, 3, head_size))
    value_cache = pool[:, split : split + 16 * 3 * value_size].unflatten(1, (16, 3, value_size))
    with ops.use_backend("write_kv", name):
        ops.write_kv(key, value, key_cache, value_cache, SLOTS)
    expected_key, expected_value = torch.zeros(4, 16, 3, head_size), torch.zeros(4, 16, 3, value_size)
    for token, slot in enumerate(SLOTS.tolist()):
        if slot >= 0:
            expected_key[slot // 16, slot % 16] = key[token]
            expected_value[slot // 16, slot % 16] = value[token]
    assert torch.equal(key_cache, expected_key.to(dtype))
    assert torch.equal(value_cache, expected_value.to(dtype))
    assert not pool[:, -32:].any()


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_write_latent(name, dtype):
    fused = _randn(6, 100)
    cache = torch.zeros(4, 20, 40, dtype=dtype)[:, :16]
    with ops.use_backend("write_latent", name):
        ops.write_latent(fused[:, 10:50], cache, SLOTS)
    expected = torch.zeros(4, 16, 40)
    for token, slot in enumerate(SLOTS.tolist()):
        if slot >= 0:
            expected[slot // 16, slot % 16] = fused[token, 10:50]
    assert torch.equal(cache, expected.to(dtype))


@pytest.mark.parametrize("name", ["torch", "cpp"])
def test_write_latent_refuses_a_bad_slot_and_what_does_not_fit(name):
    cache = torch.zeros(4, 16, 40)
    with ops.use_backend("write_latent", name):
        for field, latent, slots in (
            ("slot_mapping", torch.ones(2, 40), torch.tensor([0, 64])),
            ("slot_mapping", torch.ones(2, 40), torch.tensor([0])),
            ("latent_cache", torch.ones(2, 32), torch.tensor([0, 1])),
        ):
            with pytest.raises(InvalidArgument) as caught:
                ops.write_latent(latent, cache, slots)
            assert caught.value.field == field
    assert not cache.any()
