"""The alerts of a run as rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.evaluation.history import ACTIVE, alerts_of
from tests.alerts.rows import Rig

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.dictionaries(st.text(max_size=3), st.integers())
)
KEYS = st.sampled_from(["kind", "alert", "rule", "state", "severity", "text", "labels", "evidence", "time", "rank"])


@given(st.lists(st.dictionaries(KEYS, PLAIN | st.just("alert"), max_size=8), max_size=8))
def test_any_events_give_rows(events):
    """Events of another version, or damaged ones, never raise."""
    for row in alerts_of(events):
        assert isinstance(row["since"], float)
        assert isinstance(row["labels"], dict)


def test_other_events_are_no_alerts():
    """Only alert events make rows; without any there are none."""
    assert alerts_of([{"kind": "ended", "time": 1.0}, {"kind": "alert"}]) == []


def test_each_hot_gpu_is_an_alert():
    """Every series of a rule has an alert and a row of its own."""
    rig = Rig(
        {"name": "hot", "when": "gpu/*/temperature_celsius > 80"}, {"name": "high", "when": "cpu/usage_ratio > 1%"}
    )
    row = {f"gpu__{at}__temperature_celsius": 90.0 for at in range(8)}
    changes = rig.sample(**row, cpu__usage_ratio=1.0)
    assert [row["state"] in ACTIVE for row in alerts_of(change.event() for change in changes)] == [True] * 9
    assert len({change.alert for change in changes}) == 9
