"""What a step's tokens mean for its requests: outputs, ends, what the cache learns; plans nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from llm_scheduler.in_flight import PlanInFlight, RowTokens
from llm_scheduler.plan import Bool, Int64, RowOutput, StepResult
from llm_scheduler.request import RequestState
from llm_scheduler.residency import Residency
from llm_scheduler.slots import LIVE, SlotTable
from llm_scheduler.stopping import finish_reason, take_tokens


@dataclass(frozen=True, slots=True)
class _Ended:
    row: int
    state: RequestState
    reason: str


class Results:
    """Hands the tokens of a step to its requests.

    Rows that yield one token, which is nearly all, are handled with array operations; what is left for each
    is its ``RowOutput``. Rows with several tokens, faulty rows and requests preempted meanwhile go one by
    one.

    Args:
        table: The slots.
        residency: Tells the cache.
        end: Takes a request out of the books, with the reason.
    """

    def __init__(
        self, table: SlotTable, residency: Residency, end: Callable[[RequestState, str], None]
    ) -> None:
        self._table = table
        self._residency = residency
        self._end = end

    def take(
        self, flight: PlanInFlight, occupied: Bool, tokens: RowTokens, result: StepResult
    ) -> list[RowOutput]:
        """Take in tokens, then end the requests that are done.

        Args:
            flight: The plan.
            occupied: bool[R], rows that were not preempted since.
            tokens: The tokens of each row.
            result: Where they come from.

        Returns:
            One output for each request with something new, in row order.
        """
        is_single = occupied & (tokens.lengths == 1) & (self._table.ended[flight.slots] == LIVE)
        is_other = ~is_single & (tokens.lengths > 0)
        if result.faults:
            faulty = list(result.faults)
            is_single[faulty], is_other[faulty] = False, True
        if result.prompt_logprobs:
            with_prompt = list(result.prompt_logprobs)
            is_other[with_prompt] |= ~is_single[with_prompt]
        singles, others = np.flatnonzero(is_single), np.flatnonzero(is_other)
        ended: list[_Ended] = []
        outputs = self._take_singles(flight, singles, tokens, ended)
        if len(others):
            more, rows = self._take_others(flight, others, tokens, result.faults, ended)
            of_both = np.concatenate([singles, np.array(rows, np.int64)])
            both = outputs + more
            order = np.argsort(of_both)
            outputs = [both[index] for index in order.tolist()]
            singles = of_both[order]
            ended.sort(key=lambda end: end.row)
        _add_logprobs(outputs, singles, result)
        for end in ended:
            self._end(end.state, end.reason)
        return outputs

    def _take_singles(
        self, flight: PlanInFlight, rows: Int64, tokens: RowTokens, ended: list[_Ended]
    ) -> list[RowOutput]:
        table = self._table
        is_all = len(rows) == len(flight.states)
        slots = flight.slots if is_all else flight.slots[rows]
        values = tokens.values if is_all else tokens.values[tokens.offsets[:-1][rows]]
        self._residency.append_singles(slots, values)
        request_ids = flight.request_ids if is_all else [flight.request_ids[row] for row in rows.tolist()]
        outputs = RowOutput.of_single_tokens(request_ids, values.tolist(), table.cached[slots].tolist())
        known = table.known[slots]
        may_end = (known == table.limit[slots]) | table.stops.may_stop(values)
        for index in np.flatnonzero(may_end).tolist():
            row = int(rows[index])
            state, output = flight.states[row], outputs[index]
            token = output.tokens[0]
            reason = finish_reason(state, token, int(known[index]) - state.num_prompt_tokens)
            if reason is not None:
                output.finish_reason = reason
                output.stop_token = token if reason == "stop" else None
                ended.append(_Ended(row, state, reason))
        return outputs

    def _take_others(
        self,
        flight: PlanInFlight,
        rows: Int64,
        tokens: RowTokens,
        faults: Mapping[int, str],
        ended: list[_Ended],
    ) -> tuple[list[RowOutput], list[int]]:
        """Take in rows one by one; return the outputs and the rows they belong to."""
        outputs: list[RowOutput] = []
        of_rows: list[int] = []
        takers: list[RequestState] = []
        taken: list[list[int]] = []
        for row in rows.tolist():
            state = flight.states[row]
            if state.finished:
                continue
            of_rows.append(row)
            if row in faults:
                outputs.append(error_output(state, faults[row]))
                ended.append(_Ended(row, state, "error"))
                continue
            new, reason, stop_token = tokens.row(row), None, None
            if new:
                self._residency.flush_outputs(state)
                new, reason, stop_token = take_tokens(state, new)
                takers.append(state)
                taken.append(new)
            if reason is not None:
                ended.append(_Ended(row, state, reason))
            cached = max(state.num_cached_tokens, 0)
            outputs.append(RowOutput(state.request.request_id, new, reason, stop_token, cached))
        self._residency.append(takers, taken)
        return outputs, of_rows


def _add_logprobs(outputs: list[RowOutput], rows: Int64, result: StepResult) -> None:
    """Pass the logprobs through; ``rows`` int64[n], ascending, are the plan's rows of the outputs."""
    if not result.logprobs and not result.prompt_logprobs:
        return
    for row, output in zip(rows.tolist(), outputs, strict=True):
        if output.finish_reason == "error":
            continue
        if row in result.logprobs:
            output.logprobs = result.logprobs[row]
        if row in result.prompt_logprobs:
            output.prompt_logprobs = result.prompt_logprobs[row]


def error_output(state: RequestState, message: str) -> RowOutput:
    """Make the output of a request that ends with an error."""
    cached = max(state.num_cached_tokens, 0)
    return RowOutput(state.request.request_id, [], "error", num_cached_tokens=cached, error=message)
