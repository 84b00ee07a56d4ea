"""What a request says of thinking, in any API's words: for the template, and as a limit of tokens.

A wish is told to the template where it has a variable for it. What a template cannot be told is enforced by a
budget of tokens (`thinking_budget`). What neither can do is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_engine.sampling_params import SamplingParams

from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.output_formats.calls import Tools
from llm_stack_server.output_formats.format import Format
from llm_stack_server.output_formats.parser import OutputParser, Thinking, thinking_after
from llm_stack_server.prompts import Prompt
from llm_stack_server.thinking_budget import ThinkingBudget

# Tokens of thinking for an effort that the template has no word for; None: as many as the model likes.
EFFORT_TOKENS: Mapping[str, int | None] = {
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": None,
    "xhigh": None,
    "max": None,
}
_HARMONY_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
_OFF_WORDS = ("no_think", "none")
_EFFORT_NAMES = ("reasoning_effort", "thinking_effort")
# How a template asks for a switch, rather than only speaking of thinking.
_SWITCHES: Mapping[str, re.Pattern[str]] = {
    "enable_thinking": re.compile(r"(?<![\w.'\"])enable_thinking\b"),
    "thinking": re.compile(r"(?:(?:if|and|or|not)\s+|\{%-?\s*set\s+\w+\s*=\s*)thinking\b(?!\s*=)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingWish:
    """What a body says.

    Attributes:
        field: The field that says it.
        thinks: Whether the model is to think; None: nothing was said, or an effort or budget says it.
        effort: "none", "minimal", "low", "medium", "high", "xhigh" or "max".
        budget: Tokens of thinking at most.
        budget_field: The field of the budget, where it is another one.
    """

    field: str
    thinks: bool | None = None
    effort: str | None = None
    budget: int | None = None
    budget_field: str = ""


@dataclass(frozen=True, slots=True)
class ThinkingPlan:
    """How a wish is met: variables of the template, and tokens at most."""

    field: str
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    budget: int | None = None


def thinking_plan(
    template: str, output_format: Format | None, wish: ThinkingWish, given: Mapping[str, Any] | None
) -> ThinkingPlan:
    """How a wish can be met by a model.

    Args:
        template: Its chat template.
        output_format: How it marks thinking.
        wish: What the body says.
        given: The body's own variables of the template, which win where they say the same.

    Raises:
        UnsupportedField: The model cannot be told this.
        InvalidField: The body's own variables say otherwise.
    """
    thinks = wish.thinks if wish.effort is None else wish.effort != "none"
    budget_field = wish.budget_field or wish.field
    can_think = output_format is not None and output_format.forced_end != ""
    if wish.budget is not None and not can_think:
        raise _cannot(budget_field, "does not think in a form that is known")
    variables, limit = _told(template, output_format, wish, thinks=thinks)
    budget = limit if wish.budget is None else wish.budget
    if budget and "thinking_budget" in template:
        variables["thinking_budget"] = budget
    for name, value in variables.items():
        if given is not None and name in given and given[name] != value:
            raise InvalidField(
                "chat_template_kwargs",
                f"chat_template_kwargs: {name!r} and {wish.field} say different things",
            )
    return ThinkingPlan(budget_field if wish.budget is not None else wish.field, variables, budget)


def _told(
    template: str, output_format: Format | None, wish: ThinkingWish, *, thinks: bool | None
) -> tuple[dict[str, Any], int | None]:
    """The template's variables, and the budget for what it has no word for."""
    if thinks is None:
        return {}, None
    variables = switches_of(template, thinks=thinks)
    can_think = output_format is not None and output_format.forced_end != ""
    is_harmony = output_format is not None and output_format.answer is not None
    effort_name = next((name for name in _EFFORT_NAMES if name in template), None)
    if not thinks:
        off = next((word for word in _OFF_WORDS if effort_name and _says(template, word)), None)
        if not variables and off is not None:
            return {effort_name or "": off}, None
        if variables or not can_think:
            return variables, None
        if is_harmony:
            raise _cannot(wish.field, "always thinks")
        return {}, 0
    if not can_think and not variables and effort_name is None:
        raise _cannot(wish.field, "does not think")
    if effort_name is not None and _says(template, "no_think"):
        # Hunyuan's template does not think unless it is told how much.
        variables[effort_name] = "low" if wish.effort in ("minimal", "low") else "high"
        return variables, EFFORT_TOKENS[wish.effort] if wish.effort in ("minimal", "medium") else None
    if wish.effort is None:
        return variables, None
    limit = EFFORT_TOKENS[wish.effort]
    if is_harmony and effort_name is not None:
        effort = _HARMONY_EFFORTS.get(wish.effort, wish.effort)
        return {**variables, effort_name: effort}, limit if wish.effort == "minimal" else None
    for word in (wish.effort, "max" if wish.effort == "xhigh" else ""):
        if word and effort_name is not None and _says(template, word):
            return {**variables, effort_name: word}, None
    if limit is not None and not can_think:
        raise _cannot(wish.field, f"cannot be told to think with effort {wish.effort!r}")
    return variables, limit


def switches_of(template: str, *, thinks: bool) -> dict[str, Any]:
    """The template's variables that turn thinking on or off, with what they are then."""
    switches: dict[str, Any] = {
        name: thinks for name, pattern in _SWITCHES.items() if pattern.search(template)
    }
    if "thinking_mode is defined" in template and _says(template, "disabled"):
        switches["thinking_mode"] = "enabled" if thinks else "disabled"
    return switches


def _says(template: str, word: str) -> bool:
    return f"'{word}'" in template or f'"{word}"' in template


def _cannot(param: str, why: str) -> UnsupportedField:
    return UnsupportedField(param, f"{param}: this model {why}")


def budget_of(
    plan: ThinkingPlan, output_format: Format | None, prompt: Prompt, params: SamplingParams
) -> ThinkingBudget | None:
    """The limit on an answer's thinking; None where it has none, or where the prompt leaves none to limit.

    Raises:
        InvalidField: Another field excludes a limit.
    """
    if plan.budget is None or output_format is None:
        return None
    free = output_format.answer is not None
    after = Thinking.FREE if free else thinking_after(output_format, prompt.text or "")
    if after is Thinking.CLOSED:
        return None
    excluded = {"n": params.n > 1, "logprobs": params.logprobs is not None}
    for name, is_given in excluded.items():
        if is_given:
            raise InvalidField(name, f"{name}: cannot be had with a limit on thinking ({plan.field})")
    if params.skip_special_tokens:
        raise InvalidField(
            "skip_special_tokens",
            f"skip_special_tokens: hides the end of thinking, which {plan.field} limits",
        )
    if plan.budget == 0 and free:
        raise _cannot(plan.field, "always thinks")
    opening = output_format.reasoning[0] if output_format.reasoning and after is Thinking.FREE else ""
    return ThinkingBudget(
        num_tokens=plan.budget,
        opening=opening,
        ending=output_format.forced_end,
        new_parser=lambda: OutputParser(output_format, Tools(), after),
    )
