"""The grammars of a worker's rows: masks are filled while the forward pass runs, and fit the rows."""

import threading

import numpy as np
import pytest
from llm_engine.grammar import compiler as compiler_module
from llm_engine.grammar.spec import GrammarSpec
from llm_engine.worker import grammar_rows
from llm_engine.worker.errors import PlanError
from llm_engine.worker.grammar_rows import GrammarRows
from llm_engine.worker.row_params import RowParams
from llm_scheduler import NewRow, Ragged, StepPlan, StepResult


class Prepared:
    """Grammars by request, as `BackgroundCompiler` keeps them."""

    def __init__(self, **grammars):
        self.grammar = grammars.get


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return compiler_module.GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


@pytest.fixture
def rows(compiler):
    """Slot 0 has no grammar; slot 1 must say a letter and a digit, slot 2 digits."""
    rows = GrammarRows(
        Prepared(
            one=compiler.compile(GrammarSpec(kind="regex", text="[ac][05]")),
            two=compiler.compile(GrammarSpec(kind="regex", text="[0-9]+")),
        )
    )
    for slot, name in enumerate(("none", "one", "two")):
        grammar = None if name == "none" else GrammarSpec(kind="regex")
        payload = RowParams(seed=0, grammar=grammar)
        rows.admit(NewRow(slot, name, np.zeros(1, np.int32), 1, payload))
    yield rows
    rows.close()


def plan_of(step_id, slots):
    return StepPlan(
        step_id=step_id,
        slots=np.array(slots, np.int32),
        num_tokens=np.ones(len(slots), np.int32),
        num_computed=np.zeros(len(slots), np.int32),
        samples=np.ones(len(slots), np.bool_),
        new_blocks=(Ragged.empty(len(slots)),),
        admitted=[],
        released=np.zeros(0, np.int32),
        transfers=np.zeros((0, 3), np.int32),
    )


def allowed(mask, entry, token):
    bits = mask.bits[mask.rows.tolist().index(entry)]
    return bool(bits[token // 32] >> (token % 32) & 1)


def test_masks_are_filled_while_the_forward_pass_runs(rows, tokenizer, monkeypatch):
    let_through, fill = threading.Event(), grammar_rows.fill_masks

    def slow(matchers, bits):
        assert let_through.wait(10)
        assert threading.current_thread() is not threading.main_thread()
        fill(matchers, bits)

    monkeypatch.setattr(grammar_rows, "fill_masks", slow)
    plan, every = plan_of(0, [2, 0, 1]), np.arange(3)
    rows.begin(plan, every)  # does not wait: here the forward pass runs
    let_through.set()
    mask = rows.masks(plan, every, {})
    assert mask.rows.tolist() == [0, 2]
    seven, letter = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ("7", "a"))
    assert allowed(mask, 0, seven)
    assert not allowed(mask, 0, letter)
    assert allowed(mask, 2, letter)
    assert not allowed(mask, 2, seven)


def test_a_step_that_failed_before_its_draw_leaves_nothing_behind(rows, tokenizer):
    every = np.arange(2)
    rows.begin(plan_of(0, [1, 2]), every)
    again = plan_of(1, [2, 0])
    rows.begin(again, every)
    mask = rows.masks(again, every, {})
    assert mask.rows.tolist() == [0]
    assert allowed(mask, 0, tokenizer.encode("7", add_special_tokens=False)[0])


@pytest.mark.parametrize("ahead", [False, True], ids=["behind the pass", "during the pass"])
def test_the_tokens_of_the_step_before_count(rows, tokenizer, ahead):
    letter, after = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ("a", "5"))
    first, second, every = plan_of(0, [1]), plan_of(1, [1]), np.arange(1)
    assert allowed(rows.masks(first, every, {}), 0, letter)
    result = StepResult(0, Ragged.from_rows([[letter]]))
    rows.note(first, every, lambda: result)
    if ahead:
        rows.begin(second, every)
    mask = rows.masks(second, every, {})
    assert allowed(mask, 0, after)
    assert not allowed(mask, 0, letter)


def test_a_step_that_costs_too_much_is_a_fault_of_its_row(rows, monkeypatch):
    class Broken:
        fault, num_words = "too much", 1536

    monkeypatch.setattr(grammar_rows, "fill_masks", lambda _matchers, _bits: None)
    rows._matchers[1] = Broken()
    faults = {}
    mask = rows.masks(plan_of(0, [0, 1, 2]), np.arange(3), faults)
    assert faults == {1: "the grammar cannot go on: too much"}
    assert (mask.bits[0] == -1).all()
    rows.release(np.array([1, 2], np.int32))
    assert rows.masks(plan_of(1, [0, 1]), np.arange(2), {}) is None


def test_a_grammar_that_was_not_compiled_is_refused(rows):
    row = NewRow(
        3, "stranger", np.zeros(1, np.int32), 1, RowParams(seed=0, grammar=GrammarSpec(kind="regex"))
    )
    with pytest.raises(PlanError, match="stranger"):
        rows.admit(row)
