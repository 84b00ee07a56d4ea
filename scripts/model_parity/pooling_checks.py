"""Owns the parity checks of encoders and classifiers: our vectors and scores against transformers'."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from llm_models import load_pooling_model, resolve
from llm_models.pooling import PoolingModel
from torch import Tensor

from . import tiny_models
from .reference import relative_error
from .tiny_models import tokens


@dataclass(slots=True)
class PoolingPair:
    """A tiny encoder or classifier in transformers and here."""

    theirs: transformers.PreTrainedModel
    ours: PoolingModel


def one_text(pair: PoolingPair) -> float:
    """A text alone."""
    return _compare(pair, [tokens(41, 1)])


def several_texts(pair: PoolingPair) -> float:
    """Texts of different lengths in one pass."""
    return _compare(pair, [tokens(length, length) for length in (30, 5, 1, 19, 2)])


def token_types(pair: PoolingPair) -> float:
    """Pairs of texts, told apart by the types of their tokens."""
    texts = [tokens(length, length) for length in (23, 9)]
    return _compare(pair, texts, [[0] * 8 + [1] * (len(text) - 8) for text in texts])


def checks_of(pair: PoolingPair) -> dict[str, Callable[[PoolingPair], float]]:
    """The checks that make sense for the model."""
    found = {"one text": one_text, "several texts": several_texts}
    takes_types = "token_type_ids" in inspect.signature(pair.theirs.forward).parameters
    if takes_types and (getattr(pair.theirs.config, "type_vocab_size", 0) or 0) > 1:
        found["token types"] = token_types
    return found


def load_pooling_pair(case: str, folder: Path) -> PoolingPair:
    """Builds a case in transformers, saves it to an empty folder and loads it here.

    Raises:
        CannotBuild: Transformers cannot.
        ModelError: It is not served.
    """
    theirs = tiny_models.build(case)
    tiny_models.save(theirs, folder)
    return PoolingPair(theirs, load(folder))


def load(folder: Path) -> PoolingModel:
    """Our model.

    Raises:
        ModelError: It is not served.
    """
    return load_pooling_model(resolve(str(folder)), dtype=torch.float32, device="cpu")


def _compare(
    pair: PoolingPair, texts: Sequence[list[int]], types: Sequence[list[int]] | None = None
) -> float:
    ours = pair.ours.run(texts, types)
    expected = [
        _expected(pair, text, None if types is None else types[row]) for row, text in enumerate(texts)
    ]
    return max(relative_error(got, want) for got, want in zip(ours, expected, strict=True))


@torch.no_grad()
def _expected(pair: PoolingPair, ids: list[int], types: list[int] | None) -> Tensor:
    options = {} if types is None else {"token_type_ids": torch.tensor([types])}
    output = pair.theirs(input_ids=torch.tensor([ids]), **options)
    if "logits" in output:
        return output.logits[0].float()
    hidden_TE = output.last_hidden_state[0].float()
    match pair.ours.spec.pooling:
        case "cls":
            pooled = hidden_TE[0]
        case "last":
            pooled = hidden_TE[-1]
        case "mean":
            pooled = hidden_TE.mean(dim=0)
        case _:
            pooled = hidden_TE
    return torch.nn.functional.normalize(pooled, dim=-1) if pair.ours.spec.normalize else pooled
