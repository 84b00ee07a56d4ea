"""Owns the parity checks of models with an encoder and a decoder; what the decoder caches is paged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
import transformers
from llm_models import EncoderDecoder, load_encoder_decoder, resolve
from torch import Tensor

from .checks import NearTie
from .paged_run import PagedRun
from .reference import CLEAR_MARGIN, relative_error
from .tiny_models import tokens

STEPS = 32
START = 5
"""What greedy runs start from; any token of the small vocabularies does."""


@dataclass(slots=True)
class EncoderDecoderPair:
    """A tiny model in transformers and here."""

    theirs: transformers.PreTrainedModel
    ours: EncoderDecoder

    def source(self, length: int) -> Tensor:
        """What the encoder reads: text of that length, or sound, which has the same length always."""
        if self.theirs.main_input_name == "input_ids":
            return torch.tensor(tokens(length, 70 + length))
        config = self.theirs.config
        generator = torch.Generator().manual_seed(length)
        return torch.randn(config.num_mel_bins, 2 * config.max_source_positions, generator=generator)

    @torch.no_grad()
    def expected(self, source: Tensor, ids: list[int]) -> Tensor:
        """Transformers' logits of the decoder's tokens, [T, V]."""
        inputs = {self.theirs.main_input_name: source[None], "decoder_input_ids": torch.tensor([ids])}
        return self.theirs(**inputs, use_cache=False).logits[0].float()


def one_pass(pair: EncoderDecoderPair) -> float:
    """All tokens of the decoder in one step."""
    return _in_parts(pair, (31,))


def chunked(pair: EncoderDecoderPair) -> float:
    """The decoder's tokens in parts, single ones among them."""
    return _in_parts(pair, (7, 1, 1, 9, 2, 1, 10))


def batched(pair: EncoderDecoderPair) -> float:
    """Sources and tokens of different lengths, encoded and decoded together."""
    sources = {name: pair.source(length) for name, length in (("a", 23), ("b", 4), ("c", 40))}
    texts = {name: tokens(length, length) for name, length in (("a", 12), ("b", 25), ("c", 18))}
    run = PagedRun(pair.ours, seed=4)
    run.open(sources)
    got: dict[str, list[Tensor]] = {name: [] for name in texts}
    rest = dict(texts)
    for step in range(40):
        rows = {}
        for row, name in enumerate(texts):
            size = (1, 4, 9)[(step + row) % 3]
            if rest[name] and (step + row) % 4:
                rows[name], rest[name] = rest[name][:size], rest[name][size:]
        for name, scores in (run.step(rows) if rows else {}).items():
            got[name].append(scores)
    return max(
        relative_error(torch.cat(got[name]), pair.expected(sources[name], ids)) for name, ids in texts.items()
    )


def preempted(pair: EncoderDecoderPair) -> float:
    """All blocks are taken away; the encoder runs again."""
    source, ids, run = pair.source(23), tokens(20, 11), PagedRun(pair.ours, seed=12)
    run.open({"a": source, "b": pair.source(9)})
    run.step({"a": ids[:11], "b": tokens(6, 13)})
    run.preempt("a")
    run.step({"b": [9, 8, 7]})
    run.open({"a": source})
    parts = [run.step({"a": ids[:12], "b": [5]})["a"], run.step({"a": ids[12:]})["a"]]
    return relative_error(torch.cat(parts), pair.expected(source, ids))


def greedy(pair: EncoderDecoderPair) -> float:
    """Greedy tokens; how many are wrong."""
    for length in range(10, 40):
        source, ids = pair.source(length), [START]
        margin = float("inf")
        while len(ids) <= STEPS and margin > CLEAR_MARGIN:
            scores = pair.expected(source, ids)[-1]
            best, second = scores.topk(2).values.tolist()
            margin = (best - second) / float(scores.abs().max())
            ids.append(int(scores.argmax()))
        if margin > CLEAR_MARGIN:
            run = PagedRun(pair.ours, seed=14)
            run.open({"a": source})
            produced = run.greedy("a", ids[:1], STEPS)
            return float(sum(ours != theirs for ours, theirs in zip(produced, ids[1:], strict=True)))
    raise NearTie("with every source")


CHECKS: Mapping[str, Callable[[EncoderDecoderPair], float]] = MappingProxyType(
    {"one pass": one_pass, "chunked": chunked, "batched": batched, "preempted": preempted, "greedy": greedy}
)


def load(folder: Path) -> EncoderDecoder:
    """Our model.

    Raises:
        ModelError: It is not served.
    """
    return load_encoder_decoder(resolve(str(folder)), dtype=torch.float32, device="cpu")


def _in_parts(pair: EncoderDecoderPair, sizes: tuple[int, ...]) -> float:
    source, ids, run = pair.source(23), tokens(31, 2), PagedRun(pair.ours, seed=3)
    run.open({"a": source})
    parts, start = [], 0
    for size in sizes:
        parts.append(run.step({"a": ids[start : start + size]})["a"])
        start += size
    return relative_error(torch.cat(parts), pair.expected(source, ids))
