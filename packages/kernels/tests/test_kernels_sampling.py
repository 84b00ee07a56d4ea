"""Sampling against naive per-row references and against the distribution it claims to draw from."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from llm_kernels.ops import Penalties, SamplingBatch, sample, token_ranks
from llm_kernels.ops.sampling import DRAW_TOKENS, FILTER_THRESHOLDS, TOKEN_RANKS
from llm_kernels.reference import sampling as reference

VOCAB = 97


def make_batch(
    num_rows, *, temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, seeds=None, positions=None, **other
):
    def column(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(num_rows).contiguous()

    temperature = column(temperature, torch.float32)
    top_p, min_p, top_k = (
        column(top_p, torch.float32),
        column(min_p, torch.float32),
        column(top_k, torch.int32),
    )
    return SamplingBatch(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        seeds=torch.arange(num_rows) if seeds is None else torch.as_tensor(seeds, dtype=torch.int64),
        positions=torch.zeros(num_rows, dtype=torch.int64)
        if positions is None
        else torch.as_tensor(positions, dtype=torch.int64),
        all_greedy=bool((temperature == 0).all()),
        max_top_k=int(top_k.max()),
        any_top_p=bool((top_p < 1).any()),
        any_min_p=bool((min_p > 0).any()),
        every_top_p_has_top_k=bool(((top_p >= 1) | (top_k > 0)).all()),
        **other,
    )


def random_logits(num_rows, seed=0, scale=3.0):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def naive_keep(row, temperature, top_k, top_p, min_p):
    """The set of tokens one row keeps, in float64 and plain loops."""
    values = [float(v) / temperature for v in row]
    order = sorted(range(len(values)), key=lambda t: (-values[t], t))
    kept = order[:top_k] if top_k else order
    weight = {t: np.exp(values[t] - values[order[0]]) for t in kept}
    if top_p < 1:
        total, mass, nucleus = sum(weight.values()), 0.0, []
        for token in kept:
            if nucleus and mass >= top_p * total:
                break
            nucleus.append(token)
            mass += weight[token]
        kept = nucleus
    return {t for t in kept if weight[t] >= min_p}


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 0.7, 0),
        (5, 1, 0),
        (1, 1, 0),
        (VOCAB + 9, 1, 0),
        (0, 1, 0.1),
        (12, 0.8, 0),
        (20, 0.95, 0.05),
        (0, 0.001, 0),
    ],
)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_filters_keep_what_the_naive_reference_keeps(top_k, top_p, min_p, temperature):
    logits = random_logits(16)
    params = make_batch(16, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    kept = torch.isfinite(reference.process_logits(logits, params))
    for row in range(16):
        expected = naive_keep(logits[row], temperature, top_k, top_p, min_p)
        assert set(kept[row].nonzero().flatten().tolist()) == expected


def test_mixed_rows_are_filtered_each_by_its_own_parameters():
    generator = np.random.default_rng(0)
    logits = random_logits(64)
    top_k = generator.choice([0, 0, 3, 40], 64)
    top_p = generator.choice([1.0, 1.0, 0.5, 0.9], 64)
    min_p = generator.choice([0.0, 0.0, 0.2], 64)
    temperature = generator.choice([0.5, 1.0], 64)
    params = make_batch(64, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    rows = torch.as_tensor(np.flatnonzero((top_k > 0) | (top_p < 1) | (min_p > 0)))
    confined = make_batch(
        64, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, filtered_rows=rows
    )
    for batch in (params, confined):
        kept = torch.isfinite(reference.process_logits(logits, batch))
        for row in range(64):
            expected = naive_keep(logits[row], temperature[row], top_k[row], top_p[row], min_p[row])
            assert set(kept[row].nonzero().flatten().tolist()) == expected
    assert torch.equal(sample(logits, params).tokens, sample(logits, confined).tokens)


def test_equal_logits_at_a_border_are_kept_together():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    kept = torch.isfinite(reference.process_logits(logits, make_batch(1, top_k=2)))
    assert kept.tolist() == [[False, True, True, True, False]]


def chi_square(tokens, probabilities):
    """Pearson's statistic over the bins with at least five expected draws, and a bound at five sigma."""
    count = torch.bincount(tokens, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    big = expected >= 5
    statistic = ((count - expected)[big] ** 2 / expected[big]).sum().item()
    freedom = int(big.sum()) - 1
    assert count[probabilities == 0].sum() == 0
    return statistic, freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("vary", ["seeds", "positions"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_draws_follow_the_softmax(vary, temperature):
    draws = 20_000
    row = random_logits(1, seed=3, scale=1.5)
    counter = torch.arange(draws)
    fixed = torch.full((draws,), 7)
    seeds, positions = (counter, fixed) if vary == "seeds" else (fixed, counter)
    params = make_batch(draws, temperature=temperature, seeds=seeds, positions=positions)
    tokens = sample(row.expand(draws, -1), params).tokens
    statistic, bound = chi_square(tokens, (row[0] / temperature).softmax(-1))
    assert statistic < bound


def test_draws_follow_the_filtered_softmax():
    draws = 20_000
    row = random_logits(1, seed=4, scale=1.5)
    params = make_batch(draws, top_k=10, top_p=0.9)
    tokens = sample(row.expand(draws, -1), params).tokens
    keep = naive_keep(row[0], 1.0, 10, 0.9, 0)
    probabilities = row[0].softmax(-1) * torch.tensor([t in keep for t in range(VOCAB)])
    statistic, bound = chi_square(tokens, probabilities / probabilities.sum())
    assert statistic < bound


def test_streams_of_neighbouring_seeds_and_positions_are_not_correlated():
    keys = [reference.row_keys(torch.arange(64), torch.full((64,), p)) for p in range(4)]
    noise = torch.cat([reference.hash_uniform(a, b, 4096) for a, b in keys]).double()
    correlation = torch.corrcoef(noise) - torch.eye(256)
    assert correlation.abs().max() < 6 / 4096**0.5
    assert (noise.mean(1) - 0.5).abs().max() < 6 * (1 / 12 / 4096) ** 0.5


def test_a_row_draws_the_same_whatever_its_neighbours():
    logits = random_logits(32, seed=5)
    generator = np.random.default_rng(1)
    seeds = generator.integers(-(2**63), 2**63 - 1, 32)
    settings = {"temperature": generator.uniform(0.3, 2, 32), "top_p": generator.choice([1.0, 0.8], 32)}
    whole = sample(logits, make_batch(32, seeds=seeds, positions=np.arange(32), **settings)).tokens
    order = generator.permutation(32)
    shuffled = make_batch(
        32, seeds=seeds[order], positions=np.arange(32)[order], **{k: v[order] for k, v in settings.items()}
    )
    assert torch.equal(sample(logits[order], shuffled).tokens, whole[order])
    for row in range(32):
        alone = make_batch(
            1, seeds=seeds[row : row + 1], positions=[row], **{k: v[row] for k, v in settings.items()}
        )
        assert sample(logits[row : row + 1], alone).tokens.item() == whole[row]


def test_all_seed_bits_count():
    logits = torch.zeros(64, VOCAB)
    seeds = torch.tensor([1 << b for b in range(63)] + [-(1 << 63)])
    tokens = sample(logits, make_batch(64, seeds=seeds)).tokens
    assert len(set(tokens.tolist())) > 30


def test_hash_bits_equal_plain_integer_arithmetic():
    """The published recipe in Python integers: bits are the same on every device and in later versions."""

    def mix64(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    seed, position = -123456789012345, 77
    mixed = mix64((mix64((seed + 0x9E3779B97F4A7C15) % 2**64) + position) % 2**64)
    a, b = mixed % 2**32, mixed >> 32
    expected = []
    for token in range(50):
        x = (token * 0x9E3779B9 + a) % 2**32
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
        x ^= b
        x = ((x ^ (x >> 15)) * 0xD35A2D97) % 2**32
        x = ((x ^ (x >> 13)) * 0x735A2D97) % 2**32
        expected.append(x ^ (x >> 16))
    keys = reference.row_keys(torch.tensor([seed]), torch.tensor([position]))
    bits = reference.hash_bits(*keys, 50)[0]
    assert [int(x) % 2**32 for x in bits] == expected


def test_greedy_takes_the_lowest_id_at_ties_and_ignores_filters():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert sample(logits, make_batch(2, temperature=0.0)).tokens.tolist() == [1, 0]
    mixed = make_batch(2, temperature=[0.0, 1.0], top_k=1, top_p=0.1)
    assert sample(logits, mixed).tokens[0].item() == 1


def test_extreme_temperatures_are_safe():
    logits = random_logits(8, scale=10.0)
    cold = sample(logits, make_batch(8, temperature=1e-6))
    assert torch.equal(cold.tokens, logits.argmax(-1))
    assert torch.equal(sample(logits, make_batch(8, temperature=1e-40)).tokens, logits.argmax(-1))
    draws = 20_000
    hot = sample(random_logits(1).expand(draws, -1), make_batch(draws, temperature=1e6))
    statistic, bound = chi_square(hot.tokens, torch.full((VOCAB,), 1 / VOCAB))
    assert statistic < bound
    assert not cold.faults.any()


def test_equal_largest_logits_share_evenly_at_a_tiny_temperature():
    logits = torch.full((2000, VOCAB), -5.0)
    logits[:, [3, 50]] = 21.0
    tokens = sample(logits, make_batch(2000, temperature=1e-6)).tokens
    assert set(tokens.tolist()) == {3, 50}
    assert 850 < (tokens == 3).sum() < 1150


def test_tokens_at_minus_infinity_are_never_drawn():
    logits = torch.full((500, VOCAB), -torch.inf)
    logits[:, 11] = -3e38
    output = sample(logits, make_batch(500))
    assert (output.tokens == 11).all()
    assert not output.faults.any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}])
def test_broken_rows_are_reported_and_leave_the_others_alone(temperature, filters):
    logits = random_logits(4)
    clean = sample(logits, make_batch(4, temperature=temperature, **filters))
    logits[1, 7] = torch.nan
    logits[2] = -torch.inf
    output = sample(logits, make_batch(4, temperature=temperature, **filters))
    assert output.faults.tolist() == [False, True, True, False]
    assert output.tokens[[0, 3]].tolist() == clean.tokens[[0, 3]].tolist()
    assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()
    logits[3, 0] = torch.inf
    assert sample(logits, make_batch(4, temperature=temperature, **filters)).faults[3]


def test_penalties_equal_the_naive_formula():
    logits = random_logits(6)
    generator = np.random.default_rng(2)
    counts = torch.as_tensor(generator.poisson(0.3, (3, VOCAB)), dtype=torch.int32)
    prompt = torch.as_tensor(generator.random((3, VOCAB)) < 0.2)
    rows = torch.tensor([0, 3, 5])
    presence, frequency, repetition = (
        torch.tensor([0.5, 0.0, -1.0]),
        torch.tensor([0.0, 0.7, 0.1]),
        torch.tensor([1.0, 1.3, 0.8]),
    )
    penalties = Penalties(
        presence=presence,
        frequency=frequency,
        repetition=repetition,
        output_counts=counts,
        prompt_mask=prompt,
        rows=rows,
    )
    expected = logits.clone()
    for i, row in enumerate(rows.tolist()):
        for token in range(VOCAB):
            value = float(logits[row, token])
            count = int(counts[i, token])
            if count or prompt[i, token]:
                value = value / float(repetition[i]) if value > 0 else value * float(repetition[i])
            value -= float(presence[i]) * (count > 0) + float(frequency[i]) * count
            expected[row, token] = value
    batch = make_batch(6, temperature=0.0, penalties=penalties)
    torch.testing.assert_close(reference.process_logits(logits, batch), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}], ids=str)
def test_few_penalised_rows_draw_what_they_draw_among_many(filters):
    logits = random_logits(9).bfloat16()
    logits[4, 3] = torch.nan
    rows = torch.tensor([1, 4, 8])
    generator = torch.Generator().manual_seed(1)
    given = {
        "presence": torch.tensor([2.0, 0.0, 5.0]),
        "frequency": torch.tensor([0.0, 3.0, 1.0]),
        "repetition": torch.tensor([1.5, 1.0, 2.0]),
        "output_counts": torch.randint(0, 2, (3, VOCAB), generator=generator, dtype=torch.int32),
        "prompt_mask": torch.rand(3, VOCAB, generator=generator) < 0.3,
    }
    few = sample(logits, make_batch(9, temperature=2.0, penalties=Penalties(rows=rows, **given), **filters))
    # A bias of nothing keeps the rows together.
    bias = (torch.tensor([0]), torch.tensor([0]), torch.zeros(1))
    penalties = Penalties(rows=rows, **given)
    together = sample(logits, make_batch(9, temperature=2.0, penalties=penalties, logit_bias=bias, **filters))
    assert torch.equal(few.tokens, together.tokens)
    assert torch.equal(few.faults, together.faults)
    assert few.faults.nonzero().flatten().tolist() == [4]
    plain = sample(logits, make_batch(9, temperature=2.0, **filters))
    assert not torch.equal(few.tokens, plain.tokens)


def test_bias_and_bans_change_only_their_tokens():
    logits = random_logits(3)
    before = logits.clone()
    bias = (torch.tensor([0, 2]), torch.tensor([4, 9]), torch.tensor([100.0, -100.0]))
    banned = (torch.tensor([1, 1]), logits[1].topk(2).indices)
    output = sample(logits, make_batch(3, temperature=0.0, logit_bias=bias, banned=banned))
    assert output.tokens[0] == 4
    assert output.tokens[1] == logits[1].topk(3).indices[2]
    assert torch.equal(logits, before)


def test_logprobs_are_of_the_raw_distribution():
    logits = random_logits(5)
    bias = (torch.arange(5), torch.arange(5), torch.full((5,), 1000.0))
    output = sample(logits, make_batch(5, temperature=0.3, top_k=3, logit_bias=bias, num_logprobs=4))
    expected = logits.double().log_softmax(-1)
    assert output.tokens.tolist() == list(range(5))
    for row in range(5):
        order = sorted(range(VOCAB), key=lambda t: -expected[row, t])
        assert output.logprobs[row].item() == pytest.approx(expected[row, row].item(), abs=1e-5)
        assert output.ranks[row].item() == order.index(row) + 1
        assert output.top_ids[row].tolist() == order[:4]
        assert output.top_logprobs[row].tolist() == pytest.approx(
            [expected[row, t].item() for t in order[:4]], abs=1e-5
        )


def test_no_top_logprobs_gives_empty_columns():
    places = token_ranks(random_logits(2), torch.tensor([0, 1]), 0)
    assert places.top_ids.shape == (2, 0)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="logits"):
        sample(torch.zeros(2, 3, dtype=torch.float64), make_batch(2))
    with pytest.raises(ValueError, match="temperature"):
        sample(torch.zeros(3, 5), make_batch(2))


def test_no_rows_give_no_tokens():
    batch = SamplingBatch(
        temperature=torch.zeros(0),
        top_p=torch.zeros(0),
        min_p=torch.zeros(0),
        top_k=torch.zeros(0, dtype=torch.int32),
        seeds=torch.zeros(0, dtype=torch.int64),
        positions=torch.zeros(0, dtype=torch.int64),
        all_greedy=True,
    )
    assert sample(torch.zeros(0, VOCAB), batch).tokens.shape == (0,)


def random_filters(num_rows, vocab, seed, **other):
    generator = np.random.default_rng(seed)
    return make_batch(
        num_rows,
        temperature=generator.choice([0.5, 1.0, 1e-5, 3.0, 0.0], num_rows),
        top_k=generator.choice([0, 0, 1, 3, 40, 300, vocab + 4], num_rows),
        top_p=generator.choice([1.0, 0.5, 0.9, 0.99, 0.001], num_rows),
        min_p=generator.choice([0.0, 0.0, 0.05, 1.0], num_rows),
        **other,
    )


def rows_that_keep_others(logits, params, found, slack=0):
    """Random rows that keep other tokens by `found` than by the reference, over `slack` of them."""
    expected = reference.filter_thresholds(logits, params)
    logits = logits.float()
    unlike = (logits >= expected[:, None]) != (logits >= found[:, None])
    return ((unlike.sum(dim=1) > slack) & (params.temperature > 0)).nonzero().flatten().tolist()


_INTERPRETED_FILTERS = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from test_kernels_sampling import random_filters, rows_that_keep_others
from llm_kernels.triton.sampling_filters import filter_thresholds
generator = torch.Generator().manual_seed(0)
half, single = torch.float16, torch.float32
cases = (97, single, 3), (2048, half, 1), (5000, single, 2), (9000, single, 0.1)
for seed, (vocab, dtype, scale) in enumerate(cases):
    logits = (torch.randn(12, vocab + 3, generator=generator) * scale).to(dtype)[:, :vocab]
    logits[3, 5:] = -torch.inf
    logits[4] = 1.0
    for rows in (None, torch.tensor([0, 2, 3, 4, 5, 9])):
        params = random_filters(12, vocab, seed, filtered_rows=rows)
        found = filter_thresholds(logits, params)
        assert rows_that_keep_others(logits, params, found) == [], (vocab, dtype, rows)
    logits[6, 7] = torch.nan
    logits[7] = -torch.inf
    assert filter_thresholds(logits, params)[[6, 7]].tolist() == [-torch.inf] * 2
print("equal")
"""


def test_the_triton_filters_keep_what_the_reference_keeps_in_the_interpreter():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED_FILTERS, str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


_INTERPRETED_RANKS = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from test_kernels_sampling import check_ranks
from llm_kernels.triton.sampling_ranks import token_ranks
generator = torch.Generator().manual_seed(0)
for vocab, dtype in ((97, torch.float32), (3000, torch.float16), (5000, torch.float32)):
    logits = (torch.randn(6, vocab + 3, generator=generator) * 2).to(dtype)[:, :vocab]
    logits[3, 5:] = -torch.inf
    logits[4] = 1.0
    tokens = torch.randint(0, 5, (6,), generator=generator)
    for num_top in (0, 1, 10):
        check_ranks(logits, tokens, token_ranks(logits, tokens, num_top), num_top)
print("equal")
"""


def check_ranks(logits, tokens, found, num_top):
    logprobs, ranks, _, top_logprobs = reference.token_ranks(logits, tokens, num_top)
    torch.testing.assert_close(found[0], logprobs, atol=2e-5, rtol=1e-5)
    assert torch.equal(found[1], ranks)
    assert torch.equal(
        found[2], logits.float().sort(dim=-1, descending=True, stable=True).indices[:, :num_top]
    )
    torch.testing.assert_close(found[3], top_logprobs, atol=2e-5, rtol=1e-5)


def test_the_triton_ranks_equal_the_reference_in_the_interpreter():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED_RANKS, str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


_INTERPRETED = """
import torch
from llm_kernels.reference import sampling as reference
from llm_kernels.triton import sampling as fused
generator = torch.Generator().manual_seed(0)
for vocab, dtype in ((97, torch.float32), (2048, torch.float16), (5000, torch.float32)):
    logits = (torch.randn(10, vocab + 3, generator=generator) * 4).to(dtype)[:, :vocab]
    logits[1, 5:] = -torch.inf
    logits[2] = 1.0
    logits[6, [3, vocab - 1]] = 70.0
    logits[7, vocab // 2] = torch.nan
    logits[8] = -torch.inf
    logits[9, 4] = torch.inf
    broken = torch.tensor([7, 8, 9])
    temperature = torch.tensor([1.0, 0.5, 2.0, 1e-6, 1e6, 0.0, 0.0, 1.0, 0.0, 1.0])
    seeds = torch.randint(-2**62, 2**62, (10,), generator=generator)
    for position in (0, 2**31):
        for greedy in (False, True):
            heat = temperature * (not greedy)
            arguments = (logits, heat, seeds, torch.full((10,), position), None, greedy)
            expected, faults = reference.draw_tokens(*arguments)
            got, got_faults = fused.draw_tokens(*arguments)
            assert torch.equal(expected[:7], got[:7]), (vocab, position, expected, got)
            assert got.dtype == torch.int64 and ((got >= 0) & (got < vocab)).all(), got
            assert torch.equal(faults, got_faults) and faults.nonzero()[:, 0].equal(broken), got_faults
print("equal")
"""


def test_the_triton_draw_equals_the_reference_in_the_interpreter():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"num_logprobs": 2}, {"temperature": 0.0}], ids=str)
def test_half_logits_are_sampled_like_their_float32_values(dtype, params):
    logits = random_logits(20, seed=4).to(dtype)
    batch = make_batch(20, **params)
    half, whole = sample(logits, batch), sample(logits.float(), batch)
    assert torch.equal(half.tokens, whole.tokens)
    assert torch.equal(half.faults, whole.faults)
    if half.logprobs is not None:
        assert torch.equal(half.logprobs, whole.logprobs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_fused_draw_equals_the_reference_on_a_gpu(dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    logits = (torch.randn(64, 152_000, generator=generator, device="cuda") * 3).to(dtype)[:, :151_936]
    logits[3, 70_000] = torch.nan
    logits[4] = -torch.inf
    logits[5, 9] = torch.inf
    logits[6, [11, 100_000]] = 90.0
    temperature = torch.full((64,), 0.7, device="cuda")
    temperature[6:20] = 0
    seeds = torch.arange(64, device="cuda") * 7919 - 10**12
    positions = torch.arange(64, device="cuda") * 3
    for greedy in (False, True):
        arguments = (logits, temperature * (not greedy), seeds, positions, None, greedy)
        expected, faults = reference.draw_tokens(*arguments)
        got, got_faults = DRAW_TOKENS.pick(logits.device, dtype, 151_936)(*arguments)
        assert torch.equal(faults, got_faults)
        assert got_faults.nonzero()[:, 0].tolist() == [3, 4, 5]
        assert got[6] == 11
        same = (expected == got)[~faults]
        assert same.float().mean() > 0.9  # logarithms differ in the last bit, so a near-tie may flip
        assert same[temperature[~faults] == 0].all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_what_the_cpu_draws():
    logits = random_logits(256, seed=9)
    seeds = torch.arange(256) * 7919
    params = make_batch(256, temperature=0.8, top_p=0.95, seeds=seeds)
    on_device = make_batch(256, temperature=0.8, top_p=0.95, seeds=seeds)
    moved = SamplingBatch(
        **{
            name: (value.cuda() if isinstance(value, torch.Tensor) else value)
            for name in SamplingBatch.__dataclass_fields__
            for value in [getattr(on_device, name)]
        }
    )
    same = sample(logits, params).tokens == sample(logits.cuda(), moved).tokens.cpu()
    assert same.float().mean() > 0.99  # logarithms may differ in the last bit, so a near-tie may flip


def on_gpu(params):
    values = {name: getattr(params, name) for name in SamplingBatch.__dataclass_fields__}
    return SamplingBatch(**{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in values.items()})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_triton_filters_keep_what_the_reference_keeps_on_a_gpu(dtype, scale):
    assert FILTER_THRESHOLDS.choose(torch.device("cuda"), dtype, 151_936).name == "triton"
    generator = torch.Generator("cuda").manual_seed(0)
    logits = (torch.randn(48, 152_000, generator=generator, device="cuda") * scale).to(dtype)[:, :151_936]
    logits[3, 5:] = -torch.inf
    logits[4] = 1.0
    find = FILTER_THRESHOLDS.pick(logits.device, dtype, 151_936)
    for rows in (None, torch.arange(0, 48, 3)):
        params = on_gpu(random_filters(48, 151_936, 1, filtered_rows=rows))
        found = find(logits, params)
        # Masses are rounded otherwise than the reference's cumulative sums: a border may move by some tokens.
        slack = 20 if dtype == torch.float32 else 0
        assert len(rows_that_keep_others(logits, params, found, slack)) <= 1
        assert torch.equal(found, find(logits, params))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_top", [0, 1, 20, 700])
def test_the_triton_ranks_equal_the_reference_on_a_gpu(dtype, num_top):
    generator = torch.Generator("cuda").manual_seed(0)
    logits = (torch.randn(20, 152_000, generator=generator, device="cuda") * 3).to(dtype)[:, :151_936]
    logits[3, 5:] = -torch.inf
    logits[4] = 1.0
    tokens = torch.randint(0, 151_936, (20,), generator=generator, device="cuda")
    tokens[3] = 2
    rank = TOKEN_RANKS.pick(logits.device, dtype, 151_936)
    check_ranks(logits, tokens, rank(logits, tokens, num_top), num_top)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_row_draws_the_same_alone_and_in_a_batch_on_a_gpu():
    generator = torch.Generator("cuda").manual_seed(0)
    logits = (torch.randn(64, 151_936, generator=generator, device="cuda") * 2).bfloat16()
    settings = {
        "temperature": np.resize([0.6, 1.0, 0.0, 1.5], 64),
        "top_p": np.resize([1.0, 0.95, 0.8], 64),
        "top_k": np.resize([0, 0, 50, 0, 2000], 64),
    }
    seeds = np.arange(64) * 7919
    whole = sample(logits, on_gpu(make_batch(64, seeds=seeds, **settings))).tokens
    for row in range(64):
        alone = make_batch(1, seeds=seeds[row : row + 1], **{k: v[row] for k, v in settings.items()})
        assert sample(logits[row : row + 1], on_gpu(alone)).tokens.item() == whole[row]
    plain = make_batch(64, seeds=seeds, temperature=0.9)
    everything = make_batch(64, seeds=seeds, temperature=0.9, top_k=10**6, top_p=0.99999994)
    assert torch.equal(sample(logits, on_gpu(plain)).tokens, sample(logits, on_gpu(everything)).tokens)
