"""What a sequence runs in (cache, limits, which token follows which); knows nothing of schedulers.

The KV of a position is a digest of all tokens up to it, and a sampled token is a function of the last digest.
So a lost, doubled or reordered token, a stale prefix hit or a block with two writers changes what a request
yields, or is seen where it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from llm_kvcache import FullAttention, KVCache

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.request import Request

_PRIME = (1 << 61) - 1


def extend_digest(digest: int, token: int) -> int:
    """Return the digest of a text that has one token more."""
    return (digest * 1_000_003 + token + 1) % _PRIME


def first_digest(request: Request) -> int:
    """Return the digest before the first token: requests that may not share blocks differ from here on."""
    digest = 7
    for byte in (request.salt or b"") + b"|" + (request.lora or "").encode():
        digest = extend_digest(digest, byte)
    return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything around a scheduler.

    Attributes:
        config: The scheduler's limits.
        block_size: Tokens of a block.
        num_blocks: Blocks of the cache.
        prefix_caching: Whether the cache keeps full blocks.
        vocab_size: How many tokens there are to sample.
    """

    config: SchedulerConfig
    block_size: int = 4
    num_blocks: int = 64
    prefix_caching: bool = True
    vocab_size: int = 50

    def make_cache(self) -> KVCache:
        """Make the empty cache: one full-attention group."""
        group = FullAttention(self.block_size)
        return KVCache([group], self.num_blocks, enable_prefix_caching=self.prefix_caching)

    def next_token(self, digest: int) -> int:
        """Return the token that follows a text of this digest."""
        return digest % self.vocab_size

    def limit(self, request: Request) -> int:
        """Return the tokens at which the request ends at the latest."""
        return min(len(request.token_ids) + request.max_tokens, self.config.max_model_len)

    def num_blocks_at_most(self, request: Request) -> int:
        """Return the blocks of the request at its longest."""
        return -(-self.limit(request) // self.block_size)

    def expected(self, request: Request) -> tuple[list[int], str]:
        """Return the outputs and the finish reason of a request that runs undisturbed, from its fields."""
        digest = first_digest(request)
        for token in request.token_ids.tolist():
            digest = extend_digest(digest, token)
        outputs: list[int] = []
        while True:
            outputs.append(self.next_token(digest))
            if outputs[-1] in request.stop_token_ids and len(outputs) > request.min_tokens:
                return outputs, "stop"
            if len(request.token_ids) + len(outputs) == self.limit(request):
                return outputs, "length"
            digest = extend_digest(digest, outputs[-1])

    def __str__(self) -> str:
        own = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name != "config"]
        config = self.config
        given = [
            f"{f.name}={getattr(config, f.name)!r}"
            for f in fields(config)
            if getattr(config, f.name) != f.default
        ]
        return f"{' '.join(own)}\nSchedulerConfig({', '.join(given)})"
