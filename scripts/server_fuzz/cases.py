"""One mutated request: made of a seed, written to a file, read again. Knows nothing of sockets."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scripts.server_fuzz.odd_values import Raw, encoded, odd_name, odd_value, telling
from scripts.server_fuzz.seeds import Seed

# How the body is framed. In the last three, head and body do not fit together.
WELL_FRAMED = ("length", "chunked")
ILL_FRAMED = ("length too large", "length too small", "broken chunks")
_TOO_LARGE_BYTES = 9 * 2**20
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW", "get", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request as it is sent.

    Attributes:
        seed: Of the whole run.
        number: Within the run; the two make the case again.
        method: HTTP method.
        path: Request target.
        headers: Names and values as they are sent; those that frame the body come on top.
        body: The body's bytes.
        framing: One of `WELL_FRAMED` and `ILL_FRAMED`.
        pieces: In how many pieces the request is sent.
        reads: Bytes of the answer after which the client drops the connection; None: all are read.
        version: Of HTTP.
        field: The only mutated field of a known name; "" where it is not one.
        notes: What was done to the seed.
    """

    seed: int
    number: int
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    framing: str = "length"
    pieces: int = 1
    reads: int | None = None
    version: str = "1.1"
    field: str = ""
    notes: tuple[str, ...] = ()

    def is_well_formed(self) -> bool:
        """Whether every server must answer it, be it with a refusal."""
        line = f"{self.method}{self.path}" + "".join(name + value for name, value in self.headers)
        return (
            self.framing in WELL_FRAMED
            and self.reads is None
            and self.version in ("1.0", "1.1")
            and bool(self.method)
            and self.method != "CONNECT"
            and self.path.startswith("/")
            and line.isascii()
            and line.isprintable()
            and " " not in self.path
            and all(name and name.replace("-", "").isalnum() for name, _ in self.headers)
        )

    def write(self, path: Path) -> None:
        """As JSON."""
        shown = asdict(self) | {"body": base64.b64encode(self.body).decode()}
        path.write_text(json.dumps(shown, indent=1))

    @classmethod
    def read(cls, path: Path) -> Case:
        """A case that `write` wrote."""
        given = json.loads(path.read_text())
        given["headers"] = tuple((name, value) for name, value in given["headers"])
        return cls(**given | {"body": base64.b64decode(given["body"]), "notes": tuple(given["notes"])})


def make_case(seed: int, number: int, seeds: Sequence[Seed]) -> Case:
    """The case of this number; the same one every time."""
    rng = random.Random(f"{seed}:{number}")
    source = rng.choices(seeds, [entry.weight for entry in seeds])[0]
    content_type = (("content-type", "application/json"),) if source.body is not None else ()
    accept = (("accept", source.accept),) if source.accept else ()
    case = Case(
        seed=seed,
        number=number,
        method=source.method,
        path=source.path,
        headers=content_type + accept,
    )
    if source.body is not None:
        case = _with_body(case, source.body, rng)
    if rng.random() < 0.15 or source.body is None:
        case = _with_odd_head(case, rng)
    if rng.random() < 0.12:
        case = _with_odd_sending(case, rng)
    return case


# Bodies


def _with_body(case: Case, body: dict[str, Any], rng: random.Random) -> Case:
    count = rng.choices((0, 1, 2, 4), (4, 60, 25, 11))[0]
    mutated = copy.deepcopy(body)
    notes, field = [], ""
    for _ in range(count):
        note, field = _mutate_tree(mutated, rng)
        notes.append(note)
    raw = encoded(mutated)
    if rng.random() < 0.1:
        raw, note = _mutate_bytes(raw, rng)
        notes.append(note)
        field = ""
    return replace(case, body=raw, notes=tuple(notes), field=field if len(notes) == 1 else "")


def _places(value: object, top: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every container with a key or index of it, and the top-level field that it is under."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield value, name, top or name
            yield from _places(part, top or name)
    elif isinstance(value, list):
        for index, part in enumerate(value[:8]):
            yield value, index, top
            yield from _places(part, top)


def _mutate_tree(tree: dict[str, Any], rng: random.Random) -> tuple[str, str]:
    """Change one place; what was done, and the top-level field if one was given a wrong value."""
    places = list(_places(tree))
    if not places:  # all was removed
        tree[odd_name(rng)] = odd_value(rng)
        return "an unknown field alone", ""
    container, key, top = rng.choice(places)
    match rng.choices(
        ("odd", "telling", "new telling", "remove", "unknown", "duplicate", "swap"), (28, 28, 16, 8, 8, 4, 8)
    )[0]:
        case "odd":
            container[key] = odd_value(rng)
            return f"odd value in {top}: {key}", top if container is tree else ""
        case "telling":
            container[key] = telling(str(key), rng)
            return f"near value in {top}: {key}", top if container is tree else ""
        case "new telling":
            name = odd_name(rng)
            tree[name] = telling(name, rng)
            return f"near value in new {name[:40]}", ""
        case "remove":
            del container[key]
            return f"without {top}: {key}", ""
        case "unknown":
            target = container if isinstance(container, dict) else tree
            target[odd_name(rng)] = odd_value(rng)
            return f"unknown field beside {top}: {key}", ""
        case "duplicate":
            first = encoded(str(key)) + b":" + encoded(odd_value(rng)) + b","
            if isinstance(container, dict) and container is not tree:
                for owner, name, _ in places:
                    if owner[name] is container:
                        owner[name] = Raw(b"{" + first + encoded(container)[1:])
            else:
                tree[top] = Raw(encoded(tree[top]) + b"," + first + encoded(top) + b":" + encoded(tree[top]))
            return f"twice {top}: {key}", ""
        case _:
            other, other_key, _ = rng.choice(places)
            container[key] = copy.deepcopy(other[other_key])
            return f"value of another field in {top}: {key}", ""


def _mutate_bytes(raw: bytes, rng: random.Random) -> tuple[bytes, str]:
    position = rng.randrange(len(raw) + 1)
    before, after = raw[:position], raw[position:]
    changes: dict[str, Callable[[], bytes]] = {
        "cut off": lambda: before,
        "empty": lambda: b"",
        "garbage": lambda: rng.randbytes(rng.choice((1, 50, 5000))),
        "bad UTF-8": lambda: before + b"\xff\xc3" + after,
        "a flipped byte": lambda: before + bytes([rng.randrange(256)]) + after[1:],
        "a byte-order mark": lambda: b"\xef\xbb\xbf" + raw,
        "UTF-16": lambda: raw.decode("utf-8", "replace").encode("utf-16"),
        "twice": lambda: raw + raw,
        "a list": lambda: b"[" + raw + b"]",
        "a string": lambda: json.dumps(raw.decode("utf-8", "replace")).encode(),
        "a trailing comma": lambda: raw[:-1] + b",}",
        "a comment": lambda: b"/* x */" + raw,
        "compressed": lambda: gzip.compress(raw, mtime=0),
        "white space": lambda: b" \n" * 5000 + raw,
        "beyond the limit": lambda: raw[:-1] + b',"x":"' + b"a" * _TOO_LARGE_BYTES + b'"}',
    }
    weights = [10] * (len(changes) - 1) + [1]
    note = rng.choices(list(changes), weights)[0]
    return changes[note](), note


# Heads and sending

_ODD_HEADERS: tuple[tuple[str, str], ...] = (
    ("content-type", "text/plain"),
    ("content-type", "multipart/form-data"),
    ("content-type", "multipart/form-data; boundary=x"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-type", ""),
    ("content-type", "\x01"),
    ("content-encoding", "gzip"),
    ("content-encoding", "identity, identity"),
    ("accept", "nothing/else"),
    ("accept", "application/openmetrics-text"),
    ("accept-encoding", "gzip;q=x"),
    ("expect", "100-continue"),
    ("expect", "200-ok"),
    ("upgrade", "h2c"),
    ("upgrade", "websocket"),
    ("range", "bytes=0-0"),
    ("if-none-match", "*"),
    ("x-timeout-s", "0"),
    ("x-timeout-s", "-1"),
    ("x-timeout-s", "nan"),
    ("x-timeout-s", "1e400"),
    ("x-timeout-s", "1_0"),
    ("x-timeout-s", "0.000001"),
    ("x-timeout-s", "5, 6"),
    ("authorization", "Bearer"),
    ("authorization", "Bearer \xff\xfe"),
    ("authorization", "Basic eDp5"),
    ("authorization", "Bearer " + "x" * 5000),
    ("x-api-key", ""),
    ("traceparent", "00-0-0-0"),
    ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-00"),
    ("traceparent", "ff-" + "a" * 32 + "-" + "b" * 16 + "-01"),
    ("traceparent", "x" * 3000),
    ("tracestate", "a=" + "b" * 3000),
    ("baggage", "a=%ZZ"),
    ("x-request-id", "x" * 3000),
    ("x-request-id", "a\tb"),
    ("x-request-id", "\u00e9"),
    ("origin", "https://evil.example"),
    ("origin", "null"),
    ("host", "evil.example"),
    ("host", ""),
    ("host", "[::1"),
    ("host", "a" * 3000),
    ("cookie", "a=b; " * 500),
    ("x-forwarded-for", "1.2.3.4, " * 100),
    ("anthropic-version", "x"),
    ("mcp-session-id", "\x7f"),
    ("mcp-protocol-version", "x"),
    ("bad name", "x"),
    ("", "x"),
    ("x", "a\r\n folded"),
    ("x", "a\x00b"),
    ("x-long", "x" * 70_000),
)
_ODD_PATHS = (
    "//v1/models",
    "/v1/models/%00",
    "/v1/models/%ff%fe",
    "/v1/models/../../etc/passwd",
    "/v1/models/" + "x" * 8000,
    "/v1/chat/completions/",
    "/v1/chat/completions?x=%",
    "/v1/responses/" + "%F0%9F%92%A5" * 50,
    "/v1/responses//cancel",
    "/v1/responses/resp_x/input_items?limit=x&after=%00",
    "/page/..%2f..%2fsecret",
    "/page/app.js",
    "/health/../v1/models",
    "/metrics?name[]=x",
    "/docs",
    "/redoc",
    "/é",
    "/a b",
    "*",
    "http://evil.example/v1/models",
    "",
    "/" + "a/" * 3000,
)


def _with_odd_head(case: Case, rng: random.Random) -> Case:
    draw = rng.random()
    if draw < 0.55:
        added = tuple(rng.choices(_ODD_HEADERS, k=rng.choice((1, 1, 2, 4))))
        names = {name for name, _ in added}
        kept = tuple(pair for pair in case.headers if pair[0] not in names or rng.random() < 0.2)
        return replace(case, headers=kept + added, field="", notes=(*case.notes, "odd headers"))
    if draw < 0.65:
        many = tuple((f"x-{index}", "y") for index in range(rng.choice((100, 500, 5000))))
        return replace(case, headers=case.headers + many, field="", notes=(*case.notes, "many headers"))
    if draw < 0.82:
        return replace(case, method=rng.choice(_METHODS), field="", notes=(*case.notes, "another method"))
    if draw < 0.95:
        return replace(case, path=rng.choice(_ODD_PATHS), field="", notes=(*case.notes, "another path"))
    version = rng.choice(("1.0", "0.9", "2.0", "1.1x", ""))
    return replace(case, version=version, notes=(*case.notes, "another version"))


def _with_odd_sending(case: Case, rng: random.Random) -> Case:
    match rng.choice(("chunked", "ill framed", "pieces", "drops", "drops", "expects")):
        case "chunked":
            return replace(case, framing="chunked", notes=(*case.notes, "chunked"))
        case "ill framed":
            framing = rng.choice(ILL_FRAMED)
            return replace(case, framing=framing, field="", notes=(*case.notes, framing))
        case "pieces":
            return replace(case, pieces=rng.choice((2, 5, 20)), notes=(*case.notes, "in pieces"))
        case "expects":
            headers = (*case.headers, ("expect", "100-continue"))
            return replace(case, headers=headers, notes=(*case.notes, "expects 100"))
        case _:
            reads = rng.choice((0, 0, 1, 100, 400))
            return replace(case, reads=reads, notes=(*case.notes, f"leaves after {reads} bytes"))
