"""Owns finding the layer where our model leaves the reference, by the residual stream after each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import reference, tiny_models
from .checks import load_ours
from .paged_run import PagedRun
from .reference import relative_error


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the streams are compared, and how far they are apart."""

    place: str
    error: float


def layer_differences(case: str, folder: Path) -> list[Difference]:
    """The relative error after each layer of a native model, over one pass, and that of the logits.

    Transformers norms the last of its hidden states, so ours is normed there too.

    Raises:
        ModelError: The model is not served.
    """
    theirs = tiny_models.build(case)
    tiny_models.save(theirs, folder)
    ours, _, _ = load_ours(folder)
    ids = tiny_models.tokens(41, 1)
    expected = reference.hidden_states(theirs, ids)
    streams = _record(ours)
    logits = PagedRun(ours).step({"a": ids})["a"]
    found = [
        Difference(f"after layer {index}", relative_error(stream, after))
        for index, (stream, after) in enumerate(zip(streams[:-1], expected[1:-1], strict=False))
    ]
    return [*found, Difference("logits", relative_error(logits, reference.logits(theirs, ids)))]


def _record(decoder: Any) -> list[Tensor]:  # noqa: ANN401 - it reaches below the decoder's interface
    streams: list[Tensor] = []
    decoder._layers = tuple(_Recorder(layer, streams) for layer in decoder._layers)
    return streams


class _Recorder:
    """A layer that notes the stream it leaves."""

    def __init__(self, layer: Any, streams: list[Tensor]) -> None:  # noqa: ANN401 - a running layer
        self._layer = layer
        self._streams = streams

    def run(self, stream: Any, step: Any) -> None:  # noqa: ANN401 - as above
        self._layer.run(stream, step)
        whole = stream.whole()
        self._streams.append(whole.clone() if isinstance(whole, Tensor) else torch.stack(list(whole)))
