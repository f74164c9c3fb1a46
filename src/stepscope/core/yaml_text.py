"""Reading YAML that may be hostile: events only, no constructors, with caps on everything.

PyYAML is used for its parser alone. The events are turned into plain data here, so that no tag can build an
object, every key keeps its line, and the work is bounded before it is done. Plain scalars follow YAML 1.2:
``1e-8`` is a number; ``yes``, ``no``, ``on`` and ``off`` are words; keys are always text.

Import this module only where there is a file to read: it loads PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from stepscope.core.errors import UsageError
from stepscope.core.kinds import MAX_DEPTH

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_000_000
MAX_NODES = 20_000
"""Values in a document, counted after its aliases are expanded."""
MAX_ALIASES = 100
MAX_DIGITS = 300
"""Characters beyond which a scalar is always text."""

_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_TAGS = (None, "!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Lines = Mapping[tuple[str, ...], int]
"""Line of each key, from 1, by its path."""


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain data: the mapping it holds, and where its keys are."""

    data: dict[str, object]
    lines: Lines
    duplicates: tuple[tuple[str, int, int], ...] = ()
    """Keys that stand twice in one mapping, with both lines; `data` has the first."""


class YamlRefusal(Exception):  # noqa: N818 - a verdict on the text; people see it as a UsageError that names the file
    """Why a text is not accepted, as a cause and a remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        """Keep both halves of the message."""
        super().__init__(cause, remedy)
        self.cause, self.remedy = cause, remedy


def read_file(path: Path) -> Document:
    """Return the mapping that a YAML file holds; an empty file is an empty mapping.

    Raises:
        UsageError: the file cannot be read, is too large, or is refused by `read_text`.
    """
    what = f"load '{path}'"
    try:
        if path.exists() and not path.is_file():
            raise UsageError(what, "it is not a regular file", "name a YAML file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UsageError(what, f"it is larger than {MAX_BYTES} bytes", "give a smaller file")
        return read_text(raw.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(what, error.strerror or error, "check the path and its permissions") from error
    except ValueError as error:
        raise UsageError(what, "the path or the text in it is not valid UTF-8", "save it as UTF-8") from error
    except YamlRefusal as refusal:
        raise UsageError(what, refusal.cause, refusal.remedy) from refusal


def read_text(text: str, *, fast: bool = yaml.__with_libyaml__) -> Document:
    """Return the mapping that a YAML text holds; with `fast`, libyaml parses it, at ten times the speed of PyYAML.

    Raises:
        YamlRefusal: it is not YAML, not one mapping, or exceeds the caps above.
    """
    try:
        return _DocumentBuilder(yaml.parse(text, Loader=yaml.CSafeLoader if fast else yaml.SafeLoader)).document()
    except yaml.MarkedYAMLError as error:
        where = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise YamlRefusal(f"{error.problem or error.context}{where}", "correct the YAML there") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlRefusal("it holds characters that YAML forbids", "remove them") from error


@dataclass(frozen=True, slots=True)
class _Node:
    """A value, the lines of the keys inside it, and the number of values it is made of."""

    value: object
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    count: int = 1


@dataclass(slots=True)
class _DocumentBuilder:
    """Build plain data from parser events; every cap is checked before an event is acted upon."""

    events: Iterator[yaml.Event]
    anchors: dict[str, _Node] = field(default_factory=dict)
    duplicates: list[tuple[str, int, int]] = field(default_factory=list)
    aliases: int = 0
    total: int = 0

    def document(self) -> Document:
        node = None
        for event in self.events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            if node is not None:
                raise YamlRefusal(f"a second document starts{_at(event)}", "keep one document in the file")
            node = self.node(next(self.events), depth=0)
        if node is None or node.value is None:
            return Document({}, {})
        if not isinstance(node.value, dict):
            raise YamlRefusal("it is not a mapping of keys to values", "write it as 'key: value' lines")
        return Document(node.value, node.lines, tuple(self.duplicates))

    def node(self, event: yaml.Event, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise YamlRefusal(f"it is nested deeper than {MAX_DEPTH} levels{_at(event)}", "flatten it")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        _check_tag(event)
        self.add(1, event)
        if isinstance(event, yaml.ScalarEvent):
            plain = event.implicit[0] and event.tag is None
            node = _Node(_scalar(event.value) if plain else event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.sequence(depth)
        else:
            node = self.mapping(depth)
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def alias(self, event: yaml.AliasEvent) -> _Node:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise YamlRefusal(f"it has more than {MAX_ALIASES} aliases{_at(event)}", "write the values out")
        node = self.anchors.get(event.anchor or "")
        if node is None:
            raise YamlRefusal(f"the alias '*{event.anchor}' is not defined yet{_at(event)}", "define its anchor before")
        self.add(node.count, event)
        return node

    def sequence(self, depth: int) -> _Node:
        before, items = self.total, []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth + 1).value)
        return _Node(items, count=self.total - before + 1)

    def mapping(self, depth: int) -> _Node:
        before = self.total
        values: dict[str, object] = {}
        lines: dict[tuple[str, ...], int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = _key(event)
            node = self.node(next(self.events), depth + 1)
            if key in values:
                self.duplicates.append((key, lines[key,], _line(event)))
                continue
            lines[key,] = _line(event)
            values[key] = node.value
            lines.update({(key, *path): line for path, line in node.lines.items()})
        return _Node(values, lines, self.total - before + 1)

    def add(self, count: int, event: yaml.Event) -> None:
        self.total += count
        if self.total > MAX_NODES:
            raise YamlRefusal(f"it holds more than {MAX_NODES} values{_at(event)}", "give a smaller file")


def _key(event: yaml.Event) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise YamlRefusal(f"a key is not a word{_at(event)}", "use plain words as keys")
    _check_tag(event)
    return str(event.value)


def _check_tag(event: yaml.Event) -> None:
    tag = getattr(event, "tag", None)
    if tag not in _TAGS:
        raise YamlRefusal(f"the tag '{tag[:60]}' is not allowed{_at(event)}", "remove the tag")


def _scalar(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= MAX_DIGITS:
        if _INTEGER.fullmatch(text):
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _at(event: yaml.Event) -> str:
    return f" (line {_line(event)})"
