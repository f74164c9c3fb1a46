"""The diagnosis of a run as plain data, for page, terminal, report and command line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.changes import changes, slow_steps
from stepscope.analysis.diagnosis.machine import busy
from stepscope.analysis.diagnosis.pipeline import finding_of
from stepscope.analysis.diagnosis.verdict import findings, limited, missing, primary, summary
from stepscope.analysis.pipelines.operations import Operations
from stepscope.analysis.pipelines.what_if import what_if
from stepscope.sources.attempts import nodes_of
from stepscope.sources.evidence import evidence_of, evidence_of_imported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.importers.imported import Imported
    from stepscope.store.reader import Past


def diagnose(past: Past) -> dict[str, Any]:
    """Return the verdict of a recorded run: see docs/concepts/diagnosis.md for every key."""
    about = {"id": past.id, "name": past.name, "project": past.project, "path": str(past.path), "state": past.state}
    evidence = evidence_of(past)
    cards = [name for name in evidence.series if name.startswith("gpu/") and name.endswith("/memory_total_bytes")]
    gpus, nodes = sum(len(evidence.series[name]) for name in cards), {node.node for node in nodes_of(past)}
    return {**_diagnosis(about, evidence), "devices": gpus or max(1, len(nodes))}


def diagnose_imported(run: Imported) -> dict[str, Any]:
    """Return the diagnosis of a run that another tool recorded."""
    name = str(run.facts.get("name") or run.path)
    about = {"id": run.path, "name": name, "project": "", "path": run.path, "state": "", "format": run.format}
    return {**_diagnosis(about, evidence_of_imported(run)), "devices": 1}


def diagnose_operations(path: str, columns: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the diagnosis of a pipelined training: which stage or replica is late, and the cost."""
    operations = Operations.of(columns)
    found = what_if(operations)
    finding = finding_of(found)
    steps = len(np.unique(operations.step))
    text = f"no stage or replica is late: without stragglers it would be {found.slowdown:.3f} times as fast"
    return {
        "run": {"id": path, "name": path, "project": "", "path": path, "state": "", "format": "pipeline_trace"},
        "primary": finding.kind if finding else "none",
        "summary": finding.text if finding else text,
        "findings": [finding.facts()] if finding else [],
        **{key: [] for key in ("changes", "slow_steps", "missing", "notes")},
        "steps": steps,
        "seconds": found.seconds * steps,
        "devices": 1,
    }


def _diagnosis(about: dict[str, Any], evidence: Evidence) -> dict[str, Any]:
    found = [limited(one) for one in findings(evidence)]
    steps = evidence.leader
    return {
        "run": about,
        "primary": primary(found),
        "summary": summary(found, evidence),
        "findings": [one.facts() for one in found],
        "changes": changes(evidence),
        "slow_steps": slow_steps(evidence),
        "missing": missing(evidence),
        "notes": [note for note in (busy(evidence),) if note],
        "steps": steps.count if steps is not None else 0,
        "seconds": steps.total if steps is not None and math.isfinite(steps.total) else 0.0,
    }
