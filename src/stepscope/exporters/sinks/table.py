"""The table of sinks by the scheme of their address. Importing it loads none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.sink import Sink

SINKS = {
    "wandb": ("wandb.sink", "WandbSink"),
    "mlflow+http": ("mlflow.server", "MlflowSink"),
    "mlflow+https": ("mlflow.server", "MlflowSink"),
    "mlflow+sqlite": ("mlflow.sqlite", "MlflowSqliteSink"),
    "trackio": ("trackio.sink", "TrackioSink"),
    "otlp+http": ("series.otlp", "OtlpSink"),
    "otlp+https": ("series.otlp", "OtlpSink"),
    "prometheus+http": ("series.remote_write", "RemoteWriteSink"),
    "prometheus+https": ("series.remote_write", "RemoteWriteSink"),
    "kubeflow": ("kubeflow", "KubeflowSink"),
}
"""Module and class by scheme."""


def kind_of(scheme: str) -> type[Sink]:
    """Return the class that serves a scheme; UsageError if there is none."""
    if scheme not in SINKS:
        raise UsageError(f"send to {scheme[:40]}://", "there is no such sink", f"known are {', '.join(SINKS)}")
    module, name = SINKS[scheme]
    found: type[Sink] = getattr(importlib.import_module(f"stepscope.exporters.sinks.{module}"), name)
    return found


def new_sink(address: SinkAddress, environ: Mapping[str, str]) -> Sink:
    """Return the sink of an address, not connected yet; UsageError if the address is not one of it."""
    return kind_of(address.scheme)(address, environ)
