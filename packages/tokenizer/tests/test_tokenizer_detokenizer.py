"""The detokenizer's law: steps joined are the library's decode of all ids, cut at the stop string."""

import codecs

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_tokenizer import InvalidArgument
from tokenizer_rows import common_start, cut_at_stop, row_steps
from tokenizer_samples import texts

CHOICES = st.data()
QUICK = settings(max_examples=60, deadline=None)


def draw_ids(data, tokenizer, max_size=24):
    """Random ids, with runs of ids that lie close together, so that byte tokens meet often."""
    anywhere = st.integers(0, tokenizer.vocab_size - 1)
    near = st.integers(max(0, tokenizer.vocab_size - 256), tokenizer.vocab_size - 1)
    low = st.integers(0, min(260, tokenizer.vocab_size) - 1)
    return data.draw(st.lists(st.one_of(anywhere, near, low), max_size=max_size))


def draw_cuts(data, ids):
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6).map(sorted))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@QUICK
@given(data=CHOICES)
def test_joined_steps_are_the_whole_decode(sample, data):
    ids = draw_ids(data, sample.ours)
    skip = data.draw(st.booleans())
    text, stops = row_steps(sample.ours, draw_cuts(data, ids), skip_special_tokens=skip)
    assert text == sample.reference.decode(ids, skip_special_tokens=skip)
    assert stops == []


@QUICK
@given(data=CHOICES)
def test_text_behind_a_prompt_is_what_the_decode_adds(sample, data):
    prompt, ids = draw_ids(data, sample.ours, 8), draw_ids(data, sample.ours, 12)
    skip = data.draw(st.booleans())
    before = sample.reference.decode(prompt, skip_special_tokens=skip)
    after = sample.reference.decode(prompt + ids, skip_special_tokens=skip)
    text, _ = row_steps(sample.ours, draw_cuts(data, ids), prompt, skip_special_tokens=skip)
    assert text == after[common_start(before, after) :]


@QUICK
@given(data=CHOICES)
def test_stop_strings_cut_the_whole_decode(sample, data):
    ids = draw_ids(data, sample.ours)
    whole = sample.reference.decode(ids, skip_special_tokens=False)
    places = st.tuples(st.integers(0, max(0, len(whole) - 1)), st.integers(1, 6))
    stops = [whole[a : a + n] for a, n in data.draw(st.lists(places, min_size=1, max_size=3))]
    stops = [stop for stop in stops if stop] or ["zz"]
    include = data.draw(st.booleans())
    options = {"skip_special_tokens": False, "stop": stops, "include_stop_str_in_output": include}
    text, reported = row_steps(sample.ours, draw_cuts(data, ids), **options)
    expected, index = cut_at_stop(whole, stops, include)
    assert text == expected
    # A stop string that only the end of the text completes is cut in `finish`, which reports none.
    assert reported in ([], [index])


@QUICK
@given(data=CHOICES)
def test_no_more_is_held_back_than_must_be(smollm2, data):
    ids = draw_ids(data, smollm2)
    stops = data.draw(st.lists(st.text("ab the\n", min_size=1, max_size=4), max_size=3))
    det = smollm2.detokenizer()
    slot = det.open(skip_special_tokens=False, stop=stops)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    shown = known = ""
    for token_id in ids:
        known += decoder.decode(smollm2.token_bytes(token_id))
        if cut_at_stop(known, stops, include=False)[1] is not None:
            break
        shown += det.step([slot], [token_id]).texts[0]
        holds = [n for stop in stops for n in range(1, len(stop)) if known.endswith(stop[:n])]
        assert shown == known[: len(known) - max(holds, default=0)]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("text", ["one two three", "ABCDEFGHIJKLM", "ďábel 🌶️👩‍🚀 日本語 한국어 ไทย konec"])
def test_a_stop_string_split_in_every_way(smollm2, text, include):
    """Every stop string of the text, fed byte token by byte token, so that it is split at every place."""
    alphabet = {
        smollm2.token_bytes(i): i for i in range(smollm2.vocab_size) if len(smollm2.token_bytes(i)) == 1
    }
    ids = [alphabet[bytes([byte])] for byte in text.encode() if bytes([byte]) in alphabet]
    assert smollm2.decode(ids) == text
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + 8) + 1):
            stops = [text[start:end], "never there"]
            expected, index = cut_at_stop(text, stops, include)
            for size in (1, 2, 3, len(ids)):
                parts = [ids[at : at + size] for at in range(0, len(ids), size)]
                got = row_steps(smollm2, parts, stop=stops, include_stop_str_in_output=include)
                assert got == (expected, [index])


def test_the_stop_that_completes_first_wins(smollm2):
    ids = smollm2.encode("one two three")
    for size in (1, len(ids)):
        parts = [ids[at : at + size] for at in range(0, len(ids), size)]
        assert row_steps(smollm2, parts, stop=["two", "ne tw"]) == ("o", [1])
        assert row_steps(smollm2, parts, stop=["two", "ne tw"], include_stop_str_in_output=True) == (
            "one tw",
            [1],
        )


def test_a_skipped_special_token_can_be_the_stop(smollm2):
    ids = [*smollm2.encode("done."), smollm2.token_to_id("<|im_end|>"), *smollm2.encode(" more")]
    assert row_steps(smollm2, [ids]) == ("done. more", [])
    assert row_steps(smollm2, [ids], stop=["x", "<|im_end|>"]) == ("done.", [1])
    assert row_steps(smollm2, [ids], stop=["<|im_end|>"], skip_special_tokens=False) == ("done.", [0])
    shown = row_steps(smollm2, [ids], stop=["<|im_end|>"], include_stop_str_in_output=True)
    assert shown == ("done.<|im_end|>", [0])


def test_no_partial_character_is_ever_shown(smollm2):
    for text in texts(150, seed=7):
        ids = smollm2.encode(text)
        whole = smollm2.decode(ids, skip_special_tokens=False)
        det = smollm2.detokenizer()
        slot = det.open(skip_special_tokens=False)
        parts = [det.step([slot], [token_id]).texts[0] for token_id in ids]
        assert "".join(parts).count("\ufffd") == text.count("\ufffd")
        assert "".join(parts) + det.finish(slot) == whole


def test_many_rows_in_one_step_equal_rows_alone(sample):
    batch = [sample.ours.encode(text) for text in texts(40, seed=8)]
    det = sample.ours.detokenizer()
    slots = [det.open(stop=["zz"]) for _ in batch]
    joined = dict.fromkeys(slots, "")
    for at in range(max(map(len, batch))):
        live = [(slot, ids[at]) for slot, ids in zip(slots, batch, strict=True) if at < len(ids)]
        step = det.step(np.array([s for s, _ in live], np.int32), np.array([i for _, i in live], np.int32))
        assert step.stops.dtype == np.int32
        for (slot, _), text in zip(live, step.texts, strict=True):
            joined[slot] += text
    for slot, ids in zip(slots, batch, strict=True):
        assert joined[slot] + det.finish(slot) == sample.reference.decode(ids)
    assert det.num_open == 0


def test_ragged_rows(smollm2):
    det = smollm2.detokenizer()
    a, b, c = det.open(), det.open(), det.open()
    ids = smollm2.encode("Hello world")
    step = det.step([a, b, c], ids + ids[:1], [0, len(ids), len(ids), len(ids) + 1])
    assert step.texts == ["Hello world", "", "Hello"]
    assert det.step([], []).texts == []


def test_slots_are_used_again(smollm2):
    det = smollm2.detokenizer()
    first, second = det.open(), det.open()
    det.close(first)
    assert det.open() == first
    det.finish(second)
    assert det.num_open == 1


@pytest.mark.parametrize(
    ("slots", "ids", "offsets", "field"),
    [
        ([0, 7], [1, 1], None, "slots"),
        ([-1], [1], None, "slots"),
        ([0], [49152], None, "ids"),
        ([0], [-1], None, "ids"),
        ([0], [1.0], None, "ids"),
        ([0], ["1"], None, "ids"),
        ([0], [2**31], None, "ids"),
        ([0], [1, 2], None, "ids"),
        ([0], [1], [0], "offsets"),
        ([0], [1], [0, 2], "offsets"),
        ([0], [1], [1, 1], "offsets"),
        ([0, 1], [1, 2], [0, 2, 1], "offsets"),
        ([[0]], [1], None, "slots"),
    ],
)
def test_a_bad_step_changes_nothing(smollm2, slots, ids, offsets, field):
    det = smollm2.detokenizer()
    row, other = det.open(), det.open()
    chars = smollm2.encode("🌶️")
    det.step([row], chars[:1])
    with pytest.raises(InvalidArgument) as caught:
        det.step(slots, ids, offsets)
    assert caught.value.field == field
    rest = det.step([row], chars[1:], [0, len(chars) - 1]).texts[0] + det.finish(row)
    assert rest == "🌶️"
    assert det.finish(other) == ""


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        (([49152],), {}, "prompt_ids"),
        (([-3],), {}, "prompt_ids"),
        ((), {"stop": "text"}, "stop"),
        ((), {"stop": [""]}, "stop"),
        ((), {"stop": [5]}, "stop"),
        ((), {"stop": ["\ud800"]}, "stop"),
    ],
)
def test_a_bad_open_opens_nothing(smollm2, arguments, options, field):
    det = smollm2.detokenizer()
    with pytest.raises(InvalidArgument) as caught:
        det.open(*arguments, **options)
    assert caught.value.field == field
    assert det.num_open == 0


@pytest.mark.parametrize("slot", [0, -1, 5, 2**40])
def test_slots_that_are_not_open(smollm2, slot):
    det = smollm2.detokenizer()
    for call in (det.finish, det.close):
        with pytest.raises(InvalidArgument) as caught:
            call(slot)
        assert caught.value.field == "slot"
