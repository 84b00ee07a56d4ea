"""The Grafana dashboard and the alert rules use metrics that exist."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from server_metrics_text import DOCS, documented, documented_samples

_METRIC = re.compile(r"\b(?:llm_stack|process)_\w+")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_BY = re.compile(r"by \(([^)]*)\)")
_OF_SCRAPES = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def board():
    return json.loads((DOCS / "grafana/llm-stack.json").read_text())


def check(expression):
    """All metrics exist, and have the labels by which they are chosen and grouped."""
    metrics = set(_METRIC.findall(expression))
    assert metrics, expression
    assert metrics <= documented_samples(), expression
    assert expression.count("(") == expression.count(")")
    have = {
        label
        for name, (_, labels) in documented().items()
        if any(m.startswith(name) for m in metrics)
        for label in labels
    }
    wanted = {label.strip() for group in _BY.findall(expression) for label in group.split(",")}
    for _, selectors in _SELECTOR.findall(expression):
        wanted |= set(re.findall(r"(\w+)(?==|!=)", selectors))
    assert wanted <= have | _OF_SCRAPES, expression


def test_each_panel(board):
    assert board["schemaVersion"] >= 36
    assert len(board["panels"]) >= 14
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
        for target in panel["targets"]:
            check(target["expr"])
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {label.strip() for group in _BY.findall(target["expr"]) for label in group.split(",")}
            assert shown <= grouped


def test_panels_do_not_overlap(board):
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not cells & taken
        assert max(column for column, _ in cells) < 24
        taken |= cells


def test_variables(board):
    names = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)\b", json.dumps(board))) - {"__rate_interval"}
    assert used == names == {"datasource", "job"}


def test_alerts():
    rules = yaml.safe_load((DOCS / "grafana/alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 5
    for rule in rules:
        check(rule["expr"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
