"""Paged KV-cache block pool and prefix cache for LLM inference, in Rust, without torch.

This module owns the public names only; `cache` holds the one class that matters.
"""

from llm_kvcache.cache import KVCache
from llm_kvcache.errors import InvalidArgument, InvariantError, KVCacheError, UnknownSequence
from llm_kvcache.groups import FullAttention, Group
from llm_kvcache.hashing import HASH_VERSION, block_hashes
from llm_kvcache.results import Growth, Stats

__all__ = [
    "HASH_VERSION",
    "FullAttention",
    "Group",
    "Growth",
    "InvalidArgument",
    "InvariantError",
    "KVCache",
    "KVCacheError",
    "Stats",
    "UnknownSequence",
    "block_hashes",
]
