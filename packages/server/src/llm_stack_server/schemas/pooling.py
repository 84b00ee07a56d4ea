"""The bodies of the routes for vectors and scores, and the fields that these refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from llm_stack_server.errors import UnsupportedField
from llm_stack_server.schemas.fields import Int64, RequestBody

MAX_INPUTS = 2048
TRUNCATE = "truncate_prompt_tokens"

_NEUTRAL = frozenset({"user", "metadata", "priority", "request_id", "safety_identifier"})
# Refused unless null or one of the listed values, which ask for what happens anyway.
_REFUSED_UNLESS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "add_generation_prompt": (),
    "messages": (),
    "chat_template": (),
    "input_type": (),
    "task": (),
    "late_chunking": (False,),
    "late_chunking_params": (),
    "late_interaction_params": (),
    "embed_dtype": ("float32",),
    "embedding_types": (["float"],),
    "output_dtype": ("float",),
    "endianness": ("native", "little"),
    "use_activation": (),
    "softmax": (),
    "activation": (),
    "cache_salt": (),
    "mm_processor_kwargs": (),
    "instruction": (),
    "max_tokens_per_doc": (),
    "max_chunks_per_doc": (),
    "rank_fields": (["text"],),
    "truncation": (),
    "truncate": (),
    "truncation_side": ("right",),
    "softmax_temperature": (),
}

EncodingFormat = Literal["float", "base64"]
InputItem = str | list[int]


def unknown_pooling_fields(extra: Mapping[str, Any]) -> list[str]:
    """Names in ``extra`` that no one here knows.

    Raises:
        UnsupportedField: a known field asks for something that these routes cannot do.
    """
    unknown = []
    for name, value in extra.items():
        if value is None or name in _NEUTRAL:
            continue
        if name not in _REFUSED_UNLESS:
            unknown.append(name)
        elif not any(type(value) is type(one) and value == one for one in _REFUSED_UNLESS[name]):
            raise UnsupportedField(name)
    return unknown


def _are_token_ids(value: list[object]) -> bool:
    return set(map(type, value)) <= {int}  # exact types: a bool is no token id


def _inputs(value: object) -> list[InputItem]:
    """Every spelling of ``input`` as a list of texts or token id lists."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise ValueError("must not be empty")
    if _are_token_ids(value):
        return [value]
    _check_count(value)
    for index, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and _are_token_ids(item)):
            raise ValueError(f"item {index} must be a string or a list of integer token ids")
    if len({type(item) for item in value}) > 1:
        raise ValueError("strings and token ids must not be mixed")
    return value


def _documents(value: object) -> list[str]:
    """Documents as texts: strings, or objects with the field ``text``."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of strings or of objects with text, not empty")
    _check_count(value)
    texts = []
    for index, item in enumerate(value):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise ValueError(f"item {index} must be a string or an object with text")
        texts.append(text)
    return texts


def _texts(value: object) -> list[str] | str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a string or a list of strings, not empty")
    _check_count(value)
    return value


def _check_count(value: list[object]) -> None:
    if len(value) > MAX_INPUTS:
        raise ValueError(f"at most {MAX_INPUTS} texts are allowed in one request, got {len(value)}")


Inputs = Annotated[
    list[Any],
    BeforeValidator(_inputs, json_schema_input_type=str | list[int] | list[str | list[int]]),
]
Texts = Annotated[str | list[str], BeforeValidator(_texts)]


class PoolingBody(RequestBody):
    """What these bodies share."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[Int64, Field(ge=-1)] | None = None


class EmbeddingsRequest(PoolingBody):
    """The body of ``POST /v1/embeddings``."""

    input: Inputs
    encoding_format: EncodingFormat | None = None
    dimensions: Int64 | None = None
    normalize: bool | None = None


class PoolingRequest(EmbeddingsRequest):
    """The body of ``POST /pooling``. ``task`` is for embedders; None is "embed"."""

    task: Literal["embed", "token_embed"] | None = None


class ClassifyRequest(PoolingBody):
    """The body of ``POST /classify``."""

    input: Inputs


class ScoreRequest(PoolingBody):
    """The body of ``POST /v1/score``: ``text_1`` and ``text_2``, or ``queries`` and ``documents``."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    @model_validator(mode="after")
    def _two_texts(self) -> ScoreRequest:
        given = [name for name in self.model_fields_set if getattr(self, name, None) is not None]
        texts = {"text_1", "text_2", "queries", "documents"}.intersection(given)
        if texts not in ({"text_1", "text_2"}, {"queries", "documents"}):
            raise ValueError("give text_1 and text_2, or queries and documents")
        return self


class RerankRequest(PoolingBody):
    """The body of ``POST /v1/rerank``."""

    query: str
    documents: Annotated[
        list[str], BeforeValidator(_documents, json_schema_input_type=list[str | dict[str, Any]])
    ]
    top_n: Annotated[Int64, Field(ge=1)] | None = None
    return_documents: bool | None = None
