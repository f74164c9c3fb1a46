"""Real gloo ranks that hang: the rank is named while it hangs, once, by verdict and alert; pauses are left alone.

One fault of each kind; all of them, with 2, 4 and 8 ranks, run in `python -m bench live_hangs`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import stepscope
from tests.integration.gloo_jobs import GlooJob, wait_for_end
from tests.integration.processes import until

pytest.importorskip("torch", reason="needs torch, whose gloo ranks these are")
FAULTS = ("loader_stands", "opens_fifo", "keeps_gil_computing", "other_collective", "dies", "network_down")


def told(folder, fault, ranks=2):
    """Let a job hang; return its first right verdict, and the alerts that fire."""
    with GlooJob(folder / f"job-{fault}", fault, ranks) as job:
        verdict, _ = job.named(150.0)
        alerts = until(lambda: alerts_of(job.path), f"the alert about {fault}")
        return job, verdict, alerts


def alerts_of(path):
    """Return what the alerts about the hang say that fire now."""
    found = {}
    for event in stepscope.open(path).events("alert"):
        if event["rule"] in ("hang", "stall"):
            found[event["alert"]] = event
    return [event["text"] for event in found.values() if event["state"] == "firing"]


def left_alone(folder, fault, ranks=2):
    """Let a healthy job pause and end; return the ranks that were blamed, and the alerts that fire."""
    with GlooJob(folder / f"job-{fault}", fault, ranks) as job:
        wait_for_end(job)
        return [one["ranks"] for one in job.verdicts() if one["ranks"]], alerts_of(job.path)


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.timeout(600)
def test_a_hang_of_each_kind_is_named_once_and_a_pause_is_not(tmp_path):
    """Never arrived, outside of torch, desynchronised, dead, stuck: kind and rank are right, in one verdict and alert.

    The pause is an evaluation that one rank runs, unannounced, while the other waits for it longer than any step took.
    """
    with ThreadPoolExecutor(4) as pool:
        calm = pool.submit(left_alone, tmp_path, "evaluates_untold")
        found = list(pool.map(lambda fault: told(tmp_path, fault), FAULTS))
    for job, verdict, alerts in found:
        assert len(alerts) == 1, job.fault
        assert alerts[0].startswith(verdict["text"][:20])
        assert verdict["evidence"]["stacks"]
        assert verdict["remedy"]
    assert calm.result() == ([], [])
