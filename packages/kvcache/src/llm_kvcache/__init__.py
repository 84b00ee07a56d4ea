"""Paged KV-cache block pool and prefix cache for LLM inference, in Rust, without torch.

This module owns the public names only; `cache` holds the one class that matters.
"""

from llm_kvcache.cache import KVCache
from llm_kvcache.errors import (
    InvalidArgument,
    InvariantError,
    KVCacheError,
    PinQuotaExceeded,
    PolicyError,
    UnknownPin,
    UnknownSequence,
)
from llm_kvcache.groups import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    Group,
    MLALatent,
    RecurrentState,
    SlidingWindow,
)
from llm_kvcache.hashing import HASH_VERSION, block_hashes
from llm_kvcache.policies import POLICIES, BlockInfo, EvictionPolicy
from llm_kvcache.results import COPY, LOAD, STORE, Growth, Pin, Stats, Transfers

__all__ = [
    "COPY",
    "HASH_VERSION",
    "LOAD",
    "POLICIES",
    "STORE",
    "BlockInfo",
    "ChunkedLocal",
    "CrossAttention",
    "EvictionPolicy",
    "FullAttention",
    "Group",
    "Growth",
    "InvalidArgument",
    "InvariantError",
    "KVCache",
    "KVCacheError",
    "MLALatent",
    "Pin",
    "PinQuotaExceeded",
    "PolicyError",
    "RecurrentState",
    "SlidingWindow",
    "Stats",
    "Transfers",
    "UnknownPin",
    "UnknownSequence",
    "block_hashes",
]
