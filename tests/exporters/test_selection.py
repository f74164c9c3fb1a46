from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import ALIASES, METRICS, aliases, canonical, pattern_of
from stepscope.exporters.files.selection import DOCUMENTED, SPELLINGS, ExportedMetric, choose


class Names:
    """A run of which only the names are known."""

    id = "run-1"

    def __init__(self, *names):
        self._names = sorted(names)

    def names(self):
        return self._names


@pytest.mark.promise("X-03")
@pytest.mark.parametrize(
    ("recorded", "main", "documents"),
    [
        ("lr", ("learning_rate", 1.0), ("learning_rate", 1.0)),
        ("learning_rate", ("learning_rate", 1.0), ("learning_rate", 1.0)),
        ("grad_norm", ("grad_norm", 1.0), ("gradient_norm", 1.0)),
        ("throughput", ("samples_per_second", 1.0), ("throughput_samples_per_sec", 1.0)),
        ("gpu_memory_mb", ("gpu/0/memory_used_bytes", 2.0**20), ("gpu_memory_used_mb", 1.0)),
        ("gpu/0/memory_used_bytes", ("gpu/0/memory_used_bytes", 1.0), ("gpu_memory_used_mb", 2.0**-20)),
        ("gpu/3/power_watts", ("gpu/3/power_watts", 1.0), ("gpu_3/gpu_power_draw_watts", 1.0)),
        ("cpu/usage_ratio", ("cpu/usage_ratio", 1.0), ("cpu_percent", 100.0)),
        ("my/own", ("my/own", 1.0), ("my/own", 1.0)),
    ],
)
def test_names_are_spelled_as_asked(recorded, main, documents):
    """A metric is written under its recorded, its canonical or the documents' name, in the unit of that name."""
    past = Names(recorded)
    assert choose(past) == [(recorded, recorded, 1.0)]
    assert choose(past, None, "canonical") == [(recorded, *main)]
    assert choose(past, None, "documents") == [(recorded, *documents)]


def test_documented_spellings_are_spellings():
    """Every name of the documents that exports use is an alias of the canonical name it stands for."""
    assert {written: aliases[written].canonical for written in DOCUMENTED.values()} == {
        written: main for main, written in DOCUMENTED.items()
    }


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_that_would_meet_stay_apart(spelling):
    """Two metrics that would get one name both keep the recorded one, unless it is one's own."""
    found = choose(Names("lr", "learning_rate", "throughput", "samples_per_sec"), None, spelling)
    assert len({metric.written for metric in found}) == 4
    assert ExportedMetric("lr", "lr") in found
    assert ExportedMetric("throughput", "throughput") in found


@given(st.sets(st.sampled_from([metric.name.replace("*", "0") for metric in METRICS] + [a.name for a in ALIASES])))
def test_no_metric_is_lost_by_spelling(names):
    """Whatever was recorded, each metric is written once, under a name of its own and of its meaning."""
    for spelling in SPELLINGS:
        found = choose(Names(*names), None, spelling)
        assert sorted(metric.recorded for metric in found) == sorted(names)
        assert len({metric.written for metric in found}) == len(names)
        assert all(canonical(m.written) == canonical(m.recorded) for m in found if pattern_of(m.recorded) == m.recorded)


def test_metrics_are_found_in_any_spelling():
    """A metric is found under another spelling of its name, and asked for twice is exported once."""
    past = Names("learning_rate", "loss")
    assert choose(past, ["lr"]) == [ExportedMetric("learning_rate", "learning_rate")]
    assert len(choose(past, ["loss", "lr", "loss", "training_loss"])) == 2


def test_unknown_metrics_are_told():
    """A name that the run has not is an error that names the nearest."""
    with pytest.raises(UsageError, match=r"cannot export metric 'los': .*; did you mean 'loss'"):
        choose(Names("loss"), ["los"])
    with pytest.raises(UsageError, match="stepscope show run-1"):
        choose(Names(), ["loss"])


def test_the_page_has_the_spellings_of_the_documents():
    """The table of docs/howto/export.md is the one that exports use."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "export.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([\w/*]+)` \| `([\w/]+)` \|$", text, re.MULTILINE)) == DOCUMENTED
