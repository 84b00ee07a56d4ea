"""Owns how many positions a config of transformers allows; knows nothing about running a model."""

from typing import Any

UNBOUNDED = 1 << 20
"""For models whose config sets no limit."""
_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "context_length")


def max_positions(config: Any) -> int:
    """Positions lie below it.

    Ropes that change with the longest sequence of a batch (`dynamic`, `longrope`) are served up to the length
    the model was first trained for: beyond it one row would change another's keys.
    """
    text = config.get_text_config()
    limit = next((v for f in _FIELDS if isinstance(v := getattr(text, f, None), int) and v > 0), UNBOUNDED)
    for rope in _ropes(text):
        if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
            limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


def _ropes(config: Any) -> list[dict[str, Any]]:
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, dict):
            found += [value, *(inner for inner in value.values() if isinstance(inner, dict))]
    return found
