"""Read a Grafana dashboard."""

from __future__ import annotations


def expressions(made):
    """Return every PromQL expression of a dashboard's panels."""
    return [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]
