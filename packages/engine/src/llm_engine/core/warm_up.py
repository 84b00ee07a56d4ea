"""Owns the first request of an engine: it loads the kernels and captures a graph before anyone waits.

It runs through a scheduler and a cache of its own, which are dropped, so that nothing of it is counted.
"""

import numpy as np
from llm_distributed import Executor
from llm_kvcache import KVCache
from llm_scheduler import SchedulerConfig, load_scheduler

from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import AddRequest, CoreInfo
from llm_engine.errors import StartupError
from llm_engine.start_profile import StartRecorder
from llm_engine.worker.row_params import RowParams

# One from the prompt, then decode steps: one may run eagerly, one captures, one replays.
_NUM_TOKENS = 4
_REQUEST_ID = "warm-up"
_PROMPT = np.zeros(1, "<i4").tobytes()


def warm_up(
    executor: Executor, cache: KVCache, config: SchedulerConfig, info: CoreInfo, recorder: StartRecorder
) -> None:
    """Generates a few tokens and forgets them.

    Args:
        executor: Started, with a KV cache.
        cache: Of as many blocks as the workers have; its contents are of no use afterwards.
        config: The scheduler's.
        info: What the core will tell of itself.
        recorder: Gets the spans "first token" and "first decode steps".

    Raises:
        StartupError: Not even this request could be served.
    """
    if info.max_model_len < 2:
        return  # there is no room for a second token
    core = EngineCore(load_scheduler("default", config, cache), cache, executor, info)
    core.intake([_request(min(_NUM_TOKENS, info.max_model_len - 1))])
    with recorder.span("first token"):
        _run(core, until_first=True)
    if core.has_work():
        with recorder.span("first decode steps"):
            _run(core, until_first=False)
    executor.call("reset")


def _request(num_tokens: int) -> AddRequest:
    return AddRequest(
        request_id=_REQUEST_ID,
        token_ids=_PROMPT,
        max_tokens=num_tokens,
        min_tokens=0,
        stop_token_ids=[],
        priority=0,
        match_prefix=False,
        params=RowParams(seed=0),
    )


def _run(core: EngineCore, *, until_first: bool) -> None:
    """Steps until something came, or until the request has ended."""
    while core.has_work():
        outputs = core.step()
        for refusal in outputs.refusals:
            raise StartupError("WarmUpFailed", refusal.message)
        for row in outputs.rows:
            if row.error is not None:
                raise StartupError("WarmUpFailed", row.error)
        if until_first and outputs.rows:
            return
