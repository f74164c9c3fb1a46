"""Scripts with a SummaryWriter as real programs: with the setting off, in forked children, beside our own calls."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorboardX")
from tests.integration.conftest import bench  # noqa: F401 - a fixture
from tests.integration.processes import the_run

pytestmark = [pytest.mark.processes, pytest.mark.slow]
RUN = ["-m", "stepscope", "run"]
LOG = """
    from tensorboardX import SummaryWriter
    writer = SummaryWriter("tb")
    writer.add_scalar("loss", 0.5, 7)
"""


def names(past):
    """Return the names that a script has logged."""
    return [name for name in past.names() if name in {"loss", "child", "own", "both"}]


def points(past, name):
    """Return the steps and values of a name."""
    series = past.series(name)
    return series.step.tolist(), series.value.tolist()


@pytest.mark.parametrize(("environ", "expected"), [({}, ["loss"]), ({"STEPSCOPE_RECORDER__CATCH": "false"}, [])])
def test_the_setting_switches_it_off(bench, environ, expected):  # noqa: F811
    """Under `stepscope run` a script is caught without a line in it, unless the configuration says no."""
    bench.run(LOG, interpreter=RUN, environ=environ)
    assert names(the_run()) == expected


def test_a_bare_init_catches_only_if_asked(bench):  # noqa: F811
    """`init` leaves trackers alone; with `recorder__catch=True` it records what they are handed."""
    bench.run(f"import stepscope; run = stepscope.init(){LOG}run.finish()".replace("\n    ", "\n"))
    assert names(the_run()) == []


def test_a_forked_child_is_not_caught(bench):  # noqa: F811
    """The child's own calls go to its tracker alone."""
    fork = """
    import os
    pid = os.fork()
    if pid == 0:
        SummaryWriter("child").add_scalar("child", 1.0, 1)  # the old one has locks of threads that are not here
        os._exit(0)
    os.waitpid(pid, 0)
    """
    bench.run(LOG + fork, interpreter=RUN)
    past = the_run()
    assert names(past) == ["loss"]
    assert points(past, "loss") == ([7], [0.5])


def test_a_value_for_us_and_for_a_tracker_is_recorded_once(bench):  # noqa: F811
    """A script that logs to both has each value once, in either order; what it logs only here is complete."""
    both = """
    import stepscope
    run = stepscope.init()
    for step in range(3):
        run.log({"both": step / 4, "own": 1.0}, step=step)
        writer.add_scalar("both", step / 4, step)
    writer.add_scalar("both", 9.0, 3)
    stepscope.log({"both": 9.0}, step=3)
    """
    bench.run(LOG + both, interpreter=RUN)
    past = the_run()
    assert points(past, "both") == ([0, 1, 2, 3], [0.0, 0.25, 0.5, 9.0])
    assert points(past, "own") == ([0, 1, 2], [1.0] * 3)
