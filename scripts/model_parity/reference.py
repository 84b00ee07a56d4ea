"""Owns what transformers says: logits, greedy tokens, hidden states; knows nothing of llm_models."""

from dataclasses import dataclass

import torch
import transformers
from torch import Tensor

from .tiny_models import tokens

CLEAR_MARGIN = 3e-3
"""Share of the largest logit by which the best token must lead, so that rounding cannot decide."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """A greedy run.

    Attributes:
        prompt: What it started from.
        produced: The tokens that came out.
        margin: The least lead of a chosen token over the next best, as a share of the largest logit.
    """

    prompt: list[int]
    produced: list[int]
    margin: float


@torch.no_grad()
def logits(model: transformers.PreTrainedModel, ids: list[int]) -> Tensor:
    """Logits [T, V] of one sequence, computed from scratch."""
    return _run(model, ids).logits[0].float()


@torch.no_grad()
def hidden_states(model: transformers.PreTrainedModel, ids: list[int]) -> list[Tensor]:
    """The hidden states [T, E] that transformers reports: embeddings, then after each layer."""
    states = _run(model, ids, output_hidden_states=True).hidden_states
    return [] if states is None else [state[0] for state in states]


def greedy(model: transformers.PreTrainedModel, prompt: list[int], count: int) -> Greedy:
    """Continues a prompt by the best token, each step computed from scratch; a near-tie ends it early."""
    ids, margin = list(prompt), float("inf")
    while len(ids) < len(prompt) + count and margin > CLEAR_MARGIN:
        scores = logits(model, ids)[-1]
        best, second = scores.topk(2).values.tolist()
        margin = min(margin, (best - second) / max(float(scores.abs().max()), 1e-9))
        ids.append(int(scores.argmax()))
    return Greedy(list(prompt), ids[len(prompt) :], margin)


def clear_greedy(model: transformers.PreTrainedModel, length: int, count: int, tries: int = 16) -> Greedy:
    """The greedy run of the first random prompt without a near-tie; if all have one, the longest up to it."""
    runs = []
    for seed in range(tries):
        runs.append(greedy(model, tokens(length, 100 + seed), count))
        if runs[-1].margin > CLEAR_MARGIN:
            return runs[-1]
    longest = max(runs, key=lambda run: len(run.produced))
    return Greedy(longest.prompt, longest.produced[:-1], longest.margin)


def dependence_on_later_tokens(model: transformers.PreTrainedModel) -> float:
    """How far logits change when tokens are appended; more than rounding: no causal language model."""
    ids = tokens(41, 1)
    whole = logits(model, ids)
    return max(relative_error(whole[:count], logits(model, ids[:count])) for count in (11, 25, 40))


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """Largest difference as a share of the largest value; infinite where shapes differ or it is no number."""
    if ours.shape != expected.shape or not bool(torch.isfinite(ours).all()):
        return float("inf")
    return float((ours - expected).abs().max() / expected.abs().max())


def _run(
    model: transformers.PreTrainedModel, ids: list[int], **options: bool
) -> transformers.utils.ModelOutput:
    if hasattr(model.config.get_text_config(decoder=True), "use_cache") or "use_cache" in vars(model.config):
        options["use_cache"] = False
    return model(input_ids=torch.tensor([ids]), **options)
