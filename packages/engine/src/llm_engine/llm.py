"""Owns the offline front end: whole batches through a core in this process; knows nothing of asyncio."""

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from llm_models import is_pooling, read_sentence_modules, resolve
from llm_tokenizer import Tokenizer
from tqdm import tqdm

from llm_engine.core.in_process_client import InProcessClient
from llm_engine.core.messages import Abort
from llm_engine.core.pooling_client import PoolingClient
from llm_engine.core.startup import as_startup_errors
from llm_engine.errors import EngineBusy, EngineError, InvalidRequest, RequestFailed, UnsupportedTask
from llm_engine.interrupts import DeferredInterrupt
from llm_engine.live_requests import LiveRequest
from llm_engine.options import EngineOptions
from llm_engine.output_collector import OutputCollector
from llm_engine.output_processor import OutputProcessor
from llm_engine.outputs import RequestOutput
from llm_engine.pooling import Pooler, as_pairs, as_texts, make_pooler
from llm_engine.pooling_outputs import ClassificationOutput, EmbeddingOutput, RewardOutput, ScoreOutput
from llm_engine.prompts import Conversation, Prompt, TokensPrompt, chat_to_tokens, to_tokens
from llm_engine.request_builder import RequestBuilder
from llm_engine.sampling_params import SamplingParams
from llm_engine.start_profile import StartProfile, StartRecorder, build_profile, now_s
from llm_engine.stats import EngineStats


class LLM:
    """An engine for offline work, in this process.

    ```python
    with LLM("smollm2") as llm:
        outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))
        print(outputs[0].outputs[0].text)
    ```

    Args:
        model: An alias, a folder or a .gguf file.
        **options: Fields of `EngineOptions`.

    Raises:
        InvalidOption: An option is unknown or out of its range.
        StartupError: The engine could not start; one line says why.
    """

    def __init__(self, model: str, **options: Any) -> None:  # noqa: ANN401 - checked by EngineOptions
        recorder = StartRecorder()
        recorder.add_process(now_s())
        self._options = EngineOptions.from_mapping({"model": model, **options})
        with as_startup_errors(), recorder.span("model files"):
            self._files = resolve(
                model, offline=self._options.offline, allow_pickle=self._options.allow_pickle
            )
            only_pools = is_pooling(self._files)
        self._client: InProcessClient | PoolingClient = (
            PoolingClient(self._options, self._files)
            if only_pools
            else InProcessClient(self._options, recorder)
        )
        self._pooler: Pooler | None = None
        self._num_requests = 0
        with recorder.span("front end"):
            info = self._client.info
            self._tokenizer = self._client.tokenizer
            self._builder = RequestBuilder(
                self._tokenizer, info, self._options.seed, one_seed=self._options.deterministic
            )
            hit_unit = info.block_size if info.prefix_caching else None
            self._processor = OutputProcessor(self._tokenizer, hit_unit)
        self._start_profile = build_profile(recorder.spans)
        if self._options.profile_start:
            sys.stderr.write(self._start_profile.table() + "\n")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            InvalidRequest: The model has none.
        """
        if self._tokenizer is None:
            raise InvalidRequest("prompt", "must be token ids: the model has no tokenizer")
        return self._tokenizer

    @property
    def start_profile(self) -> StartProfile:
        """Where the seconds went from the start of this process until the engine was ready."""
        return self._start_profile

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds where a caller states no parameters: the defaults of the model's author."""
        return SamplingParams(**self._client.info.sampling_defaults)  # type: ignore[arg-type]

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens."""
        return self._client.info.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._client.info.vocab_size

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or for many.

        All prompts are checked before the first is run. An interrupt (Ctrl-C) aborts what is running; the
        engine can be used on.

        Args:
            prompts: Text, a list of texts, token ids, a list of token id lists, or `TokensPrompt`s.
            params: For all prompts, or one for each; None: `default_sampling_params`.
            progress: Show a progress bar.

        Returns:
            One output a prompt, in their order.

        Raises:
            InvalidRequest: A prompt or its parameters were refused; nothing was run.
            RequestFailed: Some requests ended with an error. The others were finished first: the exception's
                `outputs` holds all outputs, failed ones with finish reason "error".
            UnsupportedTask: The model gives vectors or scores, not text.
        """
        self._core("generate")
        batch = [to_tokens(self._tokenizer, prompt) for prompt in _as_batch(prompts)]
        return self._run(batch, self._spread(params, len(batch)), progress=progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        **template_options: object,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: A list of messages (mappings with "role" and "content"), or a list of such lists.
            params: For all conversations, or one for each; None: `default_sampling_params`.
            progress: Show a progress bar.
            **template_options: See `llm_engine.prompts.chat_to_tokens`.

        Returns:
            One output a conversation, in their order.

        Raises:
            InvalidRequest: As `generate`; also when the chat template refused the messages.
            RequestFailed: As `generate`.
            UnsupportedTask: As `generate`.
        """
        self._core("chat")
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise InvalidRequest("messages", "must be a non-empty list of messages or of conversations")
        single = isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Conversation]", [messages] if single else messages)
        batch = [chat_to_tokens(self.tokenizer, one, **template_options) for one in conversations]
        return self._run(batch, self._spread(params, len(batch)), progress=progress)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: int | None = None,
        per_token: bool = False,
        progress: bool = True,
    ) -> list[EmbeddingOutput]:
        """Turn texts into vectors.

        Of a model that generates text, the vector is the last token's state after the final norm.

        Args:
            texts: Text, a list of texts, token ids, a list of token id lists, or `TokensPrompt`s. Texts get
                the tokenizer's special tokens.
            dimensions: Keep so many numbers of each vector (Matryoshka); None: all. Only models trained for
                it give good short vectors.
            normalize: Scale vectors to length 1, after shortening; None: as the model's files say.
            truncate: Cut texts to so many tokens, special ones kept; None: texts that are too long are
                refused.
            per_token: A vector of each token, special ones included, instead of one of the text.
            progress: Show a progress bar.

        Returns:
            One output a text, in their order.

        Raises:
            InvalidRequest: A text or an argument was refused; nothing was run.
            UnsupportedTask: The model gives scores.
        """
        return self._pooled().embed(
            as_texts(texts),
            dimensions=dimensions,
            normalize=normalize,
            truncate=truncate,
            per_token=per_token,
            progress=progress,
        )

    def score(
        self,
        query: Prompt | Sequence[Prompt] | Sequence[tuple[Prompt, Prompt]],
        texts: Prompt | Sequence[Prompt] | None = None,
        *,
        truncate: int | None = None,
        progress: bool = True,
    ) -> list[ScoreOutput]:
        """Score how well texts go with a query: by a cross-encoder, or by the cosine of two vectors.

        Args:
            query: One for all texts, one for each, or a list of pairs (query, text) and no `texts`.
            texts: As in `embed`.
            truncate: As in `embed`; of a pair, the longer text is cut first.
            progress: Show a progress bar.

        Returns:
            One output a pair, in their order.

        Raises:
            InvalidRequest: A text or an argument was refused; nothing was run.
            UnsupportedTask: The model gives something else than one score or a vector.
        """
        return self._pooled().score(as_pairs(query, texts), truncate=truncate, progress=progress)

    def classify(
        self, texts: Prompt | Sequence[Prompt], *, truncate: int | None = None, progress: bool = True
    ) -> list[ClassificationOutput]:
        """Classify texts, or each of their tokens, as the model's head does; arguments as in `embed`.

        Raises:
            InvalidRequest: A text or an argument was refused; nothing was run.
            UnsupportedTask: The model gives no scores.
        """
        return self._pooled().classify(as_texts(texts), truncate=truncate, progress=progress)

    def reward(
        self, texts: Prompt | Sequence[Prompt], *, truncate: int | None = None, progress: bool = True
    ) -> list[RewardOutput]:
        """Raw scores of texts, or of each of their tokens; arguments as in `embed`.

        Raises:
            InvalidRequest: A text or an argument was refused; nothing was run.
            UnsupportedTask: The model gives no scores.
        """
        return self._pooled().reward(as_texts(texts), truncate=truncate, progress=progress)

    @property
    def prompts(self) -> Mapping[str, str]:
        """What sentence-transformers' files tell callers to put before texts, by name ("query", "document").

        Nothing puts it there but the caller.
        """
        modules = read_sentence_modules(self._files.path)
        return {} if modules is None else modules.prompts

    def stats(self) -> EngineStats:
        """A snapshot of the core's counters.

        Raises:
            UnsupportedTask: The model gives vectors or scores, and has no core.
        """
        return self._core("count steps").stats()

    def shutdown(self) -> None:
        """End the engine and free its memory. Safe to call twice."""
        self._client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # Vectors and scores

    def _core(self, task: str) -> InProcessClient:
        """The core of a model that generates."""
        if isinstance(self._client, PoolingClient):
            does = "embed or score" if not self._client.pooling_info.labels else "classify, score or reward"
            raise UnsupportedTask(task, f"it gives vectors or scores of texts, not text: call {does}")
        return self._client

    def _pooled(self) -> Pooler:
        if self._pooler is None:
            self._pooler = make_pooler(self._client, self._tokenizer, self._options, self._files)
        return self._pooler

    # The batch

    def _spread(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        """Parameters for each prompt."""
        if params is None:
            params = self.default_sampling_params
        if not isinstance(params, Sequence):
            return [params] * num_prompts
        if len(params) != num_prompts:
            raise InvalidRequest(
                "params", f"must be one, or one for each of {num_prompts} prompts, got {len(params)}"
            )
        return params

    def _run(
        self, prompts: Sequence[TokensPrompt], params: Sequence[SamplingParams], *, progress: bool
    ) -> list[RequestOutput]:
        collectors: list[OutputCollector] = []
        requests: list[LiveRequest] = []
        for prompt, one in zip(prompts, params, strict=True):
            request_id = str(self._num_requests + len(requests))
            collector = OutputCollector(request_id, prompt, one.n if isinstance(one, SamplingParams) else 1)
            requests.append(self._builder.build(prompt, one, request_id, 0, collector.put))
            collectors.append(collector)
        core = self._core("generate")
        self._check_grammars(core, params)
        self._num_requests += len(requests)
        with DeferredInterrupt() as interrupt:
            try:
                with tqdm(total=len(requests), desc="Requests", unit="req", disable=not progress) as bar:
                    self._drive(core, deque(zip(requests, collectors, strict=True)), bar, interrupt)
            except BaseException:
                self._abort(core, requests)
                raise
        return _outputs(collectors)

    def _check_grammars(self, core: InProcessClient, params: Sequence[SamplingParams]) -> None:
        """Refuse what cannot be compiled before anything is run."""
        specs = list({one.grammar: None for one in params if one.grammar is not None})
        for fault in core.check_grammars(specs) if specs else ():
            if fault is not None:
                raise InvalidRequest("grammar", fault)

    def _drive(
        self,
        core: InProcessClient,
        backlog: "deque[tuple[LiveRequest, OutputCollector]]",
        bar: "tqdm[Any]",
        interrupt: DeferredInterrupt,
    ) -> None:
        """Feed the core from the backlog and step it until all requests have ended."""
        running: list[tuple[LiveRequest, OutputCollector]] = []
        while backlog or running:
            interrupt.check()
            running.extend(self._feed(core, backlog))
            num_live = self._processor.num_live
            followup = self._processor.process(core.step())
            for message in followup.add:
                core.send(message)
            if followup.abort:
                core.send(Abort(followup.abort))
            if self._processor.num_live == num_live:
                continue  # none has ended
            still = []
            for request, collector in running:
                if isinstance(collector.error, EngineBusy) and self._processor.num_live:
                    collector.error = None  # the queue was full: again, when something has ended
                    backlog.appendleft((request, collector))
                elif collector.finished:
                    bar.update()
                else:
                    still.append((request, collector))
            running = still

    def _feed(
        self, core: InProcessClient, backlog: "deque[tuple[LiveRequest, OutputCollector]]"
    ) -> Iterable[tuple[LiveRequest, OutputCollector]]:
        """Hand over as many requests as keep the core busy; the rest waits here, where no queue bounds it."""
        limit = min(2 * self._options.max_num_seqs, self._options.max_waiting_requests)
        while backlog and self._processor.num_live < limit:
            request, collector = backlog.popleft()
            for message in self._processor.open(request):
                core.send(message)
            yield request, collector

    def _abort(self, core: InProcessClient, requests: Sequence[LiveRequest]) -> None:
        ids = [core_id for request in requests for core_id in self._processor.close(request)]
        core.send(Abort(ids))
        while core.has_work():  # blocks of a step in flight come back only when it was taken in
            core.step()


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of prompts, whether one or several were given."""
    if isinstance(prompts, str | TokensPrompt | np.ndarray):
        return [cast("Prompt", prompts)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InvalidRequest(
            "prompt", f"must be text, token ids or a list of these, got {type(prompts).__name__}"
        )
    if not prompts:
        raise InvalidRequest("prompt", "must not be empty")
    if isinstance(prompts[0], int | np.integer):
        return [cast("Prompt", prompts)]
    return cast("Sequence[Prompt]", prompts)


def _outputs(collectors: Sequence[OutputCollector]) -> list[RequestOutput]:
    """All outputs, or the first error with all outputs attached."""
    outputs = [collector.output() for collector in collectors]
    errors: list[EngineError] = [collector.error for collector in collectors if collector.error is not None]
    if not errors:
        return outputs
    first = errors[0]
    if isinstance(first, RequestFailed):
        raise RequestFailed(first.message, first.request_id, outputs)
    raise first
