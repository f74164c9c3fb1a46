from __future__ import annotations

import math

import pytest

from stepscope.analysis.cost.prices import load
from stepscope.analysis.cost.sizing import GIB, Usage, advise, scaling

HOUR = 3600.0


def kinds(**facts):
    """Return the kinds of advice for a run of an hour."""
    return [one.kind for one in advise(Usage(seconds=HOUR, **facts), load())]


def test_machine_that_fits_gets_no_advice():
    """A run that uses its machine well is left alone, and so is one of which nothing is known."""
    assert kinds(gpus=1, utilization=0.97, memory_peak=60 * GIB, memory_total=80 * GIB, data_ratio=0.02) == []
    assert kinds() == []


def test_data_comes_before_everything_else():
    """While GPUs wait for data, no other card, batch or number of them is advised but more workers."""
    found = advise(
        Usage(
            *(HOUR, 4, 0.3, 10 * GIB, 80 * GIB, 0.6),
            processors=32.0,
            processors_used=4.0,
            workers=2.0,
        )
    )
    assert [one.kind for one in found] == ["input_bound"]
    assert "num_workers (2 now)" in found[0].remedy
    assert found[0].gain_ratio == 0.6


@pytest.mark.promise("S1-083")
def test_batch_grows_into_free_memory():
    """Memory that is mostly free holds a bigger batch, by a factor that surely fits; full memory is a risk."""
    found = advise(Usage(HOUR, 1, 0.8, 18 * GIB, 80 * GIB))
    assert [one.kind for one in found] == ["bigger_batch"]
    assert "4 times" in found[0].remedy
    assert kinds(gpus=1, memory_peak=79 * GIB, memory_total=80 * GIB) == ["memory_full"]


@pytest.mark.promise("S0-086", "S1-083")
def test_fewer_gpus_where_they_wait():
    """GPUs that wait for each other, or idle, could be fewer; busy ones that scale could be more."""
    assert "fewer_gpus" in kinds(gpus=8, communication_ratio=0.4, utilization=0.99)
    idle = advise(Usage(HOUR, 8, 0.2, 60 * GIB, 80 * GIB))
    assert idle[0].text.endswith("2 could do the same work")
    busy = {"gpus": 4, "communication_ratio": 0.02, "utilization": 0.95, "goodput_ratio": 0.95}
    assert kinds(**busy, memory_peak=60 * GIB, memory_total=80 * GIB) == ["more_gpus"]


@pytest.mark.promise("S1-084")
def test_cheaper_card_that_holds_the_peak():
    """A card is advised if it holds the peak with room and the same work costs clearly less on it; else none."""
    table = load()
    dear = table.price("aws/H100")
    usage = Usage(HOUR, 1, 0.3, 10 * GIB, 80 * GIB, card=dear.card, per_hour=dear.per_hour, provider="aws")
    cheaper = next(one for one in advise(usage, table) if one.kind == "cheaper_card")
    assert f"{table.currency} an hour" in cheaper.text
    other = table.card(cheaper.evidence["other"])
    assert other.memory_gib > 10 * 1.15
    assert other.prices["aws"] * cheaper.evidence["slower"] < 0.9 * dear.per_hour
    full = Usage(HOUR, 1, 0.99, 185 * GIB, 192 * GIB, card=dear.card, per_hour=dear.per_hour)
    assert "cheaper_card" not in [one.kind for one in advise(full, table)]


def test_short_runs_say_nothing():
    """A run of some seconds says nothing about the size of its machine."""
    assert advise(Usage(5.0, 1, 0.01, GIB, 80 * GIB)) == []


def test_scaling_by_amdahl():
    """From throughputs at several sizes come the serial share, the efficiency, and where more GPUs stop paying."""

    def rate(gpus):
        return 1 / (0.1 + 0.9 / gpus)

    found = scaling([(gpus, rate(gpus)) for gpus in (1, 2, 4, 8)])
    assert found["serial_ratio"] == pytest.approx(0.1)
    assert found["efficiency_ratio"] == pytest.approx(rate(8) / 8)
    assert found["most_gpus"] == pytest.approx((math.sqrt(2) - 1) * 9)
    assert scaling([(1, 10.0), (2, 20.0)])["most_gpus"] is None
    assert set(scaling([(1, 10.0), (1, 11.0), (0, 5.0), (4, math.nan)]).values()) == {None}
    assert scaling([(1, 10.0), (4, 5.0)])["serial_ratio"] == 1.0


def test_processors_that_others_use_are_said_to_be_theirs():
    """Less work in the data workers does not help where another program takes the machine."""
    for own, said in (
        (0.4, "3.6 of them by other programs"),
        (3.5, "in use all the time"),
        (None, "in use all the time"),
    ):
        usage = Usage(seconds=7200, processors=4, processors_used=4.0, processors_own=own)
        (found,) = [one for one in advise(usage) if one.kind == "processors_full"]
        assert found.text.endswith(said)


def test_nobody_is_told_to_take_a_batch_64_times_as_big():
    """What fits into memory is not what learns well."""
    usage = Usage(seconds=7200, gpus=1, memory_peak=2**30, memory_total=80 * 2**30, utilization=0.3)
    (found,) = [one for one in advise(usage) if one.kind == "bigger_batch"]
    assert "2 to 8 times as big" in found.remedy
