"""Events that are JSON but for one text give the same JSON as when they are encoded whole."""

import json

import pytest
from llm_stack_server.views.text_template import TextTemplate


def event_of(text):
    return {"id": "chatcmpl-é", "model": "näme", "choices": [{"delta": {"content": text}, "n": None}]}


@pytest.mark.parametrize(
    "text", ["", "plain", 'a "b" \\ /', "\n\t\r\x00\x1f\x7f", "é 文 🙂 \u2028\ufffd", "</script>"]
)
def test_a_filled_template_is_the_event(text):
    assert json.loads(TextTemplate(event_of).fill(text)) == event_of(text)


def test_the_text_must_be_there_once():
    with pytest.raises(ValueError, match="unpack"):
        TextTemplate(lambda text: {"a": text, "b": text})
