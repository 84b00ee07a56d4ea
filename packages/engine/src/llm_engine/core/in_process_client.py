"""Owns the offline front end's hold on a core in its own process; knows nothing of what the messages mean."""

import time
from collections.abc import Sequence
from typing import Any

from llm_distributed import CallFailed
from llm_tokenizer import Tokenizer

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import Abort, AddRequest, CoreInfo, StepOutputs
from llm_engine.core.startup import start_core
from llm_engine.errors import EngineDead, RequestFailed
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.options import EngineOptions
from llm_engine.start_profile import StartRecorder
from llm_engine.stats import EngineStats

_NOTHING_RAN_PAUSE_S = 0.001


class InProcessClient:
    """The same core as one in a process of its own, stepped by its caller.

    Args:
        options: What to run.
        recorder: Gets the spans of the start; None: nobody asks.

    Attributes:
        tokenizer: The model's; None: it has none.

    Raises:
        StartupError: The core could not start; one line says why.
    """

    def __init__(self, options: EngineOptions, recorder: StartRecorder | None = None) -> None:
        self.tokenizer: Tokenizer | None = None
        self._core: EngineCore | None = start_core(options, self._take_tokenizer, recorder)

    def _take_tokenizer(self, tokenizer: Tokenizer | None, _path: str | None) -> None:
        self.tokenizer = tokenizer

    @property
    def info(self) -> CoreInfo:
        """What the core told of the model, the device and the cache."""
        return self._alive().info

    def send(self, message: AddRequest | Abort) -> None:
        """Hand over a message."""
        self._alive().intake([message])

    def step(self) -> StepOutputs:
        """Run one step of the core; a short pause where nothing could run."""
        core = self._alive()
        outputs = core.step()
        if not core.made_progress:
            time.sleep(_NOTHING_RAN_PAUSE_S)  # a thread that compiles a grammar needs the time
        return outputs

    def check_grammars(self, specs: Sequence[GrammarSpec]) -> list[str | None]:
        """Compile grammars and wait for them; why each failed, or None."""
        return self._alive().check_grammars(specs)

    def has_work(self) -> bool:
        """Whether a step has something to do."""
        return self._alive().has_work()

    def stats(self) -> EngineStats:
        """A snapshot of the core."""
        return self._alive().stats()

    def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 - any method of the worker
        """Call a method of the worker, between steps.

        Raises:
            RequestFailed: It raised.
        """
        try:
            return self._alive().call(method, *args)
        except CallFailed as error:
            raise RequestFailed(f"{error.error_type}: {error.message}") from error

    def shutdown(self) -> None:
        """End the core and free its memory. Safe to call twice."""
        core, self._core = self._core, None
        if core is not None:
            core.shutdown()

    def _alive(self) -> EngineCore:
        if self._core is None:
            raise EngineDead("the engine was shut down")
        return self._core
