"""What requests say of thinking: told to the template, enforced as a limit of tokens, or refused by name."""

from __future__ import annotations

import pytest
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.events import Text
from llm_stack_server.output_formats.formats import FORMATS, format_of_template
from llm_stack_server.output_formats.parser import OutputParser
from llm_stack_server.schemas.structured import StructuredFields
from llm_stack_server.thinking import ThinkingWish, switches_of, thinking_plan
from server_answers import CHAT, HI, both, client_of
from server_real_templates import template
from server_replay_engine import ReplayEngine
from test_server_fault_chat import QWEN, Retold

MINIMAX = "MiniMax-M2"  # always opens its thinking in the prompt
GPT_OSS = "openai-gpt-oss-120b"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
THOUGHT = "I wonder what that is. " * 20


class Thinker(ReplayEngine):
    """Thinks on and on; where a prompt ends its thinking it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = "Yes."
        self.opening = "<think>\n"
        self.ending = "</think>"

    async def generate(self, prompt, params, **more):
        text = self.tokenizer.decode(prompt, skip_special_tokens=False).rstrip()
        self.script = self.answer if text.endswith(self.ending) else self.opening + THOUGHT
        async for delta in super().generate(prompt, params, **more):
            yield delta


@pytest.fixture
def thinker():
    engine = Thinker()
    engine.tokenizer = Retold(template(QWEN))
    return engine


def tokens_of(engine, text):
    return len(engine.tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("size", [1, 3, 7, 50])
@pytest.mark.parametrize("budget", [5, 20, 43])
async def test_thinking_ends_when_its_budget_is_spent(thinker, size, budget):
    thinker.tokens_per_step = size
    choice = await both(client_of(thinker), CHAT, HI | {"thinking_token_budget": budget, "max_tokens": 300})
    begun = thinker.tokenizer.encode("<think>\n" + THOUGHT, add_special_tokens=False)[:budget]
    thought = thinker.tokenizer.decode(begun).removeprefix("<think>").strip()
    assert choice["message"]["reasoning_content"].strip() == thought
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes.", "stop")


async def test_usage_counts_what_was_thought_and_the_end_of_it(thinker):
    answer = await client_of(thinker).post(CHAT, json=HI | {"thinking_token_budget": 20})
    usage = answer.json()["usage"]
    forced = tokens_of(thinker, "\n</think>\n\n")
    assert usage["completion_tokens"] == 20 + forced + tokens_of(thinker, "Yes.") + 1
    assert 20 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 20 + forced
    assert usage["prompt_tokens"] == len(thinker.seen[0][0])
    assert len(thinker.seen[1][0]) == len(thinker.seen[0][0]) + 20 + forced


@pytest.mark.parametrize("size", [1, 5])
async def test_thinking_that_ends_in_time_is_left_alone(thinker, size):
    thinker.tokens_per_step = size
    short = ReplayEngine()
    short.tokenizer, short.tokens_per_step = thinker.tokenizer, size
    short.script = "<think>\nHm.\n</think>\n\n" + "A long answer. " * 20
    choice = await both(client_of(short), CHAT, HI | {"thinking_token_budget": 30})
    assert choice["message"]["reasoning_content"].strip() == "Hm."
    assert choice["message"]["content"].strip() == ("A long answer. " * 20).strip()
    short.script = "No thinking, but an answer. " * 20
    choice = await both(client_of(short), CHAT, HI | {"thinking_token_budget": 3})
    assert "reasoning_content" not in choice["message"]
    assert len(short.seen) == 4  # whole and streamed: no second request


@pytest.mark.parametrize("limit", [21, 24, 26, 27])
async def test_the_limit_of_the_answer_counts_thinking(thinker, limit):
    body = HI | {"thinking_token_budget": 20, "max_tokens": limit}
    answer = (await client_of(thinker).post(CHAT, json=body)).json()
    assert answer["usage"]["completion_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_no_thinking_at_all(thinker):
    thinker.tokenizer = Retold(template(MINIMAX))
    choice = await both(client_of(thinker), CHAT, HI | {"thinking_token_budget": 0})
    assert choice["message"]["content"] == "Yes."
    assert not choice["message"].get("reasoning_content", "").strip()


async def test_a_constraint_begins_behind_the_forced_end(thinker):
    form = StructuredFields.model_validate({"guided_regex": "Yes."}).model_dump(exclude_none=True)
    response = await client_of(thinker).post(CHAT, json=HI | {"thinking_token_budget": 9} | form)
    assert response.status_code == 200
    first, second = (params.grammar for _, params in thinker.seen)
    assert first.after == "</think>"
    assert (second.after, second.opens, second.text) == ("", "", "Yes.")


async def test_harmony_goes_on_in_its_final_channel(thinker):
    thinker.tokenizer = Retold(template(GPT_OSS))
    thinker.opening, thinker.ending = "<|channel|>analysis<|message|>", "final<|message|>"
    choice = await both(client_of(thinker), CHAT, HI | {"thinking_token_budget": 30})
    assert choice["message"]["content"] == "Yes."
    assert choice["message"]["reasoning_content"].startswith("I wonder")


async def test_anthropics_budget(thinker):
    body = {
        "max_tokens": 300,
        "messages": HI["messages"],
        "thinking": {"type": "enabled", "budget_tokens": 20},
    }
    blocks = (await client_of(thinker).post(MESSAGES, json=body)).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[1]["text"] == "Yes."


async def test_efforts_that_the_template_has_no_word_for_are_budgets(thinker, monkeypatch):
    monkeypatch.setattr("llm_stack_server.thinking.EFFORT_TOKENS", {"low": 20, "high": None})
    for path, body, answer in (
        (CHAT, HI | {"reasoning_effort": "low"}, "Yes."),
        (RESPONSES, {"input": "hi", "reasoning": {"effort": "low"}}, "Yes."),
    ):
        response = await client_of(thinker).post(path, json=body)
        assert response.status_code == 200, response.text
        assert answer in response.text
        assert len(thinker.seen) == 2
        thinker.seen.clear()


async def test_no_effort_closes_the_thinking_in_the_prompt(thinker):
    await client_of(thinker).post(CHAT, json=HI | {"reasoning_effort": "none"})
    [(prompt, _)] = thinker.seen
    assert thinker.tokenizer.decode(prompt).rstrip().endswith("</think>")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"skip_special_tokens": True}, "skip_special_tokens"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs",
        ),
    ],
)
async def test_what_excludes_a_budget_is_named(thinker, more, param):
    response = await client_of(thinker).post(CHAT, json=HI | {"thinking_token_budget": 5} | more)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert thinker.seen == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HI["messages"], "reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"messages": HI["messages"], "thinking_token_budget": 9}, "thinking_token_budget"),
        (RESPONSES, {"input": "hi", "reasoning": {"effort": "medium"}}, "reasoning.effort"),
        (RESPONSES, {"input": "hi", "reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        (
            MESSAGES,
            {
                "messages": HI["messages"],
                "max_tokens": 9,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            "thinking.budget_tokens",
        ),
    ],
)
async def test_a_model_that_does_not_think_says_so(path, body, param):
    engine = ReplayEngine()
    response = await client_of(engine).post(path, json=body)
    assert response.status_code == 400, response.text
    assert param in response.text
    assert engine.seen == []


async def test_models_that_do_not_think_take_no_effort_and_adaptive_thinking():
    http = client_of(ReplayEngine())
    assert (await http.post(CHAT, json=HI | {"reasoning_effort": "none"})).status_code == 200
    body = {"messages": HI["messages"], "max_tokens": 9, "thinking": {"type": "adaptive"}}
    assert (await http.post(MESSAGES, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("name", "effort", "variables", "budget"),
    [
        (QWEN, "none", {"enable_thinking": False}, None),
        (QWEN, "low", {"enable_thinking": True}, 1024),
        (QWEN, "high", {"enable_thinking": True}, None),
        (MINIMAX, "none", {}, 0),
        ("MiniMax-M3", "none", {"thinking_mode": "disabled"}, None),
        ("MiniMax-M3", "medium", {"thinking_mode": "enabled"}, 4096),
        ("Kimi-K3", "low", {"thinking": True, "thinking_effort": "low"}, None),
        ("Kimi-K3", "medium", {"thinking": True}, 4096),
        ("Kimi-K3", "none", {"thinking": False}, None),
        ("tencent-Hy3", "none", {"reasoning_effort": "no_think"}, None),
        ("tencent-Hy3", "medium", {"reasoning_effort": "high"}, 4096),
        ("tencent-Hy3", "low", {"reasoning_effort": "low"}, None),
        ("google-gemma-4-31B-it", "low", {"enable_thinking": True}, 1024),
        ("openbmb-MiniCPM5-1B", "none", {"enable_thinking": False}, None),
        ("ByteDance-Seed-OSS", "low", {"thinking_budget": 1024}, 1024),
        (GPT_OSS, "low", {"reasoning_effort": "low"}, None),
        (GPT_OSS, "minimal", {"reasoning_effort": "low"}, 256),
        ("deepseek-ai-DeepSeek-V3.1", "none", {"thinking": False}, None),
        ("deepseek-ai-DeepSeek-V4", "max", {"enable_thinking": True, "reasoning_effort": "max"}, None),
    ],
)
def test_each_model_is_told_in_its_own_words(name, effort, variables, budget):
    source = template(name)
    wish = ThinkingWish(field="reasoning_effort", effort=effort)
    plan = thinking_plan(source, format_of_template(source), wish, None)
    assert variables.items() <= plan.variables.items()
    assert plan.budget == budget
    assert set(plan.variables) <= {*variables, *switches_of(source, thinks=True)}


def test_every_forced_end_ends_the_thinking():
    for one in FORMATS:
        if not one.forced_end:
            continue
        start = one.reasoning[0] if one.reasoning else "<|channel|>analysis<|message|>"
        parser = OutputParser(one, Tools())
        parser.feed(f"{start}I wonder")
        assert parser.is_thinking, one.name
        parser.feed(one.forced_end)
        events = [*parser.feed("Yes."), *parser.finish()]
        assert not parser.is_thinking, one.name
        assert "".join(e.text for e in events if isinstance(e, Text)) == "Yes.", one.name
