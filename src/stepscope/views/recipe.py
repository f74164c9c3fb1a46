"""The Python, SQL and shell commands that give the same numbers as a chart."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from stepscope.store.sql_text import quoted

if TYPE_CHECKING:
    from stepscope.store.curves import Ask
    from stepscope.store.reader import Past


def recipe(past: Past, part: Ask) -> dict[str, str]:
    """Return the texts; every name and path in them is quoted for its language."""
    return {"python": _python(past, part), "sql": _sql(past, part), "shell": _shell(past, part)}


def _python(past: Past, part: Ask) -> str:
    lines = ["import stepscope", "", f"past = stepscope.open({str(past.path)!a})"]
    steps = f", step_range={part.steps!r}" if part.steps else ""
    keep = [f"np.isin(series.{key}, {values!r})" for key, values in _chosen(part)]
    if part.times is not None:
        first, last = (end / 1e6 for end in part.times)
        keep.append(f"(series.time >= {first!r}) & (series.time <= {last!r})")
    for name in part.names:
        lines.append(f"series = past.series({name!a}{steps})  # series.step, series.time, series.value")
        if keep:
            lines.append(f"value = series.value[{' & '.join(keep)}]")
    if any("np." in line for line in lines):
        lines.insert(1, "import numpy as np")
    return "\n".join(lines) + "\n"


def _sql(past: Past, part: Ask) -> str:
    where = [f"run = {quoted(past.id)}", f"name IN ({', '.join(map(quoted, part.names))})"]
    where += [f"{key} IN ({', '.join(map(str, values))})" for key, values in _chosen(part)]
    if part.steps is not None:
        where.append(f"step BETWEEN {part.steps[0]} AND {part.steps[1]}")
    if part.times is not None:
        where.append(f"epoch_us(time) BETWEEN {part.times[0]} AND {part.times[1]}")
    columns, joined = "name, rank, attempt, step, time, value", "\n  AND ".join(where)
    return f"SELECT {columns}\nFROM points\nWHERE {joined}\nORDER BY name, rank, attempt, seq\n"


def _chosen(part: Ask) -> list[tuple[str, list[int]]]:
    chosen = (("rank", part.ranks), ("attempt", part.attempts))
    return [(key, list(values)) for key, values in chosen if values is not None]


def _shell(past: Past, part: Ask) -> str:
    names = " ".join(f"--metrics {shlex.quote(name)}" for name in part.names)
    root = shlex.quote(str(past.path.parent.parent))
    export = f"stepscope export {shlex.quote(str(past.path))} --format csv {names}"
    return f"{export}\nstepscope sql --dir {root} {shlex.quote(_sql(past, part).strip())}\n"
