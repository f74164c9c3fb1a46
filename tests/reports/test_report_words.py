"""Words and numbers of a report's comparison."""

from __future__ import annotations

import pytest

from stepscope.reports.report_sections import difference, quantity


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.021, "+2.1 %"), (-0.00001, "0 %"), (4.0, "+400.0 %"), (9.0, "10 times"), (4.5e16, "4.5e+16 times")],
)
def test_a_difference_reads_well(ratio, text):
    """Small differences are percentages, none is 0, large ones are factors."""
    assert difference(ratio) == text


def test_a_quantity_is_said_in_words():
    """What was taken at a step or after a time says so."""
    assert quantity("eval/loss@1999") == "eval/loss at step 1999"
    assert quantity("loss@2.5s") == "loss after 2.5 s"
    assert quantity("loss@50%") == "loss at 50 % of the run"
    assert quantity("loss@end") == "loss at the end"
    assert quantity("step_seconds/mean") == "step_seconds/mean"
