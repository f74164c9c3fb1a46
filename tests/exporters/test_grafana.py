from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from stepscope.core.feed import Subject
from stepscope.core.vocabulary import METRICS
from stepscope.exporters.files.selection import ExportedMetric
from stepscope.exporters.formats import FORMATS
from stepscope.exporters.prometheus.exposition import COUNTER, HISTOGRAM
from stepscope.exporters.prometheus.grafana import (
    HEIGHT,
    OWN_PANELS,
    dashboard,
    own_panels,
    to_json,
    write_for,
)
from stepscope.exporters.prometheus.grafana_panels import ROWS, VARIABLES, WIDTH
from stepscope.exporters.prometheus.names import DROPPED, DURATION, PHASE, SERIES, STEPS, Names
from tests.exporters.dashboards import expressions

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "monitoring" / "grafana" / "dashboards" / "gpu-training-dashboard.json"
RULES = ROOT / "monitoring" / "prometheus" / "recording_rules.yml"
CONFIG = ROOT / "monitoring" / "prometheus" / "prometheus.yml"
WORD = re.compile(r"\b[a-z_:][a-z0-9_:]*\b(?=[{\[ )/,]|$)")
PANELS = [
    ("GPU utilisation", "timeseries", "gpu_utilization_percent"),
    ("GPU temperature", "gauge", "gpu_temperature_celsius"),
    ("GPU power draw", "timeseries", "gpu_power_draw_watts"),
    ("GPU memory", "timeseries", "gpu_memory_used_mb"),
    ("Training loss", "timeseries", "training_loss"),
    ("Learning rate", "timeseries", "learning_rate"),
    ("Step duration, distribution", "heatmap", "training_step_duration_seconds_bucket"),
]


def exposed():
    """Return every name of a sample that the exporter can serve for what is declared."""
    targets = [target for metric in METRICS for target in Names().targets(metric.name.replace("*", "0"))]
    names = set()
    for target in (*targets, STEPS, DURATION, SERIES, DROPPED, PHASE):
        ends = (
            ("_bucket", "_sum", "_count") if target.kind == HISTOGRAM else ("_total" if target.kind == COUNTER else "",)
        )
        names.update(target.family + end for end in ends)
    return names


def metrics_in(expression):
    """Return the names of metrics in a PromQL expression."""
    plain = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)', " ", expression)
    return {word for word in WORD.findall(plain) if "_" in word and word not in {"histogram_quantile", "avg_over_time"}}


def panels(made):
    return {panel["title"]: panel for panel in made["panels"] if panel["type"] != "row"}


def test_file_in_the_repository_is_the_generated_one():
    """The dashboard in the repository is the generated one."""
    assert FILE.read_text(encoding="utf-8") == to_json(dashboard())


@pytest.mark.promise("S2-036", "S2-037", "S2-038", "S2-039", "S2-040", "S2-041", "S2-042")
@pytest.mark.parametrize(("title", "kind", "metric"), PANELS, ids=[panel[0] for panel in PANELS])
def test_panels_of_the_documents(title, kind, metric):
    """Every panel that the documents name is there, with its metric."""
    panel = panels(dashboard())[title]
    assert panel["type"] == kind
    assert metric in panel["targets"][0]["expr"]


@pytest.mark.promise("S2-037")
def test_temperature_has_thresholds():
    """The temperature gauge turns red at the documents' 80 °C."""
    field = panels(dashboard())["GPU temperature"]["fieldConfig"]["defaults"]
    assert field["unit"] == "celsius"
    assert [step["value"] for step in field["thresholds"]["steps"]] == [None, 75, 80]


@pytest.mark.promise("S2-043")
def test_every_query_asks_for_what_is_exposed():
    """Every metric in a query, a variable or a recording rule is one that the exporter serves, or another rule's."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules}
    asked = [*expressions(dashboard()), *(rule["expr"] for rule in rules)]
    asked += [re.search(r"label_values\((\w+)", query)[1] for _, _, query in VARIABLES]
    unknown = {name for text in asked for name in metrics_in(text)} - exposed() - recorded
    assert unknown == set()
    assert len({name for text in asked for name in metrics_in(text)}) > 20


@pytest.mark.promise("S2-052")
def test_scrape_interval_is_the_recommended_one():
    """The example configuration scrapes every 15 s, finds runs by file_sd, and loads the recording rules."""
    config = yaml.safe_load(CONFIG.read_text())
    assert config["global"]["scrape_interval"] == "15s"
    assert config["rule_files"] == [RULES.name]
    assert config["scrape_configs"][0]["file_sd_configs"][0]["files"][0].endswith("/*.json")
    assert "15 s" in (ROOT / "docs" / "reference" / "prometheus.md").read_text(encoding="utf-8")


@pytest.mark.promise("S2-035")
def test_grid_is_sound():
    """Panels have ids of their own and places that do not overlap and stay inside the grid."""
    made = dashboard()["panels"]
    assert len({panel["id"] for panel in made}) == len(made)
    cells = set()
    for panel in made:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        own = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_every_panel_explains_itself():
    """Every panel has a unit and a description, every query a legend, and the data source is a variable."""
    for panel in panels(dashboard()).values():
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["refId"] for target in panel["targets"]] == [*"ABCDEFG"[: len(panel["targets"])]]
        assert all(target["legendFormat"] for target in panel["targets"])


def test_variables_choose_run_rank_and_gpu():
    """Run, rank and GPU can be chosen, several at once or all of them."""
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "project", "run", "rank", "gpu"]
    assert all(one["multi"] and one["includeAll"] for name, one in variables.items() if name != "datasource")


def test_run_can_be_exported():
    """As an export format the dashboard shows the run at first, and has a panel for each of its own metrics."""
    past = SimpleNamespace(id="run-1", project="mnist")
    names = ["loss", "val/loss", 'odd "name"', "phase/data", "eval_seconds", "cpu/usage_ratio", "step_seconds"]
    stream = io.BytesIO()
    FORMATS["grafana"].write(past, [ExportedMetric(name, name) for name in names], stream)
    made = json.loads(stream.getvalue())
    [run] = [one for one in made["templating"]["list"] if one["name"] == "run"]
    assert run["current"]["value"] == ["run-1"]
    own = [panel for panel in panels(made).values() if panel["title"] not in panels(dashboard())]
    assert [panel["title"] for panel in own] == ["val/loss", 'odd "name"', "eval_seconds"]
    assert own[1]["targets"][0]["expr"].endswith('metric="odd \\"name\\""}')
    assert own[2]["fieldConfig"]["defaults"]["unit"] == "s"
    assert made["uid"] != dashboard()["uid"]
    assert len(made["uid"]) <= 40


def test_own_panels_are_few():
    """A run of thousands of names makes a dashboard that can still be opened."""
    assert len(own_panels(f"layer/{index}" for index in range(5000))) == OWN_PANELS


def test_rows_are_headed():
    """Each group of panels stands below its heading."""
    made = [panel for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert [panel["title"] for panel in made] == [row.title for row in ROWS]
    assert HEIGHT > 1


def subject(tmp_path):
    return Subject("run-1", "mnist", "node", tmp_path / "run")


@pytest.mark.promise("S0-076")
def test_the_switch_writes_the_dashboard_where_the_setting_says(tmp_path):
    """A run that begins has its dashboard in the file that was named, made anew each time, or in its own folder."""
    target = tmp_path / "new" / "board.json"
    for _ in range(2):
        write_for(subject(tmp_path), {"exporters.grafana.path": str(target)}, pytest.fail)
    made = json.loads(target.read_text())
    assert (made["title"], made["uid"]) == ("Stepscope: mnist run-1", "stepscope-run-1")
    (tmp_path / "run").mkdir()
    write_for(subject(tmp_path), {}, pytest.fail)
    assert json.loads((tmp_path / "run" / "grafana.json").read_text()) == made


def test_a_dashboard_that_cannot_be_written_is_noted(tmp_path):
    """The watcher goes on, and its log says why."""
    (tmp_path / "file").touch()
    notes = []
    write_for(subject(tmp_path), {"exporters.grafana.path": str(tmp_path / "file" / "board.json")}, notes.append)
    assert notes[0].startswith("cannot write the Grafana dashboard: ")
