"""A small HTTP client for streamed answers: one connection a request, server-sent events out.

Knows nothing of what is asked. A client library would bring its own waits into the measurement.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from llm_stack_server.errors import ServerError

_READ_BYTES = 65_536
_OK = 200
_SHOWN_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens.

    Attributes:
        host: Name or address.
        port: TCP port.
        is_tls: Whether to speak TLS.
        prefix: Path before every route, without a slash at its end.
        api_key: Sent as a bearer token; None: none.
    """

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> "Endpoint":
        """From "http://host:port", with or without "/v1" at its end.

        Raises:
            ServerError: It is no URL of http or https.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"url: must begin with http:// or https:// and name a host, got {url!r}")
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_tls else 80),
            is_tls=is_tls,
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            api_key=api_key,
        )


async def stream_events(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> AsyncIterator[str]:
    """Posts a body and yields the data of each server-sent event as it comes.

    Raises:
        ServerError: The answer's status is not 200, is no HTTP, or breaks off.
        OSError: The server cannot be reached.
    """
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    context = ssl.create_default_context() if endpoint.is_tls else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        writer.write(_request(endpoint, path, body))
        while not answer.is_complete:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise ServerError("the answer broke off")
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ServerError(f"the answer is no HTTP: {error}") from error
            if parser.get_status_code() == _OK:
                for event in answer.take_events():
                    yield event
        if parser.get_status_code() != _OK:
            text = answer.body[:_SHOWN_BYTES].decode(errors="replace")
            raise ServerError(f"status {parser.get_status_code()}: {text}")
    finally:
        writer.close()


async def get_json(endpoint: Endpoint, path: str) -> Any:  # noqa: ANN401 - whatever the server says
    """The body of a GET, as JSON.

    Raises:
        ServerError: As `stream_events`, and where the body is no JSON.
        OSError: The server cannot be reached.
    """
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    context = ssl.create_default_context() if endpoint.is_tls else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        writer.write(_head(endpoint, "GET", path).encode() + b"\r\n")
        while not answer.is_complete:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise ServerError("the answer broke off")
            parser.feed_data(data)
        if parser.get_status_code() != _OK:
            raise ServerError(f"status {parser.get_status_code()} of {path}")
        return json.loads(answer.body)
    except (ValueError, httptools.HttpParserError) as error:
        raise ServerError(f"{path}: the answer cannot be read: {error}") from error
    finally:
        writer.close()


def _request(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = _head(endpoint, "POST", path)
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _head(endpoint: Endpoint, method: str, path: str) -> str:
    key = f"authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key is not None else ""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return (
        f"{method} {endpoint.prefix}{path} HTTP/1.1\r\nhost: {host}:{endpoint.port}\r\n"
        f"connection: close\r\naccept: */*\r\n{key}"
    )


class _Answer:
    """Takes the parser's calls: the body so far, and whether it has ended."""

    def __init__(self) -> None:
        self.body = b""
        self.is_complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    def take_events(self) -> list[str]:
        """The data of the events that are whole by now; they leave the body."""
        *blocks, self.body = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        events = []
        for block in blocks:
            lines = [line[5:].strip() for line in block.decode().split("\n") if line.startswith("data:")]
            if lines:
                events.append("\n".join(lines))
        return events
