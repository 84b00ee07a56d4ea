"""Chat rendering against transformers, refusals, and what a hostile template may not do."""

import resource
import time
from dataclasses import dataclass
from datetime import datetime

import jinja2
import numpy as np
import pytest
from llm_tokenizer import InvalidArgument, TemplateError, Tokenizer
from llm_tokenizer.chat_template import ChatTemplates
from llm_tokenizer.template_sandbox import Limits
from tokenizer_chat_cases import CHATML, CONVERSATIONS, TEMPLATES, TOOLS
from transformers import PreTrainedTokenizerFast

VARIABLES = {"enable_thinking": False, "date_string": "30 Nov 2026"}


@pytest.fixture(scope="module")
def peer(smollm2_reference, smollm2):
    """transformers' tokenizer over the same vocabulary, template and special tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=smollm2_reference, chat_template=smollm2.chat_template, **smollm2.special_tokens
    )


def outcome(call):
    """The text, or `None` where the call refuses."""
    try:
        return call()
    except (TemplateError, InvalidArgument, jinja2.TemplateError, TypeError, ValueError):
        return None


def compare(ours, peer, messages, template, **options):
    theirs = outcome(
        lambda: peer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
    )
    mine = outcome(lambda: ours.render_chat(messages, template=template, **options))
    assert mine == theirs
    return mine


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_rendering_equals_transformers(smollm2, peer, template, conversation, tools):
    source, messages = TEMPLATES.get(template), CONVERSATIONS[conversation]
    for add_generation_prompt in (False, True):
        for variables in ({}, VARIABLES):
            options = {"tools": tools, "add_generation_prompt": add_generation_prompt, **variables}
            compare(smollm2, peer, messages, source, **options)
    options = {"tools": tools, "add_generation_prompt": False, "continue_final_message": True}
    compare(smollm2, peer, messages, source, **options)


def test_each_template_renders_something(smollm2, peer):
    rendered = {
        (template, name): compare(
            smollm2, peer, messages, TEMPLATES[template], tools=TOOLS, add_generation_prompt=True
        )
        for template in TEMPLATES
        for name, messages in CONVERSATIONS.items()
    }
    for template in TEMPLATES:
        texts = [text for (key, _), text in rendered.items() if key == template]
        assert sum(text is not None for text in texts) >= 5


def test_smollm2_prompt(smollm2):
    text = smollm2.render_chat([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("content", ["1, 2, 3,", "1, 2, 3,  ", "\n", [{"type": "text", "text": "1, 2,"}]])
@pytest.mark.parametrize("template", ["chatml", "thinking", "headers"])
def test_a_continued_message_stays_open(smollm2, peer, template, content):
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": content}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    text = compare(smollm2, peer, messages, TEMPLATES[template], **options)
    if content == "1, 2, 3,":
        assert text.endswith("1, 2, 3,")


def test_the_messages_of_the_caller_stay_as_they_are(smollm2):
    messages = [
        {"role": "user", "content": "a", "x": None},
        {"role": "assistant", "content": "b", "thinking": "t"},
    ]
    before = [dict(message) for message in messages]
    smollm2.render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert messages == before


@pytest.mark.parametrize(
    ("messages", "options", "field"),
    [
        ("Hi", {}, "messages"),
        ([], {}, "messages"),
        ({"role": "user"}, {}, "messages"),
        (["Hi"], {}, "messages[0]"),
        ([{"content": "Hi"}], {}, "messages[0].role"),
        ([{"role": 1, "content": "Hi"}], {}, "messages[0].role"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], {}, "messages[1].content"),
        ([{"role": "user", "content": {"text": "a"}}], {}, "messages[0].content"),
        ([{"role": "user", "content": "a"}], {"tools": "all"}, "tools"),
        ([{"role": "user", "content": "a"}], {"tools": [len]}, "tools"),
        ([{"role": "user", "content": "a"}], {"documents": ["a"]}, "documents"),
        ([{"role": "user", "content": "a"}], {"continue_final_message": True}, "continue_final_message"),
        (
            [{"role": "user", "content": None}],
            {"continue_final_message": True, "add_generation_prompt": False},
            "messages[0].content",
        ),
    ],
)
def test_bad_arguments_name_the_field(smollm2, messages, options, field):
    with pytest.raises(InvalidArgument) as caught:
        smollm2.render_chat(messages, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Only users, please: ž') }}", "^Only users, please: ž$"),
        ("{% if %}", "malformed, line 1"),
        ("\n{% for x in y %}", "malformed, line 2"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ missing.attribute }}", "undefined"),
        ("{{ messages[0].content.missing() }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(_x=1) %}", "underscore"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{% include 'other' %}", "failed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|undefined"),
    ],
)
def test_a_failing_template_is_a_template_error(smollm2, template, message):
    with pytest.raises(TemplateError, match=message):
        smollm2.render_chat([{"role": "user", "content": "Hi"}], template=template)


HOSTILE = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{{ a }}{% endfor %}{% endfor %}",
    "{{ range(10 ** 9) }}",
    "{{ 'a' * 1000000000 }}",
    "{{ [1] * 1000000000 }}",
    "{{ (['a'] * 1000000) * 1000000 }}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s|replace('a','aa') %}{% endfor %}",
    "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s.replace('a','aa') %}{% endfor %}",
    "{% set s = 'a' * 8000000 %}{{ s | replace('a', s) }}",
    "{% set s = 'a' * 8000000 %}{{ s.join(s) }}",
    "{% set s = 'a' * 8000000 %}{{ ([s] * 1000) | join }}",
    "{{ 'a' | center(1000000000) }}",
    "{{ 'a' | indent(1000000000, true) }}",
    "{{ 'a\nb'.ljust(1000000000) }}",
    "{{ '1'.zfill(1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ '%01000000000d' % 5 }}",
    "{{ '%01000000000d' | format(5) }}",
    "{{ '{:>1000000000}'.format(5) }}",
    "{{ '{:>{}}'.format(5, 1000000000) }}",
    "{{ ('{0:>99999}' * 90000).format(5) }}",
    "{{ 7 ** (7 ** 9) }}",
    "{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "{{ range(99999) | map('string') | map('center', 99999) | join }}",
    "{% set a='ab '*2000000 %}{% set b = a.split(' ') %}{{ b|length }}",
    (
        "{% set ns=namespace(l=[]) %}{% for i in range(600) %}{% set ns.l = ns.l + [('a'*7000000) ~ i] %"
        "}{% endfor %}"
    ),
    "{{ 1|round(100000000,'ceil') }}",
    "{{ ('a'*1000)|wordwrap(1,true,'b'*1000000)|length }}",
    "{{ ('a\\n'*1000)|indent('b'*1000000)|length }}",
    "{{ [1,2,3,4,5,6,7,8,9]|tojson(indent=100000000) }}",
    ("{% set ns=namespace(n=3) %}{% for i in range(40) %}{% set ns.n = ns.n*ns.n %}{% endfor %}{{ 1 }}"),
    "{{ ([[1]*8000000]*500)|sum(start=[])|length }}",
    "{% set s='a'*8000000 %}{{ [[s]]*300 }}",
    "{% set s='a'*8000000 %}{{ ([[s]]*300)|string|length }}",
    "{% set s='a'*8000000 %}{{ ([[s]]*300)|join|length }}",
    "{% set s='a'*8000000 %}{{ ([[s]]*300)|tojson|length }}",
    "{% set s='a'*8000000 %}{{ ([[s]]*300) ~ ''|length }}",
    (
        "{% set ns=namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l=[ns.l,ns.l] %}{% endfor %}{{ n"
        "s.l|tojson }}"
    ),
    (
        "{% set ns=namespace(l=[1],m=[1]) %}{% for i in range(40) %}{% set ns.l=[ns.l,ns.l] %}{% set ns."
        "m=[ns.m,ns.m] %}{% endfor %}{{ ns.l == ns.m }}"
    ),
    "{{ ('ж'*8000000)|list|length }}",
    (
        "{{ '%s%s%s%s%s%s%s%s'|format('a'*8000000,'a'*8000000,'a'*8000000,'a'*8000000,'a'*8000000,'a'*80"
        "00000,'a'*8000000,'a'*8000000)|length }}"
    ),
    "{% set s='a'*8000000 %}{{ ('%s'*500)|format(s)|length }}",
    "{{ '{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}'.format('a'*8000000)|length }}",
    "{{ ('🌶'*8000000)|tojson(ensure_ascii=true)|length }}",
    "{{ ('<'*8000000)|urlize|length }}",
    "{{ ('a'*8000000).translate({97:'b'*1000})|length }}",
    "{{ ('\\t'*8000000).expandtabs(100) |length}}",
    "{{ ''.join(['a'*8000000]*100)|length }}",
    "{{ ('ß'*8000000)|upper|length }}",
    "{{ messages|map('tojson')|map('center',9000000)|list|length }}",
    "{{ range(99999)|map('string')|map('center',80000)|list|length }}",
    "{% filter center(100000000) %}a{% endfilter %}",
    (
        "{% macro m(x) %}{{ x }}{{ x }}{{ x }}{{ x }}{% endmacro %}{% set ns=namespace(s='aaaa') %}{% fo"
        "r i in range(30) %}{% set ns.s=m(ns.s) %}{% endfor %}"
    ),
    (
        "{% set ns=namespace(s='aaaa') %}{% for i in range(30) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endse"
        "t %}{% set ns.s=x %}{% endfor %}"
    ),
    "{% set x %}{% for i in range(90000) %}{{ 'a' * 90000 }}{% endfor %}{% endset %}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ ('f' * 8000000) | int(0, 16) }}",
    "{{ lipsum(n=100000) }}",
    "{{ 'x' }}" * 40_000,
]


@pytest.mark.parametrize("template", HOSTILE)
def test_a_hostile_template_ends_soon_and_small(template):
    limits = Limits(time_s=1.0)
    templates = ChatTemplates({"default": template}, {}, limits)
    start, before_kib = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError):
        templates.render(
            [{"role": "user", "content": "Hi"}],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            continue_final_message=False,
            template=None,
            variables={},
        )
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 * 1024


def test_the_clock_of_a_template_can_be_set(smollm2):
    template = "{{ strftime_now('%d %b %Y %H:%M') }}"
    messages, when = [{"role": "user", "content": "Hi"}], datetime(2026, 1, 2, 3, 4)  # noqa: DTZ001  # local
    assert smollm2.render_chat(messages, template=template, now=when) == "02 Jan 2026 03:04"
    with pytest.raises(InvalidArgument) as caught:
        smollm2.render_chat(messages, template=template, now="today")
    assert caught.value.field == "now"


@dataclass
class Chat:
    role: str
    content: object
    tool_calls: object = None


def test_messages_may_be_objects_and_hold_anything(smollm2, peer):
    chat = [
        Chat("user", ({"type": "image", "image": object()}, {"type": "text", "text": "Hi"})),
        Chat("tool", 25),
    ]
    options = {"add_generation_prompt": False, "extra": (1, np.float32(1.5), b"x")}
    for messages in (chat, [*chat, {"role": "tool", "content": {"a": np.bool_(False)}}]):
        text = compare(
            smollm2, peer, messages, "{{ messages }} {{ extra }} {{ messages | tojson }}", **options
        )
        assert "<object>" in text
        assert "tool_calls" not in text


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", "content", "note"])
@pytest.mark.parametrize(
    "template", ["{{ messages[-1].reasoning_content }}|{{ messages[-1].content }}", "{{ messages }}"]
)
def test_another_text_of_the_last_message_can_be_continued(smollm2, peer, template, key):
    for last in ({"reasoning": "Let me"}, {"reasoning_content": "Let me ", "content": "So"}, {"note": "n"}):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **last}]
        options = {"add_generation_prompt": False, "continue_final_message": key}
        text = compare(smollm2, peer, messages, template, **options)
        if key == "reasoning_content" and "content" in template and "reasoning" in last:
            assert text == "Let me"


def test_a_long_conversation_is_within_the_limits(smollm2, peer):
    messages = [{"role": "user", "content": "word " * 2000}] * 500
    compare(smollm2, peer, messages, CHATML, add_generation_prompt=True)


def test_templates_by_name(smollm2, smollm2_reference, tmp_path):
    smollm2_reference.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "plain"},'
        ' {"name": "tool_use", "template": "tools"}]}'
    )
    tokenizer = Tokenizer.from_file(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.chat_template == "plain"
    assert tokenizer.render_chat(messages) == "plain"
    assert tokenizer.render_chat(messages, tools=TOOLS) == "tools"
    assert tokenizer.render_chat(messages, template="tool_use") == "tools"
    assert tokenizer.render_chat(messages, template="own") == "own"


def test_a_model_without_a_template_says_so(sample):
    assert sample.ours.chat_template is None
    with pytest.raises(TemplateError, match="no chat template"):
        sample.ours.render_chat([{"role": "user", "content": "Hi"}])
    assert (
        sample.ours.render_chat([{"role": "user", "content": "Hi"}], template="{{ messages[0].content }}")
        == "Hi"
    )
