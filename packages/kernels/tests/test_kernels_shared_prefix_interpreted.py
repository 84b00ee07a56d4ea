"""Decode attention with shared prefixes, in Triton's interpreter, against the plain reference.

As in test_kernels_interpreted the tests run in a process of their own, which `test_in_the_interpreter`
starts.
"""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
SINKS = torch.tensor([0.5, -2.0, 3.0, 40.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 15


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 2), (4, 1), (6, 2)])
def test_groups(make_attention_case, share_prefixes, relative_error, dtype, num_heads, num_kv_heads):
    rows = [(1, 90), (1, 33), (1, 70), (1, 81), (1, 200), (1, 0), (1, 65), (7, 50)]
    case = make_attention_case(
        rows, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=32, dtype=dtype
    )
    share_prefixes(case, [([0, 4, 3], 80), ([6, 2], 64)])
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < BOUND[dtype]


@inside
@pytest.mark.parametrize(
    "options",
    [
        {"sinks": SINKS},
        {"alibi_slopes": SLOPES},
        {"soft_cap": 2.0, "sinks": SINKS.half()},
        {"sliding_window": 40},
        {"chunk": 32},
        {"sliding_window": 1000},
    ],
    ids=lambda o: "-".join(f"{k}={'x' if isinstance(v, torch.Tensor) else v}" for k, v in o.items()),
)
def test_each_option(make_attention_case, share_prefixes, relative_error, options):
    case = make_attention_case([(1, 90), (1, 66), (1, 10), (1, 300)], head_size=16, value_size=32)
    share_prefixes(case, [([0, 1, 3], 64)])
    with ops.use_backend("paged_attention", "triton_interpreter"):
        out = case.run(**options)
    with ops.use_backend("paged_attention", "torch"):
        assert relative_error(out, case.run(**options)) < 1e-5


@inside
def test_the_shared_keys_are_read_through_the_first_member_only(
    make_attention_case, share_prefixes, relative_error
):
    """What the other members' tables say of the prefix is not looked at: it is read once for all."""
    case = make_attention_case([(1, 100), (1, 120), (1, 90)], head_size=16)
    share_prefixes(case, [([1, 0, 2], 80)])
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run()
    case.metadata.block_tables[[0, 2], :5] = 1 << 30
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), expected) < 1e-5


@inside
def test_many_rows_make_several_tiles(make_attention_case, share_prefixes, relative_error):
    case = make_attention_case([(1, 40 + i) for i in range(20)], num_heads=4, num_kv_heads=1, head_size=16)
    share_prefixes(case, [(list(range(1, 19)), 32)])
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < 1e-5


@inside
@pytest.mark.parametrize("options", [{}, {"sinks": SINKS}], ids=["plain", "sinks"])
def test_rows_that_fill_the_device_are_not_split(
    make_attention_case, share_prefixes, relative_error, options
):
    """Then the decode kernel adds the parts of the prefix itself."""
    from llm_kernels.triton.attention_decode import num_splits

    case = make_attention_case([(1, 40 + 3 * i) for i in range(33)], num_kv_heads=4, head_size=16)
    assert num_splits(33 * 4, 8) == 1
    share_prefixes(case, [([5, 20, 6, 7], 48), (list(range(9, 19)), 64)])
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(**options), case.expected(**options)) < 1e-5


@inside
def test_no_group_in_use(make_attention_case, share_prefixes, relative_error):
    case = make_attention_case([(1, 90), (1, 0), (1, 600)], head_size=16)
    share_prefixes(case, [])
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(), case.expected()) < 1e-5


@inside
@pytest.mark.parametrize("field", ["prefix_lens", "member_rows", "cu_members"])
def test_wrong_shapes_are_named(make_attention_case, share_prefixes, field):
    case = make_attention_case([(1, 90), (1, 66)], head_size=16)
    share_prefixes(case, [([0, 1], 64)])
    shared = case.metadata.shared_prefix
    values = {name: getattr(shared, name) for name in type(shared).__slots__}
    values[field] = values[field][1:]
    case.metadata.shared_prefix = ops.SharedPrefix(**values)
    with ops.use_backend("paged_attention", "triton_interpreter"), pytest.raises(InvalidArgument) as caught:
        case.run()
    assert caught.value.field == field
