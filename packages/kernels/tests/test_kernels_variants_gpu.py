"""Triton kernels of a step are compiled once, whatever the number of rows: each compilation takes long."""

import pytest
import torch
from llm_kernels import ops
from llm_kernels.decode_rows import DecodeRows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROWS = [1, 2, 7, 16, 33, 64]


def variants_of(kernel):
    """Kernels made so far, on all devices."""
    return sum(len(entry[0]) for entry in kernel.device_caches.values())


@pytest.fixture
def new_variants():
    """Counts what a function makes of a kernel beyond its first call."""

    def count(kernel, call):
        call(ROWS[0])
        before = variants_of(kernel)
        for rows in ROWS[1:]:
            call(rows)
        torch.cuda.synchronize()
        return variants_of(kernel) - before

    return count


def test_norms(new_variants):
    from llm_kernels.triton import norm

    weight = torch.randn(1024, device="cuda", dtype=torch.bfloat16)

    def call(rows):
        x, residual = torch.randn(2, rows, 1024, device="cuda", dtype=torch.bfloat16)
        ops.fused_add_rms_norm(x, residual, weight, 1e-6)

    assert new_variants(norm._norm_kernel, call) == 0


def test_both_ends_of_a_decode_step(new_variants):
    from llm_kernels.triton import decode_inputs

    token_ids = torch.zeros((64, 128), dtype=torch.int32, device="cuda")
    tables = torch.zeros((1, 64, 8), dtype=torch.int32, device="cuda")

    def prepare(rows):
        contexts = torch.full((rows,), 9, dtype=torch.int32, device="cuda")
        none = torch.full((1, rows), -1, dtype=torch.int32, device="cuda")
        given = DecodeRows(torch.arange(rows, device="cuda"), contexts, none, none.clone())
        ops.prepare_decode(given, token_ids, tables, 16, has_places=True)

    def store(rows):
        tokens = torch.arange(rows, device="cuda")
        ops.store_tokens(tokens, torch.zeros(rows, dtype=torch.bool, device="cuda"), tokens, token_ids)

    assert new_variants(decode_inputs._prepare_kernel, prepare) == 0
    assert new_variants(decode_inputs._store_kernel, store) == 0
