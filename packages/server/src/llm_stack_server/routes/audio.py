"""OpenAI's routes of speech, which no served model answers yet: they say so. Knows nothing of sounds."""

from __future__ import annotations

from fastapi import APIRouter, Request

from llm_stack_server.context import context_of
from llm_stack_server.errors import InvalidField

router = APIRouter()


@router.post("/v1/audio/transcriptions")
@router.post("/v1/audio/translations")
@router.post("/v1/audio/speech")
async def audio(request: Request) -> None:
    """Refuse the request before its upload is read.

    Raises:
        InvalidField: the served model neither hears nor speaks.
    """
    engine = context_of(request).lifecycle.require_engine()
    raise InvalidField(
        "model",
        f"model: {engine.model_name} takes and gives text, no sound, and speech models cannot be served yet; "
        "llm_engine.transcription transcribes files in Python",
        code="unsupported_task",
    )
