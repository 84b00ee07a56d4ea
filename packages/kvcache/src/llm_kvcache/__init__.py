"""Paged KV-cache block pool and prefix cache for LLM inference, in Rust, without torch.

This module owns the public names only. `cache` holds the class that matters most; `tiers` and `events` hold
the value types of theirs.
"""

from llm_kvcache.cache import KVCache
from llm_kvcache.errors import (
    EventGap,
    EventsDisabled,
    InvalidArgument,
    InvariantError,
    KVCacheError,
    NoRoom,
    NotResident,
    PinQuotaExceeded,
    PolicyError,
    TierLost,
    UnknownPin,
    UnknownSequence,
    UnknownTransfer,
    WireError,
)
from llm_kvcache.events import EventBatch, EventLog, Follower
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
from llm_kvcache.policies import POLICIES, BlockInfo, EvictionPolicy, installed_policies
from llm_kvcache.results import COPY, LOAD, STORE, Growth, Pin, Stats, Transfers
from llm_kvcache.tiers import Tier, TierIndex, TierStats

__all__ = [
    "COPY",
    "HASH_VERSION",
    "LOAD",
    "POLICIES",
    "STORE",
    "BlockInfo",
    "ChunkedLocal",
    "CrossAttention",
    "EventBatch",
    "EventGap",
    "EventLog",
    "EventsDisabled",
    "EvictionPolicy",
    "Follower",
    "FullAttention",
    "Group",
    "Growth",
    "InvalidArgument",
    "InvariantError",
    "KVCache",
    "KVCacheError",
    "MLALatent",
    "NoRoom",
    "NotResident",
    "Pin",
    "PinQuotaExceeded",
    "PolicyError",
    "RecurrentState",
    "SlidingWindow",
    "Stats",
    "Tier",
    "TierIndex",
    "TierLost",
    "TierStats",
    "Transfers",
    "UnknownPin",
    "UnknownSequence",
    "UnknownTransfer",
    "WireError",
    "block_hashes",
    "installed_policies",
]
