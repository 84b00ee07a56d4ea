"""What happened to every request and in every step of a simulation; knows nothing of how it is judged."""

from __future__ import annotations

from array import array
from collections import Counter
from enum import IntEnum

import numpy as np

from llm_scheduler.plan import Int32, Int64
from llm_scheduler.sim.workload import Float64


class Outcome(IntEnum):
    """How a request of the workload ended."""

    PENDING = 0
    """It has not ended."""
    FINISHED = 1
    """It yielded all its tokens."""
    REFUSED = 2
    """The scheduler did not take it."""
    FAILED = 3
    """The scheduler ended it with an error or an abort."""
    NOT_SENT = 4
    """It continues a conversation whose earlier turn did not finish."""
    EXPIRED = 5
    """The scheduler ended it because it could no longer meet its deadline."""


class RequestLog:
    """Columns of length N by request; times in seconds, NaN where something did not happen.

    Attributes:
        arrived_s: float64[N], first arrival; a later try after ``Busy`` does not move it.
        admitted_s: float64[N], when the first plan with it was made.
        first_token_s: float64[N].
        last_token_s: float64[N].
        ended_s: float64[N].
        max_itl_s: float64[N], longest pause between two of its tokens.
        num_outputs: int64[N].
        cached_tokens: int64[N], prompt tokens found in the prefix cache at the first admission; -1 before.
        outcomes: int8[N] of ``Outcome``.
        refusals: How often each error refused a request for good, by the error's name.
        retries: Times a request came back after ``Busy``.
    """

    def __init__(self, num_requests: int) -> None:
        self.arrived_s: Float64 = np.full(num_requests, np.nan)
        self.admitted_s: Float64 = np.full(num_requests, np.nan)
        self.first_token_s: Float64 = np.full(num_requests, np.nan)
        self.last_token_s: Float64 = np.full(num_requests, np.nan)
        self.ended_s: Float64 = np.full(num_requests, np.nan)
        self.max_itl_s: Float64 = np.full(num_requests, np.nan)
        self.num_outputs: Int64 = np.zeros(num_requests, np.int64)
        self.cached_tokens: Int64 = np.full(num_requests, -1, np.int64)
        self.outcomes = np.zeros(num_requests, np.int8)
        self.refusals: Counter[str] = Counter()
        self.retries = 0
        self._itl_s: list[Float64] = []

    def take_tokens(self, requests: Int64, now_s: float) -> None:
        """Note one new token for each of these requests, none of them twice."""
        itl_s = now_s - self.last_token_s[requests]
        self.last_token_s[requests] = now_s
        self.num_outputs[requests] += 1
        is_first = np.isnan(itl_s)
        if is_first.any():
            self.first_token_s[requests[is_first]] = now_s
            requests, itl_s = requests[~is_first], itl_s[~is_first]
        self.max_itl_s[requests] = np.fmax(self.max_itl_s[requests], itl_s)
        self._itl_s.append(itl_s)

    def itl_s(self) -> Float64:
        """Return float64[M]: every pause between two tokens of a request."""
        return np.concatenate([np.empty(0), *self._itl_s])


class StepLog:
    """Columns by step, in order.

    Attributes:
        start_s: When it began.
        seconds: How long it took.
        num_rows: Rows.
        num_tokens: Tokens computed.
        running: Requests with a slot when it began.
        waiting: Requests in the queue when it began.
        used_blocks: Cache blocks in use when it began.
    """

    def __init__(self) -> None:
        self.start_s = array("d")
        self.seconds = array("d")
        self.num_rows = array("q")
        self.num_tokens = array("q")
        self.running = array("q")
        self.waiting = array("q")
        self.used_blocks = array("q")

    def __len__(self) -> int:
        return len(self.start_s)


class TenantLog:
    """Tokens computed by tenant.

    Attributes:
        served: int64[T], over the whole run, tokens of preempted rows computed again included.
        contended: int64[T], in steps that began while two tenants or more had live requests.
        live: Live requests of each tenant.
    """

    def __init__(self, num_tenants: int) -> None:
        self.served: Int64 = np.zeros(num_tenants, np.int64)
        self.contended: Int64 = np.zeros(num_tenants, np.int64)
        self.live = [0] * num_tenants

    def take_step(self, tenants: Int32, num_tokens: Int32) -> None:
        """Note the tokens of a step's rows."""
        tokens = np.bincount(tenants, num_tokens, len(self.live)).astype(np.int64)
        self.served += tokens
        if len(self.live) - self.live.count(0) > 1:
            self.contended += tokens


class Recording:
    """A finished simulation.

    Attributes:
        requests: By request.
        steps: By step.
        tenants: By tenant.
        preemptions: As the scheduler counts them.
        admissions: Times a request took a slot, after a preemption again.
        wasted_tokens: Tokens sampled for requests that had ended: the price of planning ahead.
    """

    def __init__(self, num_requests: int, num_tenants: int) -> None:
        self.requests = RequestLog(num_requests)
        self.steps = StepLog()
        self.tenants = TenantLog(num_tenants)
        self.preemptions = 0
        self.admissions = 0
        self.wasted_tokens = 0
