"""What does not generate, over gRPC: vectors, tokenizing, the model. Knows nothing of keys or sockets."""

from __future__ import annotations

import asyncio

from llm_engine.errors import InvalidRequest

from llm_stack_server.errors import InvalidField
from llm_stack_server.generation import Usage
from llm_stack_server.grpc_api.calls import Call, Message
from llm_stack_server.grpc_api.messages import given_fields, message_class
from llm_stack_server.metering import RequestMeter
from llm_stack_server.pooling_calls import admitted, as_client_names_it, pooling_engine
from llm_stack_server.pooling_port import PoolingEngine, routes_of
from llm_stack_server.prompts import ChatOptions, chat_prompt, completion_prompts
from llm_stack_server.routes.embeddings import check_dimensions
from llm_stack_server.schemas.pooling import EmbeddingsRequest
from llm_stack_server.schemas.tokenize import DetokenizeRequest, TokenizeRequest

_EMBEDDINGS_ROUTE = "/v1/embeddings"


async def embed(request: Message, call: Call) -> Message:
    """A vector of each text."""
    context = call.context
    engine = pooling_engine(context.lifecycle.require_engine(), _EMBEDDINGS_ROUTE)
    body = EmbeddingsRequest.model_validate({"input": [], **given_fields(request)})
    model = context.check_model(body.model)
    check_dimensions(context, engine, body.dimensions)
    wanted = body.truncate_prompt_tokens
    work = engine.embed(
        body.input,
        dimensions=body.dimensions,
        normalize=body.normalize,
        truncate=engine.max_model_len if wanted == -1 else wanted,
    )
    call.record.asks(model, None)
    meter = RequestMeter(context.metrics, "grpc:Embed", call.record)
    outcome, usage = "error", Usage()
    try:
        outputs = await admitted(call.permit, work, meter)
        usage.prompt_tokens = sum(output.num_prompt_tokens for output in outputs)
        outcome = "stop"
    except InvalidRequest as error:
        outcome = ""  # nothing ran
        raise as_client_names_it(error, {"texts": "input"}) from None
    except asyncio.CancelledError:
        outcome = "abort"
        raise
    finally:
        if outcome:
            meter.finished(outcome, usage)
    embedding = message_class("Embedding")
    return message_class("EmbedResponse")(
        model=model,
        embeddings=[embedding(values=output.embedding.tolist()) for output in outputs],
        prompt_tokens=usage.prompt_tokens,
    )


async def tokenize(request: Message, call: Call) -> Message:
    """Token ids of a text, or of a conversation as it would be written for the model."""
    engine = call.context.lifecycle.require_engine()
    body = TokenizeRequest.model_validate(given_fields(request))
    call.context.check_model(body.model)
    if body.messages is not None:
        options = ChatOptions(
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        prompt = await chat_prompt(engine, body.messages, options)
    else:
        assert body.prompt is not None
        add = body.add_special_tokens is not False
        [prompt] = await completion_prompts(engine, [body.prompt], add_special_tokens=add)
    return message_class("TokenizeResponse")(token_ids=prompt.token_ids, max_model_len=engine.max_model_len)


async def detokenize(request: Message, call: Call) -> Message:
    """Text of token ids."""
    engine = call.context.lifecycle.require_engine()
    body = DetokenizeRequest.model_validate({"tokens": [], **given_fields(request)})
    call.context.check_model(body.model)
    for index, token_id in enumerate(body.tokens):
        if token_id >= engine.vocab_size:
            param = f"tokens[{index}]"
            raise InvalidField(
                param, f"{param}: {token_id} is outside the vocabulary (0 to {engine.vocab_size - 1})"
            )
    skip = bool(body.skip_special_tokens)
    text = await asyncio.to_thread(engine.tokenizer.decode, body.tokens, skip_special_tokens=skip)
    return message_class("DetokenizeResponse")(text=text)


async def model_info(_request: Message, call: Call) -> Message:
    """What is served here."""
    context = call.context
    engine = context.lifecycle.require_engine()
    is_pooling = isinstance(engine, PoolingEngine)
    embeds = isinstance(engine, PoolingEngine) and _EMBEDDINGS_ROUTE in routes_of(engine.info)
    tasks = ["generate"] if not is_pooling else ["embed"] if embeds else []
    return message_class("ModelInfoResponse")(
        names=context.model_names(),
        root=engine.model_name,
        max_model_len=engine.max_model_len,
        vocab_size=engine.vocab_size,
        tasks=tasks,
        embedding_size=engine.info.size if embeds and isinstance(engine, PoolingEngine) else 0,
        server_version=context.package_version,
    )
