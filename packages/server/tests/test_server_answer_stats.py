"""What `llm-stack generate --stats` tells."""

from __future__ import annotations

from llm_engine.outputs import RequestDelta
from llm_stack_server.cli.answer_stats import AnswerStats


def _delta(*token_ids: int) -> RequestDelta:
    return RequestDelta(request_id="a", index=0, text="", token_ids=token_ids, num_prompt_tokens=30)


def test_the_rate_is_that_of_the_tokens_after_the_first() -> None:
    times = iter([10.0, 12.5, 12.75, 13.25, 13.75])
    stats = AnswerStats(lambda: next(times))
    stats.asked()
    stats.note(_delta(1))
    stats.note(_delta(2, 3))
    stats.note(_delta(4))
    assert stats.line() == (
        "model ready after 2.50 s; first token 0.250 s after 30 prompt tokens; 4 tokens at 3.0 a second"
    )


def test_an_answer_of_one_token_has_no_rate() -> None:
    times = iter([0.0, 1.0, 1.5])
    stats = AnswerStats(lambda: next(times))
    stats.asked()
    stats.note(_delta(1))
    assert stats.line().endswith("; 1 tokens")


def test_no_token_at_all() -> None:
    times = iter([0.0, 1.0, 1.5])
    stats = AnswerStats(lambda: next(times))
    stats.asked()
    stats.note(_delta())
    assert stats.line() == "model ready after 1.00 s; 0 tokens"
