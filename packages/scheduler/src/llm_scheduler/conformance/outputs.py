"""Checks the outputs of ``update`` and ``fail`` against what each request must yield; knows no plans."""

from __future__ import annotations

from llm_scheduler.conformance.ledger import Entry, Ledger
from llm_scheduler.conformance.rules import Rule, require
from llm_scheduler.plan import RowOutput, StepResult


def check_updated(ledger: Ledger, entries: list[Entry], outputs: list[RowOutput], result: StepResult) -> int:
    """Check and note the outputs of a step; return how many requests ended with an error.

    Args:
        ledger: Where the outputs are noted.
        entries: The request of each row.
        outputs: What ``update`` returned.
        result: What it was given.

    Raises:
        RuleBroken: An output is missing, too many, or wrong.
    """
    rows = [row for row in range(len(entries)) if entries[row].is_live and _has_news(row, result)]
    _check_names([entries[row] for row in rows], outputs)
    num_errors = 0
    for row, output in zip(rows, outputs, strict=True):
        entry = entries[row]
        if row in result.faults:
            _check_error(ledger, entry, output, result.faults[row])
            num_errors += 1
            continue
        _check_tokens(ledger, entry, output, result.tokens.row(row).tolist())
        same = output.logprobs is result.logprobs.get(row)
        same = same and output.prompt_logprobs is result.prompt_logprobs.get(row)
        require(same, Rule.LOGPROBS, f"{entry.name} has the logprobs of another row, or none")
    return num_errors


def check_failed(ledger: Ledger, entries: list[Entry], outputs: list[RowOutput], message: str) -> int:
    """Check and note the outputs of a step that raised; return how many requests it ended."""
    live = [entry for entry in entries if entry.is_live]
    found, expected = sorted(o.request_id for o in outputs), sorted(entry.name for entry in live)
    text = f"fail gave outputs for {found}, live in the plan were {expected}"
    require(found == expected, Rule.ERROR_OUTPUTS, text)
    by_name = {output.request_id: output for output in outputs}
    for entry in live:
        _check_error(ledger, entry, by_name[entry.name], message)
    return len(live)


def _has_news(row: int, result: StepResult) -> bool:
    return row in result.faults or len(result.tokens.row(row)) > 0 or row in result.prompt_logprobs


def _check_names(entries: list[Entry], outputs: list[RowOutput]) -> None:
    found, expected = [output.request_id for output in outputs], [entry.name for entry in entries]
    require(found == expected, Rule.OUTPUT_ROWS, f"outputs for {found}, expected for {expected}")


def _check_tokens(ledger: Ledger, entry: Entry, output: RowOutput, sampled: list[int]) -> None:
    name, start = entry.name, len(entry.outputs)
    expected = entry.expected[start : start + len(sampled)]
    message = f"{name} has outputs {entry.outputs} and gets {output.tokens}, expected {expected}"
    require(list(output.tokens) == expected, Rule.OUTPUT_TOKENS, message)
    entry.outputs.extend(expected)
    is_done = len(entry.outputs) == len(entry.expected)
    reason = entry.expected_reason if is_done else None
    found = f"finish_reason {output.finish_reason!r} after {len(entry.outputs)} outputs"
    message = f"{name} has {found}, expected {reason!r}"
    require(output.finish_reason == reason, Rule.FINISH_REASON, message)
    stop_token = entry.outputs[-1] if reason == "stop" else None
    message = f"{name} has stop_token {output.stop_token}, expected {stop_token}"
    require(output.stop_token == stop_token, Rule.FINISH_REASON, message)
    require(output.error is None, Rule.ERROR_OUTPUTS, f"{name} has an error: {output.error}")
    message = f"{name} has num_cached_tokens {output.num_cached_tokens}, found were {entry.num_cached_tokens}"
    require(output.num_cached_tokens == entry.num_cached_tokens, Rule.CACHED_TOKENS, message)
    if reason is not None:
        ledger.close(entry, reason)


def _check_error(ledger: Ledger, entry: Entry, output: RowOutput, message: str) -> None:
    found = f"finish_reason {output.finish_reason!r}, error {output.error!r}"
    text = f"{entry.name} has {found}, expected {message!r}"
    right = output.finish_reason == "error" and output.error == message and not output.tokens
    require(right, Rule.ERROR_OUTPUTS, text)
    ledger.close(entry, "error")
