"""Stragglers among real gloo ranks, one case of each kind of answer; `python -m bench stragglers` runs all."""

from __future__ import annotations

import pytest

from bench.stragglers import judge
from bench.stragglers.cases import CLASSES, Case
from bench.stragglers.jobs import Jobs

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.training]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A process that runs jobs; it imports torch once."""
    found = Jobs(tmp_path_factory.mktemp("jobs"))
    yield found
    found.close()


@pytest.mark.promise("S2-059")
@pytest.mark.parametrize(
    "case",
    [
        Case("data", 4, (3,), "watch", steps=40),
        Case("compute", 4, (2, 3), steps=40, per_node=2),
        Case("link", 4, (2,), steps=40),
        Case("checkpoint", 4, steps=40),
    ],
    ids=lambda case: case.name,
)
def test_the_planted_rank_is_named_with_its_class(jobs, case):
    """A loader, a whole node and a link are told apart, and a checkpoint of rank 0 makes nobody late."""
    verdict = judge(jobs, case)
    assert verdict.ok
    assert (verdict.late, verdict.cause) == (case.late, CLASSES.get(case.kind, "")), verdict.text
