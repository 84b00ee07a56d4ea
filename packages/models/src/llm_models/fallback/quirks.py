"""Owns what inspection of transformers' classes does not show, found by comparing each with its plain run.

Only what is said before loading depends on it: loading compares for itself.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_DRAFT = "it is a draft that reads the keys and values of another model"
_INDEXED = "each token attends to keys that an index of its own chooses"
_RELATIVE = "its attention adds a bias that depends on the query and the distance"
_CONVOLUTION = "it carries the state of a short convolution"

NOT_ALONE: Mapping[str, str] = MappingProxyType(
    {"Gemma4AssistantForCausalLM": _DRAFT, "Gemma4UnifiedAssistantForCausalLM": _DRAFT}
)
"""Classes that need something besides one sequence of token ids, and what."""

NEEDS_RECOMPUTE: Mapping[str, str] = MappingProxyType(
    {
        "AXK2ForCausalLM": _INDEXED,
        "DeepseekV32ForCausalLM": _INDEXED,
        "Dots3NoteForCausalLM": _INDEXED,
        "GlmMoeDsaForCausalLM": _INDEXED,
        "HYV4ForCausalLM": _INDEXED,
        "DogeForCausalLM": "it masks attention in a way of its own",
        "GitForCausalLM": "its attention does not go through transformers' attention interface",
        "InklingForCausalLM": _RELATIVE,
        "Inkling2ForCausalLM": _RELATIVE,
        "Inkling2LoopForCausalLM": _RELATIVE,
        "Lfm2ForCausalLM": _CONVOLUTION,
        "Lfm2MoeForCausalLM": _CONVOLUTION,
        "Lfm3ForCausalLM": _CONVOLUTION,
        "Llama4ForCausalLM": "it counts positions by itself",
        "MusicgenForCausalLM": "it counts positions by itself",
        "MusicgenMelodyForCausalLM": "it counts positions by itself",
        "MiniMaxForCausalLM": "it carries the state of linear attention",
    }
)
"""Classes of the attention interface whose paged run is not right, and why."""


def several_streams(config: Any) -> str | None:
    """Why a config asks for more than one id a position, or None."""
    count = getattr(config, "num_codebooks", 1)
    if "musicgen" in str(getattr(config, "model_type", "")) and count != 1:
        return f"a position holds the codes of {count} codebooks, not one token"
    return None
