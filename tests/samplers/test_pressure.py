from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.pressure import KINDS, METRICS, PressureSampler, parse_pressure
from tests.samplers.machines import SECOND, answer_or_error, write


def text(total, share=2.5):
    return (
        f"some avg10={share:.2f} avg60=1.18 avg300=3.84 total={total}\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=0\n"
    )


@pytest.mark.promise("S1-008")
def test_share_of_waiting(tmp_path):
    """The share of the last 10 s is told at once, the share since the last sample from the second on."""
    sampler = PressureSampler(write(tmp_path, {f"proc/pressure/{source}": text(10_000_000) for source in KINDS}))
    first = sampler.sample(0)
    assert first == {
        "pressure/cpu_some_ratio": 0.025,
        "pressure/memory_some_ratio": 0.025,
        "pressure/memory_full_ratio": 0.01,
        "pressure/io_some_ratio": 0.025,
        "pressure/io_full_ratio": 0.01,
    }
    write(tmp_path, {"proc/pressure/io": text(11_000_000)})
    values = sampler.sample(2 * SECOND)
    assert values["pressure/io_some_stalled_ratio"] == 0.5
    assert values.keys() == {metric.name for metric in METRICS}


def test_no_pressure(tmp_path):
    """A kernel without pressure gives no values, and the reason with its remedy."""
    sampler = PressureSampler(tmp_path)
    assert sampler.sample(0) == {}
    assert "psi=1" in sampler.absent()["pressure"]


def test_switched_off(tmp_path):
    """A source that cannot be read is left out and named; the others go on."""
    write(tmp_path, {"proc/pressure/cpu": text(1), "proc/pressure/memory": text(1)})
    sampler = PressureSampler(tmp_path)
    assert "pressure/cpu_some_ratio" in sampler.sample(0)
    assert set(sampler.absent()) == {"pressure/io_*"}


@given(st.binary(max_size=100))
def test_parser_meets_anything(data):
    """Whatever stands in the file, parsing gives shares or a ValueError."""
    assert isinstance(answer_or_error(parse_pressure, b"some avg10=" + data), (dict, ValueError))
