"""Sinks: what they cost the training, what they lack after faults and kills, and how fast they are.

`--only` chooses parts: loop, end, storm, kills, rates.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bench.sink_contents import OtlpStore, mlflow_target, prometheus_target
from bench.sink_loop import ends, slowed
from bench.sink_rates import rates
from bench.sink_servers import mlflow_server, prometheus_server, receivers
from bench.sink_storm import kills, storm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.figure import Figure, Options
    from bench.sink_contents import Target

PARTS = ("loop", "end", "storm", "kills", "rates")
FAULTS, QUICK_FAULTS = 100, 6
KILLS, QUICK_KILLS = 100, 3
SEED = 21


def measure(options: Options) -> list[Figure]:
    """Return the figures of the parts asked for."""
    parts = [part for part in PARTS if options.only in part]
    found: list[Figure] = []
    if "loop" in parts:
        found += slowed(options)
    if "end" in parts:
        found += ends(options)
    if not {"storm", "kills", "rates"} & set(parts):
        return found
    faults, most = (QUICK_FAULTS, QUICK_KILLS) if options.quick else (FAULTS, KILLS)
    with contextlib.ExitStack() as stack:
        mlflow = stack.enter_context(mlflow_server(options.scratch / "mlflow"))
        prometheus = stack.enter_context(prometheus_server(options.scratch / "prometheus"))
        seed = options.seed or SEED
        if "storm" in parts:
            with targets(mlflow, prometheus) as three:
                found += storm(three, options.scratch / "storm", faults, seed).figures("sink_storm", "sinks that fail")
        if "kills" in parts:
            with targets(mlflow, prometheus) as three:
                after = kills(three, options.scratch / "kills", min(most, options.kills), seed)
            found += after.figures("sink_kills", "sender killed")
        if "rates" in parts:
            found += rates(options, stack.enter_context(receivers()), mlflow)
    return found


@contextlib.contextmanager
def targets(mlflow: int | None, prometheus: int | None) -> Iterator[list[Target]]:
    """Yield the servers that are installed, and a receiver of OTLP that knows nothing yet."""
    store = OtlpStore()
    try:
        found = [store.target()]
        if mlflow is not None:
            found.append(mlflow_target(mlflow))
        if prometheus is not None:
            found.append(prometheus_target(prometheus))
        yield found
    finally:
        store.close()
