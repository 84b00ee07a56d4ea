"""Grammars are compiled beside the step loop: others go on, limits hold, nobody waits for ever."""

import json
import threading
import time

import numpy as np
import pytest
from conftest import SMALL
from llm_engine import LLM
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.grammar_waits import GrammarWaits
from llm_engine.core.messages import Abort, AddRequest
from llm_engine.grammar import GrammarSpec, InvalidGrammar
from llm_engine.grammar.background import BackgroundCompiler
from llm_engine.worker.row_params import RowParams
from msgspec import structs


def choice(*texts):
    return GrammarSpec(kind="choice", text=json.dumps(texts))


class Gate:
    """Compiles a spec when its text is let through; "bad" fails."""

    def __init__(self):
        self.open = threading.Event()
        self.compiled = []

    def find(self, spec):
        return spec if spec in self.compiled else None

    def prepare(self):
        pass

    def compile(self, spec):
        if spec.text == "bad":
            raise InvalidGrammar("bad")
        if spec.text.startswith("slow"):
            self.open.wait(20)
        self.compiled.append(spec)
        return spec


def spec(text):
    return GrammarSpec(kind="regex", text=text)


def until(call, found, limit_s=5.0):
    """Asks until so many answers are there."""
    answers, end_s = [], time.monotonic() + limit_s
    while len(answers) < found:
        assert time.monotonic() < end_s, answers
        answers += call()
        time.sleep(0.001)
    return dict(answers)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def test_a_slow_one_holds_up_no_other(gate):
    background = BackgroundCompiler(lambda: gate)
    background.begin("a", spec("slow"))
    background.begin("b", spec("quick"))
    background.begin("c", spec("bad"))
    background.begin("d", spec("slow"))
    assert until(background.finished, 2) == {"b": None, "c": "bad"}
    assert background.grammar("a") is None
    gate.open.set()
    assert until(background.finished, 2) == {"a": None, "d": None}
    assert background.grammar("a") is background.grammar("d")
    assert len(gate.compiled) == 2  # a and d share one compilation
    background.release("a")
    assert background.grammar("a") is None
    assert background.grammar("d") is not None
    background.begin("e", spec("slow"))
    assert background.finished() == [("e", None)]  # remembered: no thread is asked
    background.close()


def test_one_that_fails_while_it_is_asked_for_is_not_told_as_done(gate):
    """Its request would be admitted without a grammar, and the step would fail with all its requests."""

    class Background(BackgroundCompiler):
        def _overdue(self, job, now_s):
            deadline_s = time.monotonic() + 5
            while not job.is_done:
                assert time.monotonic() < deadline_s
                time.sleep(0.001)
            return super()._overdue(job, now_s)

    background = Background(lambda: gate)
    background.begin("a", spec("bad"))
    assert until(background.finished, 1) == {"a": "bad"}
    background.close()


def test_time_limits(gate):
    before = threading.active_count()  # of tests in the same process
    background = BackgroundCompiler(lambda: gate, compile_limit_s=0.05, queue_limit_s=0.3)
    for index in range(12):
        background.begin(str(index), spec(f"slow {index}"))
    told = until(background.finished, 12)
    assert "longer than 0.05 s" in told["0"]
    assert "wait too long for others" in told["11"]
    assert threading.active_count() < before + 12
    gate.open.set()
    background.begin("later", spec("quick"))
    assert until(background.finished, 1) == {"later": None}
    background.close()


def test_what_nobody_waits_for_is_not_compiled(gate):
    background = BackgroundCompiler(lambda: gate)
    for name in ("slow a", "slow b", "slow c"):
        background.begin(name, spec(name))
    time.sleep(0.05)
    background.release("slow c")
    gate.open.set()
    assert until(background.finished, 2) == {"slow a": None, "slow b": None}
    assert spec("slow c") not in gate.compiled
    background.close()


class Ranks:
    """Two ranks that answer as they are told."""

    mesh_size = 2

    def __init__(self):
        self.answers = []
        self.told = []

    def call(self, method, wanted, ended):
        assert method == "compile_grammars"
        self.told.append((wanted, ended))
        return self.answers.pop(0) if self.answers else [[], []]


def test_every_rank_must_have_a_grammar():
    ranks = Ranks()
    waits = GrammarWaits(ranks)
    ranks.answers = [[[("a", None)], []], [[("b", None)], [("a", None), ("b", "bad")]]]
    waits.add("a", spec("x"))
    assert waits.finished() == []
    waits.add("b", spec("y"))
    assert waits.finished() == [("a", None), ("b", "bad")]
    assert waits.finished() == []
    waits.end(["a", "b", "stranger"])
    waits.add("c", spec("z"))
    waits.finished()
    assert ranks.told[-1] == ([("c", spec("z"))], ["a", "b"])


def ask(request_id, prompt, grammar=None, max_tokens=40):
    return AddRequest(
        request_id=request_id,
        token_ids=np.asarray(prompt, "<i4").tobytes(),
        max_tokens=max_tokens,
        min_tokens=0,
        stop_token_ids=[2],
        priority=0,
        match_prefix=True,
        params=RowParams(seed=0, temperature=0.0, grammar=grammar, stop_token_ids=(2,)),
    )


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"])
def core(request):
    """A core with the real model, and a way to hold back what its worker compiles."""
    engine = LLM("smollm2", **SMALL | {"overlap": request.param})
    core = engine._client._core
    assert isinstance(core, EngineCore)
    background = core._executor._worker._grammars
    compiler, let_through = background.compiler, threading.Event()

    class Held:
        inner = compiler

        def find(self, spec):
            return compiler.find(spec)

        def prepare(self):
            compiler.prepare()

        def compile(self, spec):
            assert let_through.wait(30)
            return compiler.compile(spec)

    background._compiler = Held()
    yield core, let_through, background
    let_through.set()
    engine.shutdown()


def test_other_rows_go_on_while_a_grammar_is_compiled(core, tokenizer):
    core, let_through, background = core
    prompt = tokenizer.encode("Once upon a time")
    core.intake([ask("other", prompt, max_tokens=60), ask("tree", prompt, choice("an oak", "a lime"))])
    rows = [row for _ in range(30) for row in core.step().rows]
    assert {row.request_id for row in rows} == {"other"}
    assert sum(len(row.tokens) for row in rows) >= 28
    assert core.stats().running == 1
    assert core.stats().waiting == 1
    let_through.set()
    texts = {"other": [], "tree": []}
    while core.has_work():
        for row in core.step().rows:
            assert row.error is None
            texts[row.request_id] += row.tokens
    assert tokenizer.decode(texts["tree"][:-1]) in ("an oak", "a lime")
    assert core.stats().requests_finished["stop"] == 1
    core.intake([Abort(["tree"])])
    core.intake([ask("next", prompt, choice("an oak", "a lime"))])
    while core.has_work():
        core.step()
    assert set(background._kept) <= {"next"}


def test_a_resumed_request_goes_on_within_its_grammar(core, tokenizer):
    """As after the end of another core: what was written counts, the rest is as it would have been."""
    core, let_through, _ = core
    let_through.set()
    spec, prompt = choice("an oak by the river", "an oak in the snow"), tokenizer.encode("Once upon a time")
    whole = run(core, ask("first", prompt, spec))
    begun = np.asarray(whole[:3], "<i4").tobytes()
    resumed = structs.replace(ask("second", prompt, spec), output_ids=begun, resumed=True)
    assert whole[:3] + run(core, resumed) == whole
    assert tokenizer.decode(whole[:-1]) in ("an oak by the river", "an oak in the snow")


def run(core, request):
    """The tokens that a request gains."""
    core.intake([request])
    tokens = []
    while core.has_work():
        for row in core.step().rows:
            assert row.error is None
            tokens += row.tokens
    return tokens


def test_the_table_of_the_vocabulary_is_made_when_the_engine_is_idle(core):
    core, _, background = core
    assert core.use_idle_time()  # comes back at once; a thread makes it
    backend = background.compiler.inner._backend("llguidance")
    end_s = time.monotonic() + 20
    while backend._tokens is None:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_while_it_waits_it_may_be_aborted_or_refused(core, tokenizer):
    core, let_through, background = core
    prompt = tokenizer.encode("Once upon a time")
    core.intake([ask("gone", prompt, choice("x")), ask("bad", prompt, spec("("))])
    assert core.step().rows == []
    assert not core.made_progress
    core.intake([Abort(["gone"])])
    let_through.set()
    refusals = []
    while core.has_work():
        outputs = core.step()
        assert not outputs.rows
        refusals += outputs.refusals
    [refusal] = refusals
    assert (refusal.request_id, refusal.field) == ("bad", "grammar")
    assert "regex" in refusal.message
    assert core.stats().requests_finished["abort"] == 2
    assert not background._kept


def test_a_scheduler_that_knows_no_waiting_gets_compiled_grammars(core, tokenizer):
    core, let_through, _ = core
    let_through.set()
    core._ready = None
    prompt = tokenizer.encode("Once upon a time")
    core.intake([ask("tree", prompt, choice("an oak")), ask("bad", prompt, spec("("))])
    tokens, refusals = [], []
    while core.has_work():
        outputs = core.step()
        refusals += outputs.refusals
        tokens += [token for row in outputs.rows for token in row.tokens]
    assert tokenizer.decode(tokens[:-1]) == "an oak"
    assert [refusal.request_id for refusal in refusals] == ["bad"]
