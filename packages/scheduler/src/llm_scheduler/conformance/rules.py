"""The rules of the ``Scheduler`` protocol, by name; knows nothing of how they are checked."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Rule(Enum):
    """One promise of the protocol.

    Attributes:
        label: Its name in reports.
        text: What is promised.
    """

    label: str
    text: str

    def __new__(cls, label: str, text: str) -> Self:
        """Make a member whose value is its label."""
        member = object.__new__(cls)
        member._value_ = label
        member.label = label
        member.text = text
        return member

    def __str__(self) -> str:
        return self.label

    # The shape of a plan
    PLAN_ARRAYS = "plan-arrays", "arrays have the documented dtypes, and one entry for each row"
    STEP_IDS = "step-ids", "step ids count plans from 0"
    PLAN_HAS_ROWS = "plan-has-rows", "a step with nothing to run is None, not a plan without rows"
    DECODE_ROWS_FIRST = "decode-rows-first", "rows with one token come first"
    ONE_ROW_A_SLOT = "one-row-a-slot", "a slot has one row in a step"
    TOKEN_BUDGET = "token-budget", "a step computes at most max_num_batched_tokens"
    DECODES_BEFORE_CHUNKS = (
        "decodes-before-chunks",
        "a running row that wants one token gets it before chunks of prompts do",
    )
    PLAN_DEPTH = "plan-depth", "no more plans are in flight than max_plans_in_flight"

    # Slots
    SLOT_RANGE = "slot-range", "slots are below max_num_seqs"
    SLOT_IN_USE = "slot-in-use", "a slot is given away only when it is free or released in the same plan"
    SLOT_UNKNOWN = "slot-unknown", "rows and releases name occupied slots"
    ADMITTED_HAS_ROW = "admitted-has-row", "an admitted request has a row in the same plan"
    ADMITTED_TOKENS = "admitted-tokens", "an admission carries every known token, and the payload untouched"
    ADMITTED_ONCE = "admitted-once", "a request holds one slot"
    ENDED_ROWS = "ended-rows", "a plan has no row for a request that has ended"

    # Blocks
    BLOCK_TABLE = "block-table", "block tables name blocks of the cache, each once"
    BLOCKS_ENOUGH = "blocks-enough", "a row's block table has room for all that it computes"
    ADMISSION_BLOCKS = (
        "admission-blocks",
        "a request is admitted only with the blocks of all its known tokens",
    )
    SHARED_WRITE = "shared-write", "a block that is written belongs to one row only"
    KV_CONTENT = "kv-content", "a row reads the KV of its own tokens: no stale, foreign or failed block"
    BLOCKS_COME_BACK = (
        "blocks-come-back",
        "ended requests give their blocks back once no plan in flight holds them",
    )
    CACHE_CHECK = "cache-check", "the cache's own check() passes"

    # Positions
    CONTIGUOUS = "contiguous", "a row goes on where its slot stopped"
    KNOWN_TOKENS_ONLY = "known-tokens-only", "a row computes known tokens only"
    SAMPLES = "samples", "a row samples exactly where it reaches the end of its tokens"
    PAST_THE_END = "past-the-end", "no row runs beyond max_tokens or max_model_len"
    PREFIX_OPT_OUT = "prefix-opt-out", "match_prefix=False computes every position of the prompt"

    # Outputs
    OUTPUT_ROWS = "output-rows", "one output for each request with something new, in the plan's row order"
    OUTPUT_TOKENS = "output-tokens", "every sampled token is delivered once, in order, to its request"
    FINISH_REASON = "finish-reason", "a request ends by its stop token or its length, and says which"
    LOGPROBS = "logprobs", "logprobs travel from the result to the output, untouched"
    CACHED_TOKENS = "cached-tokens", "num_cached_tokens is the prefix hit of the first admission"
    ERROR_OUTPUTS = (
        "error-outputs",
        "a fault or a failed step ends its own requests with its message, no others",
    )

    # Calls
    ADD_ACCEPTS = "add-accepts", "what fits is accepted, unless the queue is full"
    ADD_REFUSES = (
        "add-refuses",
        "what is malformed, live already, or never fits is refused by its typed error",
    )
    QUEUE_BOUND = "queue-bound", "beyond max_waiting_requests or max_waiting_tokens add raises Busy"
    RESULT_REFUSED = "result-refused", "a result that does not fit its plan raises InvalidResult"
    PLAN_ORDER = "plan-order", "updates out of turn raise PlanOrderError"
    ERRORS_CHANGE_NOTHING = "errors-change-nothing", "a call that raises leaves the state as it was"
    ABORT_ANSWER = "abort-answer", "abort returns the ids that were live, each once"
    HAS_WORK = "has-work", "has_work tells whether a request is live or a plan in flight"
    STATS = "stats", "stats() counts what happened"
    NO_CRASH = "no-crash", "no call raises anything that is not documented"
    LIVENESS = "liveness", "everything that was accepted ends"


class RuleBroken(Exception):
    """A check found a broken rule; stays inside the suite.

    Attributes:
        rule: The rule.
        message: What was seen.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(f"{rule.label}: {message}")
        self.rule = rule
        self.message = message


def require(holds: object, rule: Rule, message: str) -> None:
    """Raise ``RuleBroken`` unless the condition holds."""
    if not holds:
        raise RuleBroken(rule, message)
