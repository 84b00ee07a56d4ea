"""What paged attention can do beyond the plain op, against a loop over queries and heads in float64."""

from __future__ import annotations

import math

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable, InvalidArgument
from llm_kernels.reference import attention as reference

MIXED = [(1, 1), (1, 17), (1, 90), (1, 0), (5, 5), (3, 70), (20, 60)]
SINKS = torch.tensor([0.5, -2.0, 3.0, 40.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
OPTIONS = [
    {"chunk": 1},
    {"chunk": 16},
    {"chunk": 33},
    {"chunk": 1000},
    {"chunk": 32, "sliding_window": 20},
    {"sinks": SINKS},
    {"sinks": SINKS, "sliding_window": 19},
    {"alibi_slopes": SLOPES},
    {"alibi_slopes": SLOPES, "soft_cap": 2.0, "chunk": 50},
    {"causal": False},
    {"causal": False, "sinks": SINKS, "soft_cap": 1.0},
]


@pytest.fixture(params=["torch", "cpp"])
def backend(request):
    with ops.use_backend("paged_attention", request.param):
        yield request.param


def _name(options):
    return "-".join(f"{k}={'x' if isinstance(v, torch.Tensor) else v}" for k, v in options.items())


def _sees(key, position, options):
    if not options.get("causal", True):
        return True
    window, chunk = options.get("sliding_window"), options.get("chunk")
    return (
        key <= position
        and (window is None or key > position - window)
        and (chunk is None or key // chunk == position // chunk)
    )


def _by_hand(case, options):
    """One query and head after the other."""
    outs, token = [], 0
    block_size, group = case.key_cache.shape[1], case.query.shape[1] // case.key_cache.shape[2]
    cap, slopes, sinks = (options.get(name) for name in ("soft_cap", "alibi_slopes", "sinks"))
    bias = options.get("distance_bias")
    for row, (num_queries, context) in enumerate(case.rows):
        table = case.metadata.block_tables[row].tolist()
        for q in range(num_queries):
            position = context - num_queries + q
            keys = [k for k in range(context) if _sees(k, position, options)]
            for head in range(case.query.shape[1]):
                if not keys:
                    outs.append(torch.zeros(case.value_cache.shape[-1], dtype=torch.float64))
                    continue
                at = [(table[k // block_size], k % block_size, head // group) for k in keys]
                key = torch.stack([case.key_cache[a] for a in at]).double()
                value = torch.stack([case.value_cache[a] for a in at]).double()
                scores = key @ case.query[token, head].double() * case.scale
                if cap is not None:
                    scores = cap * torch.tanh(scores / cap)
                if slopes is not None:
                    scores = scores + float(slopes[head]) * (torch.tensor(keys) - position)
                if bias is not None:
                    distances = position - torch.tensor(keys)
                    scores = scores + bias[head, distances.clamp(max=bias.shape[1] - 1)].double()
                weights = scores.exp()
                norm = weights.sum() + (math.exp(sinks[head]) if sinks is not None else 0.0)
                outs.append(weights / norm @ value)
            token += 1
    return torch.stack(outs).view(case.query.shape[0], case.query.shape[1], -1)


@pytest.mark.parametrize("options", OPTIONS, ids=_name)
def test_each_option(backend, make_attention_case, relative_error, options):
    case = make_attention_case(MIXED, head_size=32)
    assert relative_error(case.run(**options), _by_hand(case, options)) < 1e-5


@pytest.mark.parametrize(("head_size", "value_size"), [(48, 32), (16, 64), (192, 128)])
@pytest.mark.parametrize("options", [{}, {"sinks": SINKS, "sliding_window": 30}], ids=_name)
def test_values_of_another_size(backend, make_attention_case, relative_error, head_size, value_size, options):
    case = make_attention_case([(1, 40), (7, 33)], head_size=head_size, value_size=value_size)
    out = case.run(**options)
    assert out.shape[-1] == value_size
    assert relative_error(out, _by_hand(case, options)) < 1e-5


def test_values_of_a_size_that_is_no_multiple_of_16(make_attention_case, relative_error):
    case = make_attention_case([(1, 40), (7, 33)], head_size=20, value_size=12)
    assert relative_error(case.run(), _by_hand(case, {})) < 1e-5


@pytest.mark.parametrize(
    "options", [{"sinks": SINKS[:3]}, {"sinks": SINKS[:3], "chunk": 2048}, {"causal": False}], ids=_name
)
def test_split_keys_in_cpp(make_attention_case, relative_error, options):
    case = make_attention_case([(1, 3000), (2, 1500)], num_heads=3, num_kv_heads=1, value_size=32)
    results, before = [], torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        for name in ("cpp", "torch"):
            with ops.use_backend("paged_attention", name):
                results.append(case.run(**options))
    finally:
        torch.set_num_threads(before)
    assert relative_error(*results) < 1e-5


@pytest.mark.parametrize(
    "options", [{}, {"sliding_window": 30, "soft_cap": 2.0}, {"sinks": SINKS}], ids=_name
)
@pytest.mark.parametrize("width", [1, 12, 200])
def test_a_bias_by_distance(make_attention_case, relative_error, options, width):
    """By the reference, which is chosen although others would win without the bias."""
    case = make_attention_case(MIXED, head_size=32)
    options = options | {"distance_bias": torch.randn(4, width)}
    assert relative_error(case.run(**options), _by_hand(case, options)) < 1e-5
    with ops.use_backend("paged_attention", "cpp"), pytest.raises(BackendUnavailable, match="distance_bias"):
        case.run(**options)


def test_cross_attention_may_have_more_queries_than_keys(backend, make_attention_case, relative_error):
    case = make_attention_case([(1, 3), (9, 4), (2, 50)], head_size=32)
    assert relative_error(case.run(causal=False), _by_hand(case, {"causal": False})) < 1e-5


@pytest.mark.parametrize("limit", [{"sliding_window": 20}, {"chunk": 32}], ids=_name)
def test_entries_before_the_first_key_are_not_read(backend, make_attention_case, relative_error, limit):
    """A manager gave these blocks back: their entries name blocks of others, or none."""
    case = make_attention_case([(1, 120), (1, 30), (1, 10), (4, 117), (24, 50)])
    expected = case.run(**limit)
    for row, (num_queries, context) in enumerate(case.rows):
        position = context - num_queries
        first = max(0, position - 19) if "sliding_window" in limit else position // 32 * 32
        given_back = case.metadata.block_tables[row, : first // 16].clone()
        case.key_cache[given_back.long()] = float("nan")
        case.value_cache[given_back.long()] = float("nan")
        case.metadata.block_tables[row, : first // 16] = -5
    assert relative_error(case.run(**limit), expected) < 1e-6


def test_slots_past_the_context_may_hold_anything(backend, make_attention_case, relative_error):
    case = make_attention_case([(1, 20), (1, 3), (5, 37)])
    expected = case.run()
    for row, (_, context) in enumerate(case.rows):
        block = int(case.metadata.block_tables[row, context // 16])
        case.key_cache[block, context % 16 :] = float("nan")
        case.value_cache[block, context % 16 :] = float("nan")
    assert relative_error(case.run(), expected) < 1e-6


def test_batches_and_blocks_of_the_reference(make_attention_case, relative_error, monkeypatch):
    case = make_attention_case([(1, 5), (1, 90), (1, 30), (1, 31), (1, 64), (50, 70)])
    options = {"sinks": SINKS, "sliding_window": 40}
    with ops.use_backend("paged_attention", "torch"):
        whole = case.run(**options)
        monkeypatch.setattr(reference, "_MAX_ELEMENTS", 8000)
        assert relative_error(case.run(**options), whole) < 1e-6


def test_a_call_goes_to_a_back_end_that_has_its_features(make_attention_case):
    sizes = {"head_size": 32, "value_size": 24}
    with ops.use_backend("paged_attention", "cpp"):
        make_attention_case([(1, 20)], **(sizes | {"value_size": 16})).run()
        with pytest.raises(BackendUnavailable, match=r"cpp does not take .* odd_size, value_size"):
            make_attention_case([(1, 20)], **sizes).run()
    make_attention_case([(1, 20)], **sizes).run()


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("chunk", {"chunk": 0}),
        ("sinks", {"sinks": torch.zeros(3)}),
        ("sinks", {"sinks": torch.zeros(4, dtype=torch.int32)}),
        ("alibi_slopes", {"alibi_slopes": torch.zeros(4, dtype=torch.bfloat16)}),
        ("causal", {"causal": False, "sliding_window": 4}),
        ("causal", {"causal": False, "chunk": 4}),
        ("causal", {"causal": False, "alibi_slopes": SLOPES}),
        ("causal", {"causal": False, "distance_bias": torch.zeros(4, 3)}),
        ("distance_bias", {"distance_bias": torch.zeros(3, 3)}),
        ("distance_bias", {"distance_bias": torch.zeros(4)}),
        ("distance_bias", {"distance_bias": torch.zeros(4, 3, dtype=torch.bfloat16)}),
    ],
)
def test_a_bad_option_is_named(make_attention_case, field, options):
    case = make_attention_case([(1, 20)])
    with pytest.raises(InvalidArgument) as caught:
        case.run(**options)
    assert caught.value.field == field
