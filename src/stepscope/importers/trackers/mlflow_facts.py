"""What both stores of MLflow say about a run: states, tags and parameters, in our words."""

from __future__ import annotations

from typing import Any

STATES = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
    "1": "running",
    "2": "running",
    "3": "finished",
    "4": "failed",
    "5": "killed",
}
"""States by MLflow's word in the database and by its number in files."""
FACTS = {
    "mlflow.runName": "name",
    "mlflow.note.content": "notes",
    "mlflow.user": "user",
    "mlflow.parentRunId": "group",
    "mlflow.source.name": "source",
    "mlflow.source.git.commit": "git_commit",
}
"""Tags that MLflow itself sets, and the facts that they are; its other ones are left out."""
WORDS = {"True": True, "False": False, "None": None}


def tag_facts(tags: dict[str, str]) -> dict[str, Any]:
    """Return the facts in a run's tags; people's own become `key=value`, or the key if there is no value."""
    found: dict[str, Any] = {FACTS[key]: value for key, value in tags.items() if key in FACTS and value}
    own = sorted(f"{key}={value}" if value else key for key, value in tags.items() if not key.startswith("mlflow."))
    return {**found, "tags": own} if own else found


def written(value: str) -> Any:
    """Return the number, switch or None that Python writes as this text; MLflow keeps parameters as texts."""
    if value in WORDS:
        return WORDS[value]
    for kind in (int, float):
        try:
            found = kind(value)
        except ValueError:
            continue  # it is a text
        if str(found) == value:
            return found
    return value
