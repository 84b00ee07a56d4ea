"""What a request may find in the prefix cache, and what it leaves there. Knows nothing of HTTP or blocks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from llm_engine.cache_pins import CachePin


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """How a generation uses the prefix cache.

    Attributes:
        tenant: Whose request it is: the digest of its API key, or "".
        salt: Only requests with the same salt share cached prefixes; None: with all that have none.
        pins: Beginnings of the prompt to keep for a time.
    """

    tenant: str = ""
    salt: bytes | None = None
    pins: tuple[CachePin, ...] = ()


def cache_use(key: str, cache_salt: str | None, *, by_key: bool, pins: tuple[CachePin, ...] = ()) -> CacheUse:
    """The use that a request may make of the cache.

    Args:
        key: The digest of its API key, or "".
        cache_salt: The salt that it names, if it does.
        by_key: Keys share nothing, whatever salts they name.
        pins: What is to stay.
    """
    owner = key if by_key else ""
    if cache_salt is None and not owner:
        return CacheUse(tenant=key, pins=pins)
    digest = hashlib.blake2b(digest_size=16)
    for part in (owner, "" if cache_salt is None else f"={cache_salt}"):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)  # so that no two pairs spell the same
    return CacheUse(tenant=key, salt=digest.digest(), pins=pins)
