"""Vocabularies of real models: any cut of the ids is the whole decode, with prompts and stop strings."""

import random

import numpy as np
from tokenizer_rows import common_start, cut_at_stop, random_cuts, row_steps
from tokenizer_samples import texts


def byte_tokens(tokenizer):
    """Ids of single bytes, of parts of characters, and of the special tokens."""
    ids = [i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1]
    parts = [i for i in range(0, tokenizer.vocab_size, 7) if b"\xf0" in tokenizer.token_bytes(i)]
    return ids[:300], [*parts[:200], *sorted(tokenizer.special_token_ids)[:20]]


def random_ids(rng, tokenizer, pieces, encoded, length):
    """A mix of text as it is encoded, single bytes, parts of characters, special tokens and anything."""
    ids = []
    while len(ids) < length:
        kind = rng.random()
        if kind < 0.4:
            text = rng.choice(encoded)
            at = rng.randint(0, len(text))
            ids += text[at : at + rng.randint(1, 6)]
        elif kind < 0.8 and pieces[0]:
            ids += [rng.choice(pieces[0]) for _ in range(rng.randint(1, 5))]
        elif kind < 0.9 and pieces[1]:
            ids.append(rng.choice(pieces[1]))
        else:
            ids.append(rng.randrange(tokenizer.vocab_size))
    return ids[:length]


def random_stops(rng, whole):
    """Parts of the text, so that they occur, and strings that begin like them."""
    stops = []
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, max(0, len(whole) - 1))
        stops.append(whole[at : at + rng.randint(1, 5)] + rng.choice(["", "", "", "z"]))
    return [stop for stop in stops if stop]


def test_any_cut_with_stop_strings_is_the_whole_decode(real, sequences):
    ours, reference = real.ours, real.library
    rng = random.Random(5)
    pieces = byte_tokens(ours)
    encoded = [ids for ids in (reference.encode(text).ids for text in texts(300, seed=9)) if ids]
    for _ in range(sequences(100, 8000)):
        prompt = random_ids(rng, ours, pieces, encoded, rng.choice([0, 0, 1, 3, 6]))
        ids = random_ids(rng, ours, pieces, encoded, rng.randint(0, 20))
        skip, include = rng.random() < 0.5, rng.random() < 0.5
        before = reference.decode(prompt, skip_special_tokens=skip)
        after = reference.decode(prompt + ids, skip_special_tokens=skip)
        whole = after[common_start(before, after) :]
        stops = random_stops(rng, whole)
        skipped = {ours.id_to_token(i) for i in ours.special_token_ids} if skip else set()
        stops = [stop for stop in stops if stop not in skipped]
        options = {"skip_special_tokens": skip, "stop": stops, "include_stop_str_in_output": include}
        text, hits = row_steps(ours, random_cuts(rng, ids), prompt, **options)
        expected, index = cut_at_stop(whole, stops, include)
        assert text == expected, (prompt, ids, options)
        assert hits in ([], [index]), (prompt, ids, options)


def test_many_rows_at_once_are_each_the_whole_decode(real):
    """Rows of different ages and options in one detokenizer, one token a row and step."""
    ours, reference = real.ours, real.library
    rng = random.Random(6)
    pieces, encoded = byte_tokens(ours), [reference.encode(text).ids for text in texts(80, seed=10)]
    encoded = [ids for ids in encoded if ids]
    det, live, done = ours.detokenizer(), {}, 0
    while done < 40:
        while len(live) < 24:
            ids, skip = random_ids(rng, ours, pieces, encoded, rng.randint(1, 30)), rng.random() < 0.5
            whole = reference.decode(ids, skip_special_tokens=skip)
            stop = rng.choice([[], ["zzz", "never seen"], [" the quick", "🌶🌶"]])
            if not any(text in whole for text in stop):
                live[det.open(skip_special_tokens=skip, stop=stop)] = [ids, 0, "", whole]
        slots = rng.sample(sorted(live), rng.randint(1, len(live)))
        step = det.step(
            np.array(slots, np.int32), np.array([live[slot][0][live[slot][1]] for slot in slots], np.int32)
        )
        for slot, text in zip(slots, step.texts, strict=True):
            live[slot][1] += 1
            live[slot][2] += text
            ids, at, shown, whole = live[slot]
            if at == len(ids):
                assert shown + det.finish(slot) == whole
                del live[slot]
                done += 1
