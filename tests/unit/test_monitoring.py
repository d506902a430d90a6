"""The alert rules and the dashboard: each metric that they name exists, and each metric is on the dashboard."""

import json
import re
from pathlib import Path

import pytest
import yaml

from naviscope_ingest.metrics import METRICS

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
LABELS = {metric.name: {*metric.labels, "instance"} for metric in METRICS}
KINDS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
EXPOSED = {f"{metric.name}{suffix}": metric.name for metric in METRICS for suffix in KINDS[metric.type]}


def alerts():
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def dashboard():
    return json.loads((MONITORING / "dashboard.json").read_text())


def expressions():
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])


def named(expression):
    """Yield each metric of an expression, with the labels that it asks for."""
    for name, labels in re.findall(r"(naviscope_\w+)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*[=!]", labels))


@pytest.mark.parametrize("expression", [*expressions()])
def test_an_expression_asks_for_what_there_is(expression):
    found = [*named(expression)]
    assert found
    for name, labels in found:
        assert name in EXPOSED, f"{name} is not exposed"
        assert labels <= LABELS[EXPOSED[name]]
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
    assert grouped - {"le"} <= set.union(*(LABELS[EXPOSED[name]] for name, _ in found))
    assert expression.count("(") == expression.count(")")


def test_every_metric_is_on_the_dashboard():
    shown = {
        EXPOSED[name]
        for panel in dashboard()["panels"]
        for target in panel["targets"]
        for name, _ in named(target["expr"])
    }
    assert shown == set(LABELS)


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    assert len(alerts()) == len({rule["alert"] for rule in alerts()}) >= 10
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "what_to_do"}
        assert re.search(r"[<>=] ?\d", rule["expr"]), "an alert has a threshold"


def test_panels_do_not_overlap():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard()["panels"]]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(places)
