"""The judgement of requests whose steps the core died in, its record, and the way of messages; no process."""

import numpy as np
import pytest
from llm_engine import InvalidOption, RestartPolicy
from llm_engine.core.core_state import CoreOrders
from llm_engine.core.messages import AddRequest, Row, StepOutputs, front_of, request_id_of
from llm_engine.core.step_journal import JournalEntry, StepJournal, read_journal
from llm_engine.core.suspicion import PROOF_TOKENS, DeathLedger, SuspectWard
from llm_engine.live_requests import Choice
from llm_engine.worker.row_params import RowParams


class Plan:
    """What a journal reads of a plan."""

    def __init__(self, slots, admitted=()):
        self.slots = np.array(slots, np.int32)
        self.admitted = [NewRow(*pair) for pair in admitted]


class NewRow:
    def __init__(self, slot, request_id):
        self.slot, self.request_id = slot, request_id


def message(request_id, **changes):
    fields = {
        "request_id": request_id,
        "token_ids": np.array([1, 2, 3], "<i4").tobytes(),
        "max_tokens": 8,
        "min_tokens": 0,
        "stop_token_ids": [],
        "priority": 0,
        "match_prefix": True,
        "params": RowParams(seed=0),
    }
    return AddRequest(**{**fields, **changes})


def tokens_of(request_id, count, **fields):
    return StepOutputs(rows=[Row(request_id=request_id, tokens=[7] * count, **fields)])


def test_a_journal_tells_the_two_steps_that_may_run(tmp_path):
    path = tmp_path / "journal"
    journal = StepJournal(path)
    assert read_journal(path) == JournalEntry()
    journal.planned(Plan([0, 1], [(0, "1.a"), (1, "1.b")]))
    assert read_journal(path).running == ["1.a", "1.b"]
    journal.planned(Plan([1, 2], [(2, "1.c")]))
    assert sorted(read_journal(path).running) == ["1.a", "1.b", "1.c"]
    journal.planned(Plan([1, 2]))
    assert sorted(read_journal(path).running) == ["1.b", "1.c"]
    journal.planned(Plan([1, 2]))
    assert sorted(read_journal(path).running) == ["1.b", "1.c"]


def test_a_journal_tells_who_is_being_taken_in_and_who_passed(tmp_path):
    path = tmp_path / "journal"
    journal = StepJournal(path)
    journal.arriving("1.a")
    assert read_journal(path).running == ["1.a"]
    journal.settled(["1.a"])
    journal.arriving("1.b")  # its grammar is being compiled until it is in a plan
    assert read_journal(path).running == ["1.b"]
    journal.planned(Plan([0], [(0, "1.b")]))
    journal.clear(["1.z"])
    assert read_journal(path) == JournalEntry(["1.b"], ["1.z"])


def test_a_journal_that_was_cut_off_tells_nothing(tmp_path):
    assert read_journal(tmp_path / "none") == JournalEntry()
    (tmp_path / "short").write_bytes(b"\x00" * 5)
    assert read_journal(tmp_path / "short") == JournalEntry()


def test_one_death_is_held_against_nobody():
    ledger = DeathLedger(2)
    assert ledger.note_death(JournalEntry(["1.a", "1.b"])) == {}
    assert ledger.orders() == CoreOrders(suspects=["1.a", "1.b"], one_at_a_time=[])


def test_who_alone_was_there_twice_ends():
    ledger = DeathLedger(2)
    ledger.note_death(JournalEntry(["1.a", "1.b"]))
    (ended,) = ledger.note_death(JournalEntry(["1.b", "1.c"])).items()
    assert ended[0] == "1.b"
    assert "died 2 times" in ended[1]
    assert ledger.orders().one_at_a_time == []


def test_progress_between_two_deaths_clears():
    ledger = DeathLedger(2)
    ledger.note_death(JournalEntry(["1.a"]))
    assert ledger.note_death(JournalEntry(["1.a"], cleared=["1.a"])) == {}


@pytest.mark.parametrize("num_requests", [2, 5, 64])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_one_culprit_among_many_is_found_with_one_death_more_than_the_limit(num_requests, limit):
    """Cores that die where the culprit runs, one after the other, by the rules of both sides."""
    ids = [f"1.{index}" for index in range(num_requests)]
    culprit = ids[num_requests // 2]
    ledger = DeathLedger(limit)
    ended = {}
    deaths = 0
    while not ended:
        ward = SuspectWard(ledger.orders())
        running = [one for one in ids if ward.admits(message(one))]
        cleared = []
        while culprit not in running:
            for one in list(running):
                cleared += ward.note(tokens_of(one, PROOF_TOKENS))
            trial = ward.next_on_trial()
            assert trial is not None
            running.append(trial.request_id)
        deaths += 1
        ended = ledger.note_death(JournalEntry(running, cleared))
        assert deaths <= limit + 1
    assert list(ended) == [culprit]


def test_a_suspect_that_ends_or_is_aborted_makes_room_for_the_next():
    ward = SuspectWard(CoreOrders(suspects=["1.a", "1.b", "1.c"], one_at_a_time=["1.a", "1.b", "1.c"]))
    assert ward.admits(message("1.x"))
    assert [ward.admits(message(one)) for one in ("1.a", "1.b", "1.c")] == [True, False, False]
    assert ward.next_on_trial() is None
    assert ward.note(tokens_of("1.a", PROOF_TOKENS - 1)) == []
    assert ward.next_on_trial() is None
    assert ward.note(tokens_of("1.a", 1)) == ["1.a"]
    assert ward.next_on_trial().request_id == "1.b"
    assert ward.abort(["1.b", "1.c"]) in (["1.b", "1.c"], ["1.c", "1.b"])
    assert ward.next_on_trial() is None
    assert ward.is_idle


def test_an_early_end_clears_a_suspect():
    ward = SuspectWard(CoreOrders(suspects=["1.a"]))
    assert ward.note(tokens_of("1.a", 1, finish_reason="stop")) == ["1.a"]


def test_ids_name_their_front_end():
    assert request_id_of(12, 7) == "12.7"
    assert front_of("12.7") == 12
    assert front_of("seven") == -1


def test_a_resumed_choice_says_what_it_has_and_asks_for_the_prompt_s_log_probabilities_once():
    asked = message("1.a", params=RowParams(seed=0, prompt_logprobs=1), match_prefix=False)
    choice = Choice(index=0, message=asked, stop_reasons={})
    again = choice.resumed()
    assert (again.resumed, again.output_ids, again.params, again.match_prefix) == (
        True,
        b"",
        asked.params,
        False,
    )
    choice.has_begun = True
    choice.log.extend([5, 6])
    again = choice.resumed()
    assert np.frombuffer(again.output_ids, "<i4").tolist() == [5, 6]
    assert (again.params.prompt_logprobs, again.match_prefix) == (None, True)
    assert again.token_ids == asked.token_ids


def test_waits_between_restarts_double_up_to_a_bound():
    policy = RestartPolicy(first_backoff_s=0.0, second_backoff_s=0.5, max_backoff_s=3.0)
    assert [policy.backoff_s(deaths) for deaths in range(1, 7)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.backoff_s(10_000) == 3.0


@pytest.mark.parametrize(
    "wrong", [{"max_deaths": 0}, {"window_s": 0.0}, {"hang_timeout_s": -1.0}, {"max_backoff_s": float("nan")}]
)
def test_a_policy_names_what_is_wrong(wrong):
    (name,) = wrong
    with pytest.raises(InvalidOption, match=name):
        RestartPolicy(**wrong)
