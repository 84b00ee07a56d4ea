"""The API keys of a server: their names and digests, read and read again. Knows nothing of HTTP."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llm_stack_server.errors import StartupError

_DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_OPTION = re.compile(r"(weight|expires)=(.*)")
_MAX_WEIGHT = 1000
_DAY_S = 86_400
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. The key itself is not kept.

    Attributes:
        name: What metrics and logs call it.
        digest: SHA-256 of the key.
        weight: Its share of the queue's places beside the other keys.
        expires_s: Unix time from which on it is refused.
    """

    name: str
    digest: bytes
    weight: int = 1
    expires_s: float = math.inf


class KeyRing:
    """The keys that are valid now. Digests have one length, so comparing tells nothing of a key's length."""

    def __init__(
        self,
        given: Sequence[str] = (),
        file: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the keys.

        Args:
            given: Entries as in the file, from the command line.
            file: A file with one entry a line, or None.
            clock: Tells the Unix time.

        Raises:
            StartupError: an entry is wrong, or the file cannot be read or holds no key.
        """
        self._given = [
            _parse(entry, f"key{number}", f"api_key {number}") for number, entry in enumerate(given, 1)
        ]
        self._file = file
        self._clock = clock
        self._keys = self._read()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def has_file(self) -> bool:
        """Whether `reload` has something to read."""
        return self._file is not None

    def reload(self) -> None:
        """Read the file again. Keys gone from it are refused from now on; requests that run go on.

        Raises:
            StartupError: the file is wrong; the keys stay as they were.
        """
        self._keys = self._read()

    def find(self, secrets: Iterable[bytes]) -> ApiKey | None:
        """The key that one of ``secrets`` is; compares all with all, without an early exit."""
        digests = [hashlib.sha256(secret).digest() for secret in secrets]
        matches = [key for digest in digests for key in self._keys if hmac.compare_digest(digest, key.digest)]
        return matches[0] if matches and matches[0].expires_s > self._clock() else None

    def _read(self) -> tuple[ApiKey, ...]:
        keys = list(self._given)
        if self._file is not None:
            keys += _from_file(self._file)
        # Of a key that stands twice, the first name counts.
        by_digest = {key.digest: key for key in reversed(keys)}
        unique = [key for key in keys if by_digest[key.digest] is key]
        names = [key.name for key in unique]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise StartupError(f"api_key: the name {twice!r} stands for two keys")
        return tuple(unique)


def _from_file(path: str) -> list[ApiKey]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"api_key_file: {error}") from None
    entries = [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")
    ]
    if not entries:
        raise StartupError(f"api_key_file: {path} holds no key")
    return [_parse(line, f"line{number}", f"api_key_file: {path}, line {number}") for number, line in entries]


def _parse(entry: str, default_name: str, place: str) -> ApiKey:
    """``KEY``, ``sha256:HEX``, or either behind a name and white space; then options such as ``weight=2``.

    Messages never show the entry.
    """
    parts = entry.split()
    options: dict[str, str] = {}
    while len(parts) > 1 and (found := _OPTION.fullmatch(parts[-1])):
        if found[1] in options:
            raise StartupError(f"{place}: {found[1]} stands twice")
        options[found[1]] = found[2]
        parts.pop()
    weight, expires_s = _weight(options.get("weight"), place), _expires_s(options.get("expires"), place)
    if not parts:
        # It would look like protection and be none.
        raise StartupError(f"{place}: an API key is empty")
    if len(parts) > 2:
        raise StartupError(
            f"{place}: must be KEY or NAME KEY, then weight=N or expires=DATE; a key has no white space"
        )
    name = parts[0] if len(parts) == 2 else default_name
    if not _NAME.fullmatch(name):
        raise StartupError(f"{place}: a key's name has 1 to 64 letters, digits, dots, dashes and underscores")
    secret = parts[-1]
    if not secret.startswith(_DIGEST_PREFIX):
        return ApiKey(name, hashlib.sha256(secret.encode()).digest(), weight, expires_s)
    digest = secret.removeprefix(_DIGEST_PREFIX)
    if not _DIGEST.fullmatch(digest):
        raise StartupError(f"{place}: {_DIGEST_PREFIX} needs 64 hexadecimal digits")
    return ApiKey(name, bytes.fromhex(digest), weight, expires_s)


def _weight(text: str | None, place: str) -> int:
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 4 and 1 <= int(text) <= _MAX_WEIGHT):
        raise StartupError(f"{place}: weight must be a whole number from 1 to {_MAX_WEIGHT}")
    return int(text)


def _expires_s(text: str | None, place: str) -> float:
    """The end of a day, or a moment; in UTC where it names no other zone."""
    if text is None:
        return math.inf
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise StartupError(f"{place}: expires must be like 2027-01-31 or 2027-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    is_day = "T" not in text and " " not in text
    return moment.timestamp() + (_DAY_S if is_day else 0)
