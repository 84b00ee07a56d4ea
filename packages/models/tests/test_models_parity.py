"""Every architecture against transformers on tiny random checkpoints in float32: the same logits."""

import pytest
import torch
from llm_models import load_model, resolve

ARCHITECTURES = [
    "llama", "llama-mha-tied", "llama-biases", "llama-llama3-rope", "llama-yarn-rope", "llama-linear-rope",
    "llama-wide-heads-gelu", "mistral-window", "mistral-no-window", "qwen2", "qwen2-some-layers-windowed",
    "qwen3", "qwen3-tied",
]  # fmt: skip
TOLERANCE = 1e-4


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(4, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_same(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.shape == reference.shape
    difference = (ours - reference).abs().max() / reference.abs().max()
    assert difference <= TOLERANCE, f"relative difference {difference:.2e}"


@torch.no_grad()
def reference_logits(model, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request, make_reference, tmp_path_factory):
    """The transformers model and ours, loaded from what transformers saved."""
    reference = make_reference(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    reference.save_pretrained(folder)
    return reference, load_model(resolve(str(folder)), dtype=torch.float32, device="cpu")


def test_all_cases_are_run(cases):
    assert set(cases) == set(ARCHITECTURES)


def test_one_pass(pair, paged_run):
    reference, ours = pair
    ids = tokens(41, seed=1)
    assert_same(paged_run(ours).step({"a": ids})["a"], reference_logits(reference, ids))


def test_chunked_with_single_tokens_between(pair, paged_run):
    reference, ours = pair
    ids, run, parts, start = tokens(41, seed=2), paged_run(ours, seed=3), [], 0
    for size in (7, 1, 1, 16, 2, 1, 13):
        parts.append(run.step({"a": ids[start : start + size]})["a"])
        start += size
    assert start == len(ids)
    assert_same(torch.cat(parts), reference_logits(reference, ids))


def test_batched_with_others_at_random_blocks(pair, paged_run):
    reference, ours = pair
    texts = {name: tokens(length, seed=length) for name, length in (("a", 30), ("b", 5), ("c", 19), ("d", 1))}
    run, rest, got = paged_run(ours, block_size=8, seed=4), dict(texts), {name: [] for name in texts}
    for step in range(40):
        rows = {}
        for row, name in enumerate(texts):
            size = (1, 4, 9)[(step + row) % 3]
            if rest[name] and (step + row) % 4:  # Rows pause now and then.
                rows[name], rest[name] = rest[name][:size], rest[name][size:]
        if rows:
            for name, logits in run.step(rows).items():
                got[name].append(logits)
    assert not any(rest.values())
    for name, ids in texts.items():
        assert_same(torch.cat(got[name]), reference_logits(reference, ids))


def test_greedy_tokens(pair, paged_run):
    reference, ours = pair
    prompt = tokens(9, seed=5)
    ids = list(prompt)
    for _ in range(24):
        ids.append(int(reference_logits(reference, ids)[-1].argmax()))
    assert paged_run(ours).greedy("a", prompt, 24) == ids[len(prompt) :]


def test_logits_of_chosen_rows_only(pair, paged_run):
    _, ours = pair
    hidden = torch.randn(5, ours.spec.hidden_size)
    torch.testing.assert_close(ours.logits(hidden)[[1, 3]], ours.logits(hidden[[1, 3]]))


def test_one_pair_of_caches_a_layer(pair, paged_run):
    _, ours = pair
    run = paged_run(ours)
    run.caches = run.caches[:-1]
    with pytest.raises(ValueError, match="for 3 caches"):
        run.step({"a": [5, 6]})
