"""The grammars of a worker's rows: what they have accepted, and which tokens they allow next.

A step's draw needs the tokens of the step before, which may still be on its way. So masks are asked for
behind the step's forward pass. On a GPU that pass is only queued then, and the tokens before it are on the
host long before it ends. On a CPU the step before is over already, and a thread fills the masks meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from llm_scheduler import NewRow, StepPlan, StepResult
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.grammar.background import BackgroundCompiler
from llm_engine.grammar.compiler import Matcher, fill_masks
from llm_engine.worker.errors import PlanError
from llm_engine.worker.row_params import RowParams


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Which tokens some of a step's drawn rows may take.

    Attributes:
        rows: int64[G], entries of the logits.
        bits: int32[G, words]; bit i of word w stands for the token 32 w + i.
    """

    rows: NDArray[np.int64]
    bits: NDArray[np.int32]

    def apply(self, logits_EV: Tensor) -> Tensor:
        """A copy of the logits with minus infinity for the tokens that are not allowed."""
        device = logits_EV.device
        rows, words = torch.from_numpy(self.rows), torch.from_numpy(self.bits)
        if device.type == "cuda":
            rows, words = (x.pin_memory().to(device, non_blocking=True) for x in (rows, words))
        shifts = torch.arange(32, dtype=torch.int32, device=device)
        allowed = ((words[:, :, None] >> shifts) & 1).view(len(rows), -1)[:, : logits_EV.shape[1]] != 0
        masked = logits_EV.index_select(0, rows)
        width = allowed.shape[1]
        masked[:, :width].masked_fill_(~allowed, float("-inf"))
        masked[:, width:] = float("-inf")
        return logits_EV.index_copy(0, rows, masked)


@dataclass(frozen=True, slots=True)
class _Undelivered:
    """A launched step whose tokens were not accepted yet: its result, and the matchers of its rows."""

    result: Callable[[], StepResult]
    matchers: list[tuple[int, Matcher]]


class GrammarRows:
    """Matchers by slot.

    Args:
        prepared: Holds the compiled grammars of requests that are admitted; None: there is no tokenizer.
    """

    def __init__(self, prepared: BackgroundCompiler | None) -> None:
        self._prepared = prepared
        self._matchers: dict[int, Matcher] = {}
        self._undelivered: list[_Undelivered] = []
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[NDArray[np.int32]] | None = None

    def admit(self, row: NewRow) -> None:
        """Starts a row's grammar, if it has one; a row that comes back has outputs already.

        Raises:
            PlanError: The grammar was not compiled before.
        """
        self._matchers.pop(row.slot, None)
        params = row.payload
        if not isinstance(params, RowParams) or params.grammar is None:
            return
        grammar = None if self._prepared is None else self._prepared.grammar(row.request_id)
        if grammar is None:
            raise PlanError(f"request {row.request_id}: its grammar was not compiled before")
        self._matchers[row.slot] = grammar.start(row.token_ids[row.num_prompt_tokens :].tolist())

    def release(self, slots: NDArray[np.int32]) -> None:
        """Forgets the slots' grammars."""
        for slot in slots.tolist():
            self._matchers.pop(slot, None)

    def note(self, plan: StepPlan, sample_rows: NDArray[np.int64], result: Callable[[], StepResult]) -> None:
        """Remembers a launched step, whose tokens its rows' grammars must accept before their next ones."""
        if not self._matchers:
            return
        found = [(row, self._matchers.get(slot)) for row, slot in self._drawn(plan, sample_rows)]
        matchers = [(row, matcher) for row, matcher in found if matcher is not None]
        if matchers:
            self._undelivered.append(_Undelivered(result, matchers))

    def begin(self, plan: StepPlan, sample_rows: NDArray[np.int64]) -> None:
        """Begins, in a thread, to fill the masks of a plan whose forward pass will run here and now.

        The steps before it must be over.
        """
        if self._ahead is not None:
            self._ahead.exception()  # of a step that failed before its draw
            self._ahead = None
        entries = self._entries(plan, sample_rows)
        if not entries:
            return
        self._accept_delivered()
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._ahead = self._pool.submit(_filled, [matcher for _, _, matcher in entries])

    def close(self) -> None:
        """Ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def masks(
        self, plan: StepPlan, sample_rows: NDArray[np.int64], faults: dict[int, str]
    ) -> TokenMasks | None:
        """What the drawn rows of a plan may take; waits for the tokens of the steps before.

        Args:
            plan: The step whose forward pass is queued.
            sample_rows: int64[E], its rows that yield a token.
            faults: Gets the rows whose grammar cannot go on, with the reason.

        Returns:
            None where none of them has a grammar.
        """
        entries = self._entries(plan, sample_rows)
        if not entries:
            return None
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self._accept_delivered()
            bits = _filled([matcher for _, _, matcher in entries])
        else:
            bits = ahead.result()
        for place, (_, row, matcher) in enumerate(entries):
            if (fault := matcher.fault) is not None:
                faults[row] = f"the grammar cannot go on: {fault}"
                bits[place] = -1  # what is drawn is not used
        return TokenMasks(np.array([entry for entry, _, _ in entries], np.int64), bits)

    def _entries(self, plan: StepPlan, sample_rows: NDArray[np.int64]) -> list[tuple[int, int, Matcher]]:
        """(entry of the logits, row, matcher) of the drawn rows with a grammar."""
        if not self._matchers:
            return []
        return [
            (entry, row, matcher)
            for entry, (row, slot) in enumerate(self._drawn(plan, sample_rows))
            if (matcher := self._matchers.get(slot)) is not None
        ]

    def _accept_delivered(self) -> None:
        for step in self._undelivered:
            tokens = step.result().tokens
            for row, matcher in step.matchers:
                matcher.accept(tokens.row(row).tolist())
        self._undelivered.clear()

    @staticmethod
    def _drawn(plan: StepPlan, sample_rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """(row, slot) of the rows that yield a token."""
        return list(zip(sample_rows.tolist(), plan.slots[sample_rows].tolist(), strict=True))


def _filled(matchers: list[Matcher]) -> NDArray[np.int32]:
    """The masks of some matchers, at least one."""
    bits = np.zeros((len(matchers), matchers[0].num_words), np.int32)
    fill_masks(matchers, bits)
    return bits
