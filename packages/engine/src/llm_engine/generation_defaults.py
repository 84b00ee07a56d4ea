"""Owns the sampling defaults that a model's author states; knows nothing of requests or of the core."""

import logging
from collections.abc import Mapping
from typing import Any

from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import SamplingParams

_LOG = logging.getLogger(__name__)

# Keys of generation_config.json that mean the same here.
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float]:
    """What `generation_config.json` states of `SamplingParams`, by field.

    A value that could not be sampled with is left out with a warning: it concerns no request that states its
    own.
    """
    defaults: dict[str, float] = {}
    for name in _FIELDS:
        value = generation_config.get(name)
        if value is None:
            continue
        try:
            SamplingParams(**{name: value})
        except InvalidRequest as error:
            _LOG.warning("generation_config: %s is not used as a default: %s", name, error)
        else:
            defaults[name] = value
    return defaults
