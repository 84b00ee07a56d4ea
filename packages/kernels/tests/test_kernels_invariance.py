"""Batch-invariant ops on the CPU: a row's bits alone, among others and in steps cut otherwise; the choice."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable
from llm_kernels.invariance import row_by_row
from llm_kernels.invariance_check import BatchInvarianceCheck, DependsOnBatch
from llm_kernels.ops.catalog import OPS
from llm_kernels.registry import Backend, Op
from llm_kernels.sampling_batch import SamplingBatch

CPU = torch.device("cpu")
FLOATS = [torch.float32, torch.bfloat16]
CONTEXT = 150


@pytest.fixture(autouse=True)
def _fixed():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _rows(function, *columns):
    """`function` of every row alone, one after the other."""
    return torch.cat(
        [function(*(column[i : i + 1].clone() for column in columns)) for i in range(len(columns[0]))]
    )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16], ids=str)
@pytest.mark.parametrize(("in_size", "out_size"), [(64, 24), (67, 130), (576, 9)])
def test_a_row_of_a_product_is_the_same_alone(dtype, in_size, out_size):
    x, weight = torch.randn(37, in_size, dtype=dtype), torch.randn(out_size, in_size, dtype=dtype)
    bias = torch.randn(out_size, dtype=dtype)
    with ops.batch_invariant():
        every = ops.linear(x, weight, bias)
        assert torch.equal(every, _rows(lambda row: ops.linear(row, weight, bias), x))
        assert torch.equal(every[5:], ops.linear(x[5:], weight, bias))
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(
        every.double(), expected, rtol=2e-2, atol=0.3 if dtype != torch.float32 else 1e-4
    )


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_products_in_every_instruction_set(isa):
    from llm_kernels.cpu.library import native

    best = str(native("cpu_isa")())
    try:
        native("force_cpu_isa")(isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    try:
        x, weight = torch.randn(11, 70), torch.randn(13, 70)
        with ops.batch_invariant():
            every = ops.linear(x, weight)
            assert torch.equal(every, _rows(lambda row: ops.linear(row, weight), x))
        torch.testing.assert_close(every, x @ weight.T, rtol=1e-5, atol=1e-4)
    finally:
        native("force_cpu_isa")(best)


def test_products_of_several_threads_are_the_same():
    x, weight = torch.randn(20, 96), torch.randn(200, 96)
    with ops.batch_invariant():
        once = ops.linear(x, weight)
        torch.set_num_threads(3)
        assert torch.equal(once, ops.linear(x, weight))


OPTIONS = [
    {},
    {"sliding_window": 40},
    {"sliding_window": 7, "sinks": torch.tensor([0.5, -2.0, 3.0, 40.0])},
    {"chunk": 50},
    {"soft_cap": 2.0, "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0])},
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("head_size", [16, 24], ids=["compiled", "row by row"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_a_query_is_the_same_however_its_prompt_is_cut(make_attention_case, dtype, head_size, options):
    whole = make_attention_case([(CONTEXT, CONTEXT)], head_size=head_size, dtype=dtype)
    with ops.batch_invariant():
        expected = whole.run(**options)
        for size in (1, 13, 64):
            pieces = []
            for begin in range(0, CONTEXT, size):
                end = min(begin + size, CONTEXT)
                pieces.append(_part(whole, begin, end).run(**options))
            assert torch.equal(torch.cat(pieces), expected)
    assert _error(expected, whole.expected(**options)) < (1e-5 if dtype == torch.float32 else 1e-2)


def _part(case, begin, end):
    """The step that computes the queries from `begin` to `end` of a case's only row."""
    metadata = replace(
        case.metadata,
        cu_query_lens=torch.tensor([0, end - begin], dtype=torch.int32),
        context_lens=torch.tensor([end], dtype=torch.int32),
        num_decodes=int(end - begin == 1),
        max_query_len=end - begin,
    )
    return replace(case, query=case.query[begin:end], metadata=metadata, rows=[(end - begin, end)])


def _error(out, expected):
    return float((out.float() - expected).norm() / expected.norm())


def test_keys_before_a_window_may_be_anything(make_attention_case):
    case = make_attention_case([(3, 120)], head_size=16)
    with ops.batch_invariant():
        expected = case.run(sliding_window=20)
        given_back = case.metadata.block_tables[0, :6].clone().long()
        case.key_cache[given_back] = float("nan")
        case.value_cache[given_back] = float("nan")
        case.metadata.block_tables[0, :6] = 1 << 30
        assert torch.equal(case.run(sliding_window=20), expected)


def test_rows_of_other_lengths_change_nothing(make_attention_case):
    rows = [(1, 40), (1, 150), (1, 0), (5, 30), (20, 75)]
    case = make_attention_case(rows, head_size=16)
    with ops.batch_invariant():
        together, start = case.run(), 0
        for index, (num_queries, context) in enumerate(rows):
            metadata = replace(
                case.metadata,
                cu_query_lens=torch.tensor([0, num_queries], dtype=torch.int32),
                context_lens=torch.tensor([context], dtype=torch.int32),
                block_tables=case.metadata.block_tables[index : index + 1],
                num_decodes=int(num_queries == 1),
            )
            part = slice(start, start + num_queries)
            alone = replace(case, query=case.query[part], metadata=metadata, rows=[rows[index]])
            assert torch.equal(alone.run(), together[part])
            start += num_queries


def test_latents_are_the_same_however_a_prompt_is_cut(make_attention_case):
    case = make_attention_case([(40, 40)], num_kv_heads=1, head_size=48, num_heads=4)
    cache, query = case.key_cache[:, :, 0], case.query
    with ops.batch_invariant():
        outs = []
        for pieces in ([(0, 40)], [(0, 7), (7, 8), (8, 40)]):
            out = torch.empty(40, 4, 32)
            for begin, end in pieces:
                part = _part(case, begin, end)
                ops.latent_attention(
                    out[begin:end], query[begin:end], cache, part.metadata, scale=0.1, value_size=32
                )
            outs.append(out)
    assert torch.equal(*outs)
    plain = torch.empty(40, 4, 32)
    ops.latent_attention(plain, query, cache, case.metadata, scale=0.1, value_size=32)
    assert _error(outs[0], plain) < 1e-5


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("gated", [True, False])
def test_experts_of_a_token_are_the_same_alone(dtype, gated):
    num_experts, top_k, size, inner = 5, 2, 40, 24
    x = torch.randn(19, size, dtype=dtype)
    ids = torch.stack([torch.randperm(num_experts + 1)[:top_k] - 1 for _ in range(19)])
    weights = torch.rand(19, top_k)
    up = torch.randn(num_experts, inner * (1 + gated), size, dtype=dtype) / 6
    down = torch.randn(num_experts, size, inner, dtype=dtype) / 5
    options = {
        "up_bias": torch.randn(num_experts, inner * (1 + gated)),
        "activation": "silu" if gated else "relu2",
        "gated": gated,
    }

    def run(x, weights, ids):
        out = torch.empty_like(x)
        ops.moe(out, x, weights, ids, up, down, **options)
        return out

    with ops.batch_invariant():
        together = run(x, weights, ids)
        assert torch.equal(together, _rows(run, x, weights, ids))
    assert _error(together, run(x, weights, ids).float()) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_the_choice_of_experts_is_the_same_alone(scoring):
    logits, bias = torch.randn(23, 9), torch.randn(9)

    def route(logits):
        return ops.route_experts(logits, top_k=3, scoring=scoring, renormalize=True, bias=bias)

    with ops.batch_invariant():
        together = route(logits)
        for part in range(2):
            alone = _rows(lambda row, part=part: route(row)[part], logits)
            assert torch.equal(together[part], alone)


def _sampling(rows):
    return SamplingBatch(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.3, 0.9])[rows],
        top_p=torch.tensor([1.0, 0.6, 1.0, 0.9, 1.0])[rows],
        min_p=torch.tensor([0.0, 0.0, 0.1, 0.0, 0.0])[rows],
        top_k=torch.tensor([0, 0, 5, 9, 0], dtype=torch.int32)[rows],
        seeds=torch.arange(5)[rows],
        positions=torch.arange(7, 12)[rows],
        max_top_k=9,
        any_top_p=True,
        any_min_p=True,
        num_logprobs=3,
    )


def test_draws_and_logprobs_are_the_same_alone():
    logits = 3 * torch.randn(5, 1003)
    with ops.batch_invariant():
        together = ops.sample(logits, _sampling(slice(None)))
        for row in range(5):
            one = slice(row, row + 1)
            alone = ops.sample(logits[one], _sampling(one))
            assert torch.equal(alone.tokens, together.tokens[one])
            assert torch.equal(alone.logprobs, together.logprobs[one])
            assert torch.equal(alone.top_logprobs, together.top_logprobs[one])
    plain = ops.sample(logits, _sampling(slice(None)))
    assert torch.equal(plain.tokens, together.tokens)


@pytest.mark.parametrize("kind", ["gelu", "mish", "silu", "relu2"])
def test_norms_and_activations_are_the_same_alone(kind):
    x, weight, bias = torch.randn(9, 45), torch.randn(45), torch.randn(45)

    def norm(x):
        out = torch.empty_like(x)
        ops.layer_norm(out, x, weight, bias, 1e-5)
        return out

    def act(x):
        out = torch.empty_like(x)
        ops.activation(out, x, kind)
        return out

    def gate(x):
        out = x.new_empty((len(x), 22))
        ops.gated_activation(out, x[:, :44], kind)
        return out

    with ops.batch_invariant():
        for function in (norm, act, gate):
            assert torch.equal(function(x), _rows(function, x))


def _toy():
    return Op(
        "toy",
        [
            Backend(name="torch", load=lambda: lambda: "torch", features=None),
            Backend(name="fast", load=lambda: lambda: "fast", priority=20),
            Backend(name="row", load=lambda: lambda: "row", priority=10, is_batch_invariant=True),
            Backend(
                name="fixed",
                load=lambda: lambda: "fixed",
                priority=30,
                features=frozenset({"sinks"}),
                is_batch_invariant=True,
                is_for_invariance=True,
            ),
        ],
    )


def test_invariant_back_ends_are_chosen_inside_the_block_and_nowhere_else():
    op = _toy()
    assert op.pick(CPU, torch.float32, 8)() == "fast"
    with ops.batch_invariant():
        assert op.pick(CPU, torch.float32, 8)() == "fixed"
        assert op.pick(CPU, torch.float32, 8, frozenset({"sinks"}))() == "fixed"
        with pytest.raises(BackendUnavailable, match="batch_invariant"):
            op.pick(CPU, torch.float32, 8, frozenset({"chunk"}))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(op.pick(CPU, torch.float32, 8)()))
        thread.start()
        thread.join()
        assert seen == ["fast"]
    assert op.pick(CPU, torch.float32, 8)() == "fast"
    assert op.pick(CPU, torch.float32, 8, frozenset({"sinks"}))() == "torch"


def test_recurrent_ops_have_no_invariant_back_end():
    with ops.batch_invariant(), pytest.raises(BackendUnavailable, match=r"ssd_scan.*batch_invariant"):
        OPS["ssd_scan"].pick(CPU, torch.float32, 64)


def test_the_check_finds_products_and_functions_of_torch():
    x = torch.randn(3, 4)
    with BatchInvarianceCheck():
        x * 2 + x
        torch.arange(4).sum()
        for call, name in ((lambda: x @ x.T, "mm"), (x.sigmoid, "sigmoid"), (lambda: x.mean(-1), "mean")):
            with pytest.raises(DependsOnBatch, match=name):
                call()
        with row_by_row():
            x[:1].sigmoid()
