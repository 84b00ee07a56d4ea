"""Reads what `/metrics` shows, and what the pages of the documentation say of it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

DOCS = Path(__file__).parents[3] / "docs"
_ROW = re.compile(r"\| `(\w+)` \| (counter|gauge|histogram) \| ((?:`\w+`(?:, )?)*) ?\|")
_PARTS = ("_bucket", "_sum", "_count")


def shown_names(text):
    """Metrics by their name on the page: type and names of labels; None where no sample tells of labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):  # when a counter began; the client library adds it
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) <= 1
        found[name] = (family.type, next(iter(labels), None))
    return found


def documented():
    """The same from the page."""
    rows = _ROW.findall((DOCS / "metrics.md").read_text())
    found = {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows)
    return found


def documented_samples():
    """Names of samples that the page promises."""
    return {
        sample
        for name, (kind, _) in documented().items()
        for sample in ([name + part for part in _PARTS] if kind == "histogram" else [name])
    }


def samples(text):
    """Value of each sample, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values, name, **labels):
    """The sum over all samples of a name that have these labels."""
    wanted = labels.items()
    return sum(
        value for (found, have), value in values.items() if found == name and wanted <= dict(have).items()
    )


def counts(values):
    """The samples that must only grow."""
    return {
        key: value
        for key, value in values.items()
        if key[0].endswith(("_total", *_PARTS)) and not key[0].startswith("process_")
    }
