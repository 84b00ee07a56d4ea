"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from llm_stack_server.context import context_of
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import InvalidField
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.prompts import ChatOptions, Prompt, chat_prompt, completion_prompts
from llm_stack_server.request_body import read_body
from llm_stack_server.schemas.chat import refuse_replayed
from llm_stack_server.schemas.known_fields import unknown_fields
from llm_stack_server.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from llm_stack_server.views.tokens import TokenTexts

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> JSONResponse:
    """Token ids of a text, or of a conversation as the chat route would render it."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, TokenizeRequest)
    context.check_model(body.model)
    refuse_replayed(body.messages or [])
    headers = take_note(context, "/tokenize", body, unknown_fields(body.model_extra or {}))
    token_ids = (await _prompt(engine, body)).token_ids
    answer: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": engine.max_model_len,
        "tokens": token_ids,
    }
    if body.return_token_strs:
        texts = TokenTexts(engine)
        answer["token_strs"] = [texts.text(token_id) for token_id in token_ids]
    return JSONResponse(answer, headers=headers)


async def _prompt(engine: Engine, body: TokenizeRequest) -> Prompt:
    if body.messages is not None:
        options = ChatOptions(
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
        )
        return await chat_prompt(engine, body.messages, options)
    assert body.prompt is not None
    add_special_tokens = body.add_special_tokens is not False
    return (await completion_prompts(engine, [body.prompt], add_special_tokens=add_special_tokens))[0]


@router.post("/detokenize")
async def detokenize(request: Request) -> JSONResponse:
    """Text of token ids; special tokens are kept unless ``skip_special_tokens`` is true."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, DetokenizeRequest)
    context.check_model(body.model)
    headers = take_note(context, "/detokenize", body, unknown_fields(body.model_extra or {}))
    for index, token_id in enumerate(body.tokens):
        if not 0 <= token_id < engine.vocab_size:
            param = f"tokens[{index}]"
            raise InvalidField(
                param, f"{param}: {token_id} is outside the vocabulary (0 to {engine.vocab_size - 1})"
            )
    skip = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(engine.tokenizer.decode, body.tokens, skip_special_tokens=skip)
    return JSONResponse({"prompt": text}, headers=headers)
