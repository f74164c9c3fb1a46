"""Media that scripts log: what is known of each is recorded, not its bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in.unknown import NOTICES, unknown
from stepscope.session.histogram import describe_array

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 200
"""Characters kept of a caption or a column's name."""
MOST_COLUMNS = 50


class Media:
    """Something to look at or listen to."""

    kind = "media"

    def __init__(self, data_or_path: Any = None, *_: Any, caption: Any = None, **more: Any) -> None:
        """Take the arguments of any of W&B's media; the data is measured, and not kept."""
        self.caption = caption
        self.facts: dict[str, Any] = {**size_facts(data_or_path), **shape_of(data_or_path)}
        title = caption if caption is not None else more.get("title")
        if title is not None:
            self.facts["caption"] = str(title)[:LONGEST]

    def describe(self) -> dict[str, Any]:
        """Return what an event says of it."""
        return self.facts

    def __getattr__(self, name: str) -> Any:
        if name in {"facts", "caption"}:  # a copy asks before they are set
            raise AttributeError(name)
        return unknown(f"{type(self).__name__}.{name}")


class Image(Media):
    """A picture."""

    kind = "image"


class Video(Media):
    """Moving pictures."""

    kind = "video"


class Audio(Media):
    """A sound."""

    kind = "audio"


class Html(Media):
    """A piece of a page."""

    kind = "html"


class Object3D(Media):
    """A body or a cloud of points."""

    kind = "object3d"

    @classmethod
    def from_file(cls, path: Any, *_: Any, **__: Any) -> Object3D:
        """Take a file."""
        return cls(path)

    from_numpy = from_point_cloud = from_file


class Molecule(Media):
    """A molecule."""

    kind = "molecule"

    @classmethod
    def from_smiles(cls, data: Any, *_: Any, **__: Any) -> Molecule:
        """Take a SMILES text."""
        return cls(data)

    from_rdkit = from_smiles


class Plotly(Media):
    """A chart of plotly or matplotlib."""

    kind = "figure"


class LoggedChart(Media):
    """One of W&B's own charts, drawn from a table."""

    kind = "figure"

    def __init__(self, plot: str, rows: int | None = None, title: Any = None) -> None:
        """Name the sort of chart; `rows` is how many points it shows."""
        super().__init__(title=title)
        self.facts = {"plot": plot, **({} if rows is None else {"rows": rows}), **self.facts}


class LoggedHistogram:
    """A distribution; recorded as Stepscope's own histogram."""

    kind = "histogram"

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        """Take values, or counts and edges as numpy's histogram returns them."""
        self.facts: dict[str, Any] = {}
        with NOTICES.shield("histogram", "take a histogram", "pass an array of numbers"):
            if np_histogram is not None:
                import numpy as np  # who has a histogram of numpy has it

                counts, edges = (np.asarray(part).tolist() for part in np_histogram)
                self.facts = {"count": int(sum(counts)), "nonfinite": 0, "edges": edges, "counts": counts}
            else:
                self.facts = describe_array(sequence, num_bins)
        self.histogram, self.bins = self.facts.get("counts", []), self.facts.get("edges", [])


class LoggedTable:
    """Rows and columns; columns and the number of rows are recorded."""

    kind = "table"

    def __init__(
        self, columns: Any = None, data: Any = None, rows: Any = None, dataframe: Any = None, **_: Any
    ) -> None:
        """Take columns and rows, or a frame of pandas."""
        self.columns: list[Any] = list(columns) if columns is not None else ["Input", "Output", "Expected"]
        self.data: list[list[Any]] = []
        with NOTICES.shield("table", "fill a table", "pass columns= and data=, a list of rows"):
            found = dataframe if dataframe is not None else data if data is not None else rows
            if hasattr(found, "columns") and hasattr(found, "values"):
                self.columns, found = list(found.columns), found.values.tolist()
            self.data = [list(row) for row in found] if found is not None else []

    def add_data(self, *row: Any) -> None:
        """Add a row."""
        self.data.append(list(row))

    add_row = add_data

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - W&B's
        """Add a column."""
        self.columns.append(name)
        values = list(data)
        self.data = self.data or [[] for _ in values]
        for row, value in zip(self.data, values, strict=False):
            row.append(value)

    def get_column(self, name: str, convert_to: str | None = None) -> Any:
        """Return the values of a column, as an array with `convert_to="numpy"`."""
        at = self.columns.index(name)
        values = [row[at] for row in self.data]
        if convert_to != "numpy":
            return values
        import numpy as np  # only here

        return np.array(values)

    def get_dataframe(self) -> Any:
        """Return the table as a frame of pandas."""
        import pandas as pd  # only here

        return pd.DataFrame(self.data, columns=self.columns)

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Return the rows with their numbers."""
        return iter(enumerate(self.data))

    def describe(self) -> dict[str, Any]:
        """Return what an event says of it."""
        names = [str(name)[:LONGEST] for name in self.columns[:MOST_COLUMNS]]
        return {"rows": len(self.data), "columns": names}

    def __getattr__(self, name: str) -> Any:
        if name in {"columns", "data"}:
            raise AttributeError(name)
        return unknown(f"Table.{name}")


def size_of(data: Any) -> int | None:
    """Return the bytes of a file, an array or a text; None if unknown. Nothing is read, so no device is waited for."""
    if isinstance(data, (str, os.PathLike)) and len(os.fspath(data)) < 4096:
        try:
            return os.stat(data).st_size
        except (OSError, ValueError):  # no file: the text itself
            return len(str(data).encode("utf-8", "replace"))
    if isinstance(data, (str, bytes, bytearray)):
        return len(data)
    size = getattr(data, "nbytes", None)
    return size if isinstance(size, int) else None


def size_facts(data: Any) -> dict[str, int]:
    """Return the bytes as a field of an event, if they are known."""
    size = size_of(data)
    return {} if size is None else {"size_bytes": size}


def shape_of(data: Any) -> dict[str, Any]:
    """Return the shape of an array, or width and height of a picture."""
    shape = getattr(data, "shape", None)
    if shape is None:
        shape = getattr(data, "size", None)  # of PIL: width and height
    try:
        return {"shape": [int(part) for part in shape][:8]} if isinstance(shape, (tuple, list)) else {}
    except (TypeError, ValueError):
        return {}


BY_NAME = {
    "Audio": Audio,
    "Histogram": LoggedHistogram,
    "Html": Html,
    "Image": Image,
    "Molecule": Molecule,
    "Object3D": Object3D,
    "Plotly": Plotly,
    "Table": LoggedTable,
    "Video": Video,
}
"""The media by W&B's names."""
