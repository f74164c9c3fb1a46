"""Words and numbers of a report's comparison."""

from __future__ import annotations

from stepscope.reports.report_sections import quantity


def test_a_quantity_is_said_in_words():
    """What was taken at a step or after a time says so."""
    assert quantity("eval/loss@1999") == "eval/loss at step 1999"
    assert quantity("loss@2.5s") == "loss after 2.5 s"
    assert quantity("loss@50%") == "loss at 50 % of the run"
    assert quantity("loss@end") == "loss at the end"
    assert quantity("step_seconds/mean") == "step_seconds/mean"
