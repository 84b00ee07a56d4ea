"""Every argument of a wrong type or value raises `InvalidArgument` with its name, and changes nothing."""

import inspect

import numpy as np
import pytest
from llm_tokenizer import Detokenizer, InvalidArgument, Tokenizer

LONE = "\ud800"
NO_FLAGS = ["no", 1, None, np.int64(1)]
NO_TEXTS = [5, None, b"bytes", ["a"], LONE, f"lone {LONE} surrogate"]
NO_LISTS_OF_TEXT = ["one text", 5, None, b"ab", ["a", 1], [None], ["a", LONE], {"a": 1}, {"a"}, [["a"]]]
NO_IDS = [
    5,
    None,
    "x",
    "12",
    ["1"],
    [1.0],
    [None],
    [[1]],
    [1, [2]],
    [True],
    [-1],
    [2**31],
    [2**64],
    {1: 2},
    {1},
]
NO_ID = ["x", None, 1.0, True, np.True_, [1], np.array([1]), b"1"]
OUTSIDE = [-1, 49152, 2**31, 2**64, -(2**70)]

HELLO = [{"role": "user", "content": "Hi"}]
LOOP = {"role": "user", "content": []}
LOOP["content"].append(LOOP)

# Method, argument, values that it refuses, and the other arguments.
TOKENIZER_CASES = [
    ("encode", "text", NO_TEXTS, {}),
    ("encode", "add_special_tokens", NO_FLAGS, {"text": "a"}),
    ("encode", "allow_special", NO_FLAGS, {"text": "a"}),
    ("encode_with_offsets", "text", NO_TEXTS, {}),
    ("encode_with_offsets", "add_special_tokens", NO_FLAGS, {"text": "a"}),
    ("encode_batch", "texts", NO_LISTS_OF_TEXT, {}),
    ("encode_batch", "add_special_tokens", NO_FLAGS, {"texts": ["a"]}),
    ("encode_batch", "allow_special", NO_FLAGS, {"texts": ["a"]}),
    ("decode", "ids", [*NO_IDS, [49152]], {}),
    ("decode", "skip_special_tokens", NO_FLAGS, {"ids": [1]}),
    ("token_to_id", "token", NO_TEXTS, {}),
    ("id_to_token", "token_id", NO_ID, {}),
    ("token_bytes", "token_id", [*NO_ID, *OUTSIDE], {}),
    ("token_text", "token_id", [*NO_ID, *OUTSIDE], {}),
    ("render_chat", "messages", ["Hi", 5, None, [], HELLO[0], iter(HELLO)], {}),
    ("render_chat", "messages[0]", [["Hi"], [5], [None], [LOOP]], {}),
    ("render_chat", "tools", [5, "all", ["a"], {}, [LOOP]], {"messages": HELLO}),
    ("render_chat", "documents", [5, "all", ["a"], {}, [LOOP]], {"messages": HELLO}),
    ("render_chat", "add_generation_prompt", NO_FLAGS, {"messages": HELLO}),
    ("render_chat", "continue_final_message", [1, None, b"content", True, "content"], {"messages": HELLO}),
    ("render_chat", "template", [5, b"x", ["x"], False], {"messages": HELLO}),
    ("render_chat", "now", [5, "today", 1.5], {"messages": HELLO}),
    ("render_chat", "variables", [LOOP], {"messages": HELLO}),
    ("from_file", "path", [5, None, b"folder", ["a"], 1.5], {}),
    ("from_file", "pattern", [5, b"x", LONE], {"path": "any"}),
    (
        "from_file",
        "special_tokens",
        [5, "x", ["a"], {"a": "1"}, {"a": True}, {1: 1}, {LONE: 1}],
        {"path": "any"},
    ),
]
ROW_CASES = [
    ("open", "prompt_ids", [*NO_IDS, [49152]], {}),
    ("open", "skip_special_tokens", NO_FLAGS, {}),
    ("open", "stop", [*NO_LISTS_OF_TEXT, [""]], {}),
    ("open", "include_stop_str_in_output", NO_FLAGS, {}),
    ("step", "slots", [*NO_IDS, [7]], {"ids": [1]}),
    ("step", "ids", [*NO_IDS, [49152], [1, 2], []], {"slots": [0]}),
    (
        "step",
        "offsets",
        [5, "x", [0], [0.0, 1.0], [0, 2], [1, 1], [0, -1], [[0, 1]]],
        {"slots": [0], "ids": [1]},
    ),
    ("finish", "slot", [*NO_ID, *OUTSIDE, 7], {}),
    ("close", "slot", [*NO_ID, *OUTSIDE, 7], {}),
]


def each(cases):
    return [
        pytest.param(method, argument, value, rest, id=f"{method}-{argument}-{value!a:.40}")
        for method, argument, values, rest in cases
        for value in values
    ]


def refused(call, argument, value, rest):
    name = argument.removesuffix("[0]")
    with pytest.raises(InvalidArgument) as caught:
        call(**rest, **{name: value})
    assert caught.value.field == argument
    assert str(caught.value).startswith(f"{argument}: ")


@pytest.mark.parametrize(("method", "argument", "value", "rest"), each(TOKENIZER_CASES))
def test_the_tokenizer_refuses(smollm2, method, argument, value, rest):
    refused(getattr(smollm2, method), argument, value, rest)


@pytest.mark.parametrize(("method", "argument", "value", "rest"), each(ROW_CASES))
def test_the_detokenizer_refuses_and_keeps_its_rows(smollm2, method, argument, value, rest):
    rows = smollm2.detokenizer()
    row, chars = rows.open(), smollm2.encode("🌶️")
    rows.step([row], chars[:1])
    refused(getattr(rows, method), argument, value, rest)
    assert rows.num_open == 1
    assert rows.step([row], chars[1:], [0, len(chars) - 1]).texts[0] + rows.finish(row) == "🌶️"


def test_no_argument_is_left_out():
    """A new argument of a public method needs a case here."""
    for kind, cases in ((Tokenizer, TOKENIZER_CASES), (Detokenizer, ROW_CASES)):
        covered = {(method, argument) for method, argument, _, _ in cases}
        for name, method in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                parameters = set(inspect.signature(method).parameters) - {"self"}
                assert {(name, parameter) for parameter in parameters} <= covered


def test_numbers_and_flags_of_numpy_are_taken(smollm2):
    ids = smollm2.encode("Hi there", add_special_tokens=np.True_, allow_special=np.False_)
    for kind in (np.int8, np.uint64, ">i4"):
        small = np.array([1, 2, 3], kind)
        assert smollm2.decode(small, skip_special_tokens=np.False_) == smollm2.decode(
            [1, 2, 3], skip_special_tokens=False
        )
    assert smollm2.id_to_token(np.int32(ids[0])) == smollm2.id_to_token(ids[0])
    assert smollm2.token_bytes(np.uint16(ids[0])) == b"Hi"
    assert smollm2.encode_batch(text for text in ["Hi there"]) == smollm2.encode_batch(np.array(["Hi there"]))


def test_arrays_that_are_not_aligned_or_run_backwards(smollm2):
    ids = np.array(smollm2.encode("one two three four"), np.int32)
    rows = smollm2.detokenizer()
    unaligned = np.frombuffer(b"\0" + ids.tobytes(), np.int32, offset=1)
    assert not unaligned.flags.aligned
    for array in (unaligned, ids[::-1].copy()[::-1], np.repeat(ids, 2)[::2]):
        slot = rows.open()
        text = rows.step([slot], array, [0, len(ids)]).texts[0] + rows.finish(slot)
        assert text == "one two three four"
