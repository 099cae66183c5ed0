"""What operators take from us: metrics for Prometheus's own parsers, a dashboard and alerts about metrics that exist."""

import http.client
import json
import re
import socket
import subprocess

import prometheus_client.openmetrics.parser
import prometheus_client.parser
import pytest
import yaml

from conftest import DEADLINE_SECONDS, TOW, WORKSPACE, wait_until

DASHBOARD = WORKSPACE / "packaging/grafana/towpath.json"
ALERTS = WORKSPACE / "packaging/prometheus/towpath.rules.yml"

# Labels that Prometheus adds, and its own metric.
ADDED = {"job", "instance"}
OWN = {"up"}


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(path, what: str, accept: str = "*/*") -> str:
    """What a server answers over its admin socket."""

    class Connection(http.client.HTTPConnection):
        def connect(self):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(DEADLINE_SECONDS)
            self.sock.connect(str(path))

    connection = Connection("localhost")
    connection.request("GET", what, headers={"Accept": accept})
    reply = connection.getresponse()
    text = reply.read().decode()
    assert reply.status == 200, text
    connection.close()
    return text


@pytest.fixture
def scraped(tmp_path, serve, broker, end):
    """The metrics of a broker and of a file server that have something to count, in both formats."""
    sockets = [tmp_path / f"{program}.sock" for program in ("broker", "serve")]
    requests = broker("--admin-socket", sockets[0], "--journal", tmp_path / "journal")
    end("work", "echo", [requests], "--echo")
    call = end("call", "echo", [requests], "hello")
    assert call.communicate(timeout=DEADLINE_SECONDS)[0] == b"hello"
    (tmp_path / "served").mkdir()
    serve(tmp_path / "served", "--admin-socket", sockets[1], "--watch")
    # What a server publishes is counted once it has looked at its directory.
    wait_until(lambda: "towpath_held_deletions" in get(sockets[1], "/metrics", "*/*"), "it has looked")
    return [[get(path, "/metrics?per=service", accept) for accept in (OPENMETRICS, "*/*")] for path in sockets]


def samples(text: str, parser) -> dict:
    """Samples by name and labels."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def test_both_parsers_of_prometheus_read_the_same(scraped):
    for openmetrics, text in scraped:
        strict = samples(openmetrics, prometheus_client.openmetrics.parser)
        # Another moment, so other values.
        assert strict.keys() == samples(text, prometheus_client.parser).keys()
        assert strict["towpath_ready", frozenset()] == 1
        for family in prometheus_client.openmetrics.parser.text_string_to_metric_families(openmetrics):
            assert family.name.startswith("towpath_") and family.documentation, family


def selectors(expression: str):
    """Names of metrics in PromQL, each with the values of labels that it selects."""
    # A number's unit, a label, a function or a keyword isn't followed by what a metric is followed by.
    for name, matchers in re.findall(r"\b(towpath_\w+|up)\b(?:\{([^}]*)\})?", expression):
        wanted = {}
        for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
            if label not in ADDED:
                wanted[label] = set(value.split("|")) if operator == "=~" else {value}
        yield name, wanted


def expressions(found) -> list:
    """All expressions in a dashboard or in rules."""
    if isinstance(found, list):
        return [one for value in found for one in expressions(value)]
    if not isinstance(found, dict):
        return []
    own = [found["expr"]] if "expr" in found else []
    own += [found["query"]] if "label_values" in str(found.get("query")) else []
    return own + [one for value in found.values() for one in expressions(value)]


def check(all_expressions, scraped):
    existing = [key for text, _ in scraped for key in samples(text, prometheus_client.openmetrics.parser)]
    for expression in all_expressions:
        found = list(selectors(expression))
        assert found, expression
        for name, wanted in found:
            labels = [dict(labels) for known, labels in existing if known == name]
            assert labels or name in OWN, f"no server has {name}: {expression}"
            for label, values in wanted.items():
                assert values <= {one.get(label) for one in labels}, f"{name} has no {label} of {values}: {expression}"
        known = {label for _, labels in existing for label, _ in labels} | ADDED
        for grouped in re.findall(r"\b(?:by|ignoring|on|without) \(([^)]*)\)", expression):
            assert {label.strip() for label in grouped.split(",")} <= known, expression


@pytest.mark.parametrize("unit, command", [("tow-broker", "broker"), ("tow-serve@", "serve")])
def test_variables_of_the_units_are_options(unit, command):
    text = (WORKSPACE / f"packaging/systemd/{unit}.service").read_text()
    variables = set(re.findall(r"\bTOW_(\w+)\b", text))
    assert variables and f"ExecStart=/usr/bin/tow {command}" in text
    words = subprocess.run([TOW, command, "--help"], capture_output=True, text=True, check=True).stdout.split()
    for variable in variables:
        option = "--" + variable.lower().replace("_", "-")
        assert option in words, f"{unit}.service sets TOW_{variable}, and tow {command} has no {option}"


def test_the_dashboard_shows_what_there_is(scraped):
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    found = expressions(dashboard)
    assert len(found) > 30
    check(found, scraped)


def test_alerts_are_about_what_there_is(scraped):
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m")) and rule["annotations"]["summary"], rule
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
    check(expressions(groups), scraped)
    # The check notices what isn't there.
    for wrong in ("towpath_nothing > 0", 'towpath_peers{state="asleep"} > 0', "sum by (nothing) (towpath_peers)"):
        with pytest.raises(AssertionError):
            check([wrong], scraped)
