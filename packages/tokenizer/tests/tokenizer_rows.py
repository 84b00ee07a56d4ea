"""Rows of a detokenizer for tests: feeding in parts, what a stop string cuts, the common start of texts."""


def random_cuts(rng, ids, most=5):
    cuts = sorted(rng.randint(0, len(ids)) for _ in range(rng.randint(0, most)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def row_steps(tokenizer, parts, prompt=(), **options):
    """All text of a row that is fed `parts` step by step, and the stop strings that were reported."""
    det = tokenizer.detokenizer()
    slot = det.open(prompt, **options)
    out, stops = [], []
    for part in parts:
        step = det.step([slot], part, [0, len(part)])
        out += step.texts
        stops += [int(stop) for stop in step.stops if stop >= 0]
    return "".join(out) + det.finish(slot), stops


def row_text(tokenizer, parts, prompt=(), **options):
    return row_steps(tokenizer, parts, prompt, **options)[0]


def cut_at_stop(text, stops, include):
    """What a scan of the whole text gives: the text up to the stop string that completes first."""
    for end in range(len(text) + 1):
        hits = [index for index, stop in enumerate(stops) if text[:end].endswith(stop)]
        if hits:
            index = max(hits, key=lambda index: (len(stops[index]), -index))
            return text[: end if include else end - len(stops[index])], index
    return text, None


def common_start(left, right):
    size = 0
    while size < min(len(left), len(right)) and left[size] == right[size]:
        size += 1
    return size
