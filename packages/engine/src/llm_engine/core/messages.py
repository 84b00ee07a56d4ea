"""Owns the messages between front end and core and their encoding; knows nothing of sockets or of the loop.

MessagePack without pickle: what a message may hold is what is declared here.
"""

from typing import Literal, TypeAlias, TypeVar

import msgspec

from llm_engine.cache_pins import CachePin
from llm_engine.errors import ProtocolError
from llm_engine.outputs import TokenLogprobs
from llm_engine.start_profile import Span
from llm_engine.stats import EngineStats
from llm_engine.worker.pooling_info import PoolingInfo, ShortVectors
from llm_engine.worker.row_params import RowParams

PROTOCOL_VERSION = 2

HOST = 0
"""The number of the host among a core's front ends."""


def to_core_socket(generation: int) -> str:
    """The name of the socket, in the host's folder, at which a core takes messages."""
    return f"to-core-{generation}"


def from_core_socket(front: int, generation: int) -> str:
    """The name of the socket at which a front end, or the host, takes a core's messages.

    Each core has sockets of its own, so nothing that an earlier one said can be taken for its word.
    """
    return f"from-core-{generation}-{front}"


def request_id_of(front: int, number: int) -> str:
    """The id of a front end's request in the core."""
    return f"{front}.{number}"


def front_of(request_id: str) -> int:
    """The number of the front end whose request it is; -1: nobody's."""
    number = request_id.partition(".")[0]
    return int(number) if number.isdecimal() else -1


class Hello(msgspec.Struct, tag="hello", frozen=True, array_like=True):
    """A front end's first message: its number; its socket is bound."""

    front: int


class FrontGone(msgspec.Struct, tag="gone", frozen=True, array_like=True):
    """The host says that a front end has ended: its requests end too, and nothing more is sent to it."""

    front: int


class Ping(msgspec.Struct, tag="ping", frozen=True, array_like=True):
    """The host asks for a `Pong` with this token, which comes between two steps."""

    token: int


class AddRequest(msgspec.Struct, tag="add", frozen=True, array_like=True, kw_only=True):
    """Queue a request. `token_ids` are the prompt's tokens as little-endian int32, `output_ids` likewise.

    `resumed`: an earlier core was told of it, or it waited for this one: no full queue refuses it. It goes on
    behind `output_ids`.
    """

    request_id: str
    token_ids: bytes
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    priority: int
    match_prefix: bool
    params: RowParams
    tenant: str = ""
    salt: bytes | None = None
    cache_pins: list[CachePin] = []
    output_ids: bytes = b""
    resumed: bool = False


class Abort(msgspec.Struct, tag="abort", frozen=True, array_like=True):
    """End these requests; unknown ones are ignored. Nothing more is sent about them."""

    request_ids: list[str]


class StatsRequest(msgspec.Struct, tag="stats", frozen=True, array_like=True):
    """Ask for a `StatsReply` with this token, and before it for a check of all that the KV cache keeps."""

    token: int
    check_cache: bool = False
    front: int = HOST


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True, array_like=True):
    """End the core; requests still live are dropped."""


class PoolTexts(msgspec.Struct, tag="pool", frozen=True, array_like=True, kw_only=True):
    """Run whole texts through a model that gives vectors or scores; `Abort` takes it back.

    Token ids and types of each text are little-endian int32; without types all are 0.
    """

    request_id: str
    texts: list[bytes]
    token_types: list[bytes] | None
    normalize: bool | None
    per_token: bool = False


ToCore: TypeAlias = AddRequest | Abort | StatsRequest | Shutdown | PoolTexts | Hello | FrontGone | Ping


class ModelFound(msgspec.Struct, tag="found", frozen=True, array_like=True, kw_only=True):
    """The model's files are known; sent before its weights are read: the tokenizer loads meanwhile."""

    tokenizer_path: str | None


class CoreInfo(msgspec.Struct, tag="ready", frozen=True, array_like=True, kw_only=True):
    """The core is ready; what the front end must know of the model and the cache.

    Prefix hits are multiples of `block_size` tokens. `sampling_defaults` are what the model's author states
    of `SamplingParams`, by field. `start_spans` say where the seconds of the start went.
    """

    tokenizer_path: str | None
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    num_blocks: int
    block_size: int
    device: str
    dtype: str
    overlap: bool
    prefix_caching: bool
    sampling_defaults: dict[str, float] = {}
    start_spans: list[Span] = []
    protocol_version: int = PROTOCOL_VERSION


class CoreFailed(msgspec.Struct, tag="failed", frozen=True, array_like=True):
    """The core could not start, or cannot go on: the kind of the error and one line."""

    reason: str
    message: str


class Row(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """What one request gained in a step.

    With its first tokens come `pinned_tokens`, one for each pin, and `queue_s`, the seconds that it waited
    for its first step.
    """

    request_id: str
    tokens: list[int]
    finish_reason: str | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    pinned_tokens: list[int] = []
    queue_s: float = 0.0


class Refusal(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request that was not accepted. With `retry_after_s` the queue was full, else `field` is at fault."""

    request_id: str
    message: str
    field: str = ""
    retry_after_s: float | None = None


class StepOutputs(msgspec.Struct, tag="outputs", frozen=True, array_like=True, kw_only=True):
    """Everything a step brought, in one message."""

    rows: list[Row] = []
    refusals: list[Refusal] = []


class StatsReply(msgspec.Struct, tag="stats", frozen=True, array_like=True):
    """The answer to the `StatsRequest` with this token."""

    token: int
    stats: EngineStats
    front: int = HOST


class Pong(msgspec.Struct, tag="pong", frozen=True, array_like=True):
    """The answer to the `Ping` with this token."""

    token: int


class PoolingReady(msgspec.Struct, tag="pooling", frozen=True, array_like=True, kw_only=True):
    """The core is ready and its model gives vectors or scores: it takes `PoolTexts` and generates nothing.

    `activation` is what makes probabilities of raw scores, as `llm_engine.pooling` names it.
    """

    tokenizer_path: str | None
    info: PoolingInfo
    activation: Literal["softmax", "sigmoid", "identity"]
    short_vectors: ShortVectors
    protocol_version: int = PROTOCOL_VERSION


class PoolResult(msgspec.Struct, tag="pooled", frozen=True, array_like=True, kw_only=True):
    """The answer to `PoolTexts`: of each text its shape and little-endian float32; or an error."""

    request_id: str
    shapes: list[list[int]] = []
    arrays: list[bytes] = []
    error: str | None = None


FromCore: TypeAlias = (
    ModelFound | CoreInfo | CoreFailed | StepOutputs | StatsReply | Pong | PoolingReady | PoolResult
)

_M = TypeVar("_M")


class Codec:
    """Encodes and decodes the messages of both directions."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._to_core: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
        self._from_core: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)

    def encode(self, message: ToCore | FromCore) -> bytes:
        """The message as bytes."""
        return self._encoder.encode(message)

    def decode_to_core(self, data: bytes) -> ToCore:
        """A message for the core. Raises `ProtocolError` when it is none."""
        return _decode(self._to_core, data)

    def decode_from_core(self, data: bytes) -> FromCore:
        """A message of the core. Raises `ProtocolError` when it is none."""
        return _decode(self._from_core, data)


def _decode(decoder: "msgspec.msgpack.Decoder[_M]", data: bytes) -> _M:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"undecodable message of {len(data)} bytes: {error}") from error
