"""Workers without a model: each row's next token is the next of a fixed text, at once or at a fixed pace.

    PYTHONPATH=benchmarks llm-stack serve smollm2 --worker null_worker:at_once
    PYTHONPATH=benchmarks llm-stack serve smollm2 --worker null_worker:every_50_ms

All else is real: scheduler, block pool, core process, front end, tokenizer. So what is measured is the shell,
and a client knows each answer to the letter: `answer_text`.
"""

from __future__ import annotations

import time

import numpy as np
from llm_distributed import DeviceMesh
from llm_engine.worker import ModelInfo, WorkerConfig
from llm_engine.worker.kv_groups import KVGroup, KVLayout
from llm_scheduler import Ragged, StepPlan, StepResult
from llm_tokenizer import Tokenizer

TEXT = (
    " The shell of an engine turns tokens into text, text into events and events into bytes on a socket."
    " It should cost little, however many read along: naïve, 文字, or 🙂."
)
_MODEL_LEN = 2048
_PAGE_BYTES = 1024


def text_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that every answer cycles through."""
    return tokenizer.encode(TEXT, add_special_tokens=False)


def answer_text(tokenizer: Tokenizer, num_tokens: int) -> str:
    """What a request for so many tokens is answered."""
    ids = text_ids(tokenizer)
    return tokenizer.decode([ids[index % len(ids)] for index in range(num_tokens)])


class NullWorker:
    """Has the calls of `llm_engine.worker.Worker` that a core makes for greedy text.

    Args:
        config: `max_model_len` is 2,048 where it is open; the cache holds `max_num_seqs` such sequences.
        step_s: Seconds from the end of one step to the end of the next, slept through; 0: none.
    """

    def __init__(self, config: WorkerConfig, step_s: float) -> None:
        if config.tokenizer is None:
            raise ValueError("the model has no tokenizer")
        self._config = config
        self._step_s = step_s
        tokenizer = Tokenizer.from_file(config.tokenizer)
        self._vocab_size = tokenizer.vocab_size
        self._ids = np.array(text_ids(tokenizer), np.int32)
        self._prompt_lengths = np.zeros(config.max_num_seqs, np.int32)
        self._last_end_s = time.monotonic()
        self._num_steps = 0

    def load(self) -> ModelInfo:
        """Nothing is read."""
        config = self._config
        length = config.max_model_len or _MODEL_LEN
        group = KVGroup(kind="full", block_size=config.block_size, caches=(0,))
        return ModelInfo(
            architecture="none",
            vocab_size=self._vocab_size,
            max_model_len=length,
            model_max_len=length,
            kv_layout=KVLayout(groups=(group,), page_bytes=_PAGE_BYTES),
            num_parameters=0,
            dtype="float32",
            device="cpu",
            load_s=0.0,
        )

    def size_kv_cache(self) -> int:
        """Blocks for as many longest sequences as may run; fewer where `kv_cache_bytes` says so."""
        config = self._config
        if config.kv_cache_bytes is not None:
            return config.kv_cache_bytes // _PAGE_BYTES
        return config.max_num_seqs * -(-(config.max_model_len or _MODEL_LEN) // config.block_size)

    def allocate_kv(self, num_blocks: int, host_blocks: int = 0) -> ModelInfo:  # noqa: ARG002
        """The blocks exist in the scheduler's books only."""
        return self.load()

    def execute(self, plan: StepPlan) -> PacedResult:
        """The next token of the text for each row that samples."""
        self._num_steps += 1
        for row in plan.admitted:
            self._prompt_lengths[row.slot] = row.num_prompt_tokens
        samples = plan.samples
        places = plan.num_computed + plan.num_tokens - self._prompt_lengths[plan.slots]
        offsets = np.zeros(plan.num_rows + 1, np.int32)
        np.cumsum(samples, out=offsets[1:])
        tokens = Ragged(self._ids[places[samples] % len(self._ids)], offsets)
        self._last_end_s = max(self._last_end_s + self._step_s, time.monotonic())
        return PacedResult(StepResult(plan.step_id, tokens), self._last_end_s)

    def step_counts(self) -> dict[str, int]:
        """All steps are "eager"."""
        return {"graph": 0, "eager": self._num_steps}

    def prepare_grammars(self) -> None:
        """There are none."""

    def capture_one(self) -> bool:
        """There are no graphs."""
        return False

    def close(self) -> None:
        """Nothing is held."""


class PacedResult:
    """A step's result, at its time."""

    def __init__(self, result: StepResult, end_s: float) -> None:
        self._result = result
        self._end_s = end_s

    def done(self) -> bool:
        """Whether the time has come."""
        return time.monotonic() >= self._end_s

    def result(self) -> StepResult:
        """Sleep until then."""
        wait_s = self._end_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        return self._result


def at_once(mesh: DeviceMesh, *, config: WorkerConfig) -> NullWorker:  # noqa: ARG001 - a factory's signature
    """Steps take no time: what bounds the server is its shell."""
    return NullWorker(config, 0.0)


def every_50_ms(mesh: DeviceMesh, *, config: WorkerConfig) -> NullWorker:  # noqa: ARG001
    """A step each 50 ms, as a large model's: tokens come one by one."""
    return NullWorker(config, 0.05)


def every_200_ms(mesh: DeviceMesh, *, config: WorkerConfig) -> NullWorker:  # noqa: ARG001
    """A step each 200 ms, for thousands of streams on few cores."""
    return NullWorker(config, 0.2)
