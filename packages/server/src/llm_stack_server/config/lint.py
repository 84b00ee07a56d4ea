"""Says what is wrong, risky or idle in a file of options, without starting anything.

What an option may be is the dataclasses' own knowledge, and what keys, certificates and tool servers must be
that of the code that reads them: this only asks them.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from llm_engine.errors import EngineError
from llm_engine.options import EngineOptions

from llm_stack_server.config.document import Document
from llm_stack_server.config.idle import idle_options
from llm_stack_server.config.options import Option
from llm_stack_server.errors import ServerError, StartupError
from llm_stack_server.keys import KeyRing
from llm_stack_server.mcp_tools.remote import allowed_servers
from llm_stack_server.settings import ServerSettings
from llm_stack_server.tls import Tls

Level = Literal["error", "warning", "note"]
_EXTRAS = {
    "grpc_port": ("grpc", "grpc"),
    "mcp": ("mcp", "mcp"),
    "mcp_server": ("mcp", "mcp"),
    "otlp_traces_endpoint": ("opentelemetry", "tracing"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """One thing about a file.

    Attributes:
        level: ``error``: the server would not start. ``warning``: it would, but surely not as meant.
            ``note``: something could be left out.
        line: Where, from 1; 0 for the file as a whole.
        option: Which option, or "".
        message: What is the matter, for a person.
    """

    level: Level
    line: int
    option: str
    message: str


def lint(document: Document, options: Mapping[str, Option]) -> list[Remark]:
    """All remarks on a file, by line."""
    lines = {name: entry.line for name, entry in document.entries.items()}
    values = {name: entry.value for name, entry in document.entries.items()}
    found = [
        Remark(level="error", line=fault.line, option=fault.option, message=fault.message)
        for fault in document.faults
    ]
    asked = {remark.option for remark in found}
    said = [*_starts(values, asked), *_surroundings(values)]
    if not found and not any(one.level == "error" for one in said):
        said += _exposure(values)
        said += _idle(values)
    said += _readable(document, options)
    said += _defaults(values, options)
    for level, option, message in said:
        found.append(Remark(level=level, line=lines.get(option, 0), option=option, message=message))
    return sorted(found, key=lambda remark: remark.line)


class _Said(NamedTuple):
    """A remark whose line is not known yet."""

    level: Level
    option: str
    message: str


def _starts(values: Mapping[str, Any], faulty: set[str]) -> Iterator[_Said]:
    """What the dataclasses say, one after the other: what is wrong is taken away until all else is right."""
    if "model" not in values and "model" not in faulty:
        yield _Said("warning", "model", "model: is not given; then the command line must name one")
    for owner, always in ((ServerSettings, {}), (EngineOptions, {"model": "model"})):
        known = {field.name for field in fields(owner)}
        left = {name: value for name, value in values.items() if name in known}
        while (error := _error_of(owner, always | left)) is not None:
            name = str(error).partition(":")[0]
            yield _Said("error", name, str(error))
            if name not in left:
                break
            del left[name]


def _error_of(owner: Callable[..., object], values: Mapping[str, Any]) -> Exception | None:
    try:
        owner(**values)
    except (ServerError, EngineError) as error:
        return error
    return None


def _surroundings(values: Mapping[str, Any]) -> Iterator[_Said]:
    """Files that must be there and right, and parts that must be installed."""
    yield from _said_by("api_key", lambda: KeyRing(values.get("api_key", ())))
    for name, path in (("api_key_file", values.get("api_key_file")), ("tls_cert", values.get("tls_cert"))):
        if path is not None and not Path(path).is_file():
            yield _Said("error", name, f"{name}: there is no file {path}")
        elif name == "api_key_file" and path is not None:
            yield from _said_by(name, partial(KeyRing, (), path))
        elif path is not None:
            yield from _said_by(name, partial(Tls, path, values.get("tls_key"), values.get("tls_client_ca")))
    yield from _said_by("mcp_server", lambda: allowed_servers(values.get("mcp_server", ())))
    for name in ("model", "tokenizer"):
        path = values.get(name)
        if path is not None and _is_path(path) and not Path(path).exists():
            yield _Said("error", name, f"{name}: there is no file or folder {path}")
    for name, (module, extra) in _EXTRAS.items():
        wanted = values.get(name)
        is_off = wanted is None or wanted is False or wanted == ()  # 0 is a port
        if not is_off and importlib.util.find_spec(module) is None:
            yield _Said(
                "error", name, f"{name}: {module} is not installed: install llm-stack-server[{extra}]"
            )


def _said_by(option: str, look: Callable[[], object]) -> Iterator[_Said]:
    try:
        look()
    except StartupError as error:
        message = str(error)
        yield _Said("error", option, message if message.startswith(option) else f"{option}: {message}")


def _is_path(text: str) -> bool:
    """Whether it cannot be an alias or a hub's id."""
    return text.startswith((".", "/", "~")) or text.endswith((".gguf", ".json"))


def _exposure(values: Mapping[str, Any]) -> Iterator[_Said]:
    settings = ServerSettings(
        **{field.name: values[field.name] for field in fields(ServerSettings) if field.name in values}
    )
    is_here = _is_loopback(settings.host)
    if settings.is_open() and not settings.allow_open and not is_here:
        yield _Said(
            "error",
            "host",
            f"host: {settings.host} can be reached from other machines and there are no API keys: set "
            "api_key_file, or allow_open to serve anyone",
        )
    elif settings.is_open() and not is_here:
        yield _Said("warning", "allow_open", "allow_open: anyone who reaches the port may use the server")
    elif settings.allow_open:
        why = "only this machine reaches the address" if settings.is_open() else "clients need a key"
        yield _Said("warning", "allow_open", f"allow_open: has no effect, as {why}")
    if settings.api_key and settings.tls_cert is None and not is_here:
        yield _Said("warning", "host", "host: keys go over the network unencrypted; set tls_cert")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: where it leads is known only when it is asked
        return False


def _idle(values: Mapping[str, Any]) -> Iterator[_Said]:
    for name, reason in idle_options(values):
        yield _Said("warning", name, f"{name}: has no effect {reason}")


def _defaults(values: Mapping[str, Any], options: Mapping[str, Option]) -> Iterator[_Said]:
    for name, value in values.items():
        option = options[name]
        if not option.is_required and not option.is_secret and value == option.default:
            yield _Said("note", name, f"{name}: is the default anyway")


def _readable(document: Document, options: Mapping[str, Option]) -> Iterator[_Said]:
    """Whether a file that holds secrets may be read by others of the machine."""
    secret = next((name for name in document.entries if options[name].is_secret), None)
    if secret is not None and document.path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        message = f"{secret}: others on this machine may read the file; chmod 600 {document.path}"
        yield _Said("warning", secret, message)
