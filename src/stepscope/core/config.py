"""The configuration: defaults, files, environment and keyword settings merged into one frozen object.

Sources, lowest first: defaults; `stepscope.yaml` in the working directory; the file that `STEPSCOPE_CONFIG`
names; `config_file=`; `STEPSCOPE_DIR`; `STEPSCOPE_<SECTION>__<KEY>`; keyword settings. Each may use any of the
spellings of `stepscope.core.spellings`. All problems are collected and reported together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core.environment import BETWEEN, PLAIN, ours, path_of, variable_of
from stepscope.core.errors import UsageError
from stepscope.core.kinds import MAX_DEPTH, Key, describe
from stepscope.core.settings import IMPLICATIONS, KEYS, PATHS, kind_of
from stepscope.core.spellings import ALIASES, CALLBACKS

FILE_NAME = "stepscope.yaml"
MAX_SHOWN = 20
"""Problems listed in one error; the rest are counted."""
MAX_SETTINGS = 2000
"""Settings of one source; more are a mistake."""
REFERENCE = "docs/reference/configuration.md lists every key"

_OWN_SPELLING = 1 << 30
Files = Sequence["str | Path"]


@dataclass(frozen=True, slots=True)
class Config:
    """Settings, complete and checked. Lists are tuples, durations are seconds, sizes are bytes."""

    values: Mapping[str, object]
    """Every setting by its path, defaults included."""
    sources: Mapping[str, str]
    """Where each value that is not a default comes from: a file and line, or the name of the source."""
    notices: tuple[str, ...] = ()
    """Notices for people: settings that override others, errors that were skipped."""

    def get(self, path: str) -> Any:
        """Return the value at a path such as "store.seal_bytes"; KeyError if there is none."""
        return self.values[path]

    def options(self, group: str) -> dict[str, Any]:
        """Return the options of a group such as "callbacks.profiler" that were set, here or by another spelling."""
        targets = {path: path for path in KEYS} | {path: alias.target for path, alias in ALIASES.items()}
        prefix = f"{group}."
        return {
            path.removeprefix(prefix): self.values[target]
            for path, target in targets.items()
            if path.startswith(prefix) and target in self.sources
        }

    def shown(self) -> dict[str, Any]:
        """Return the settings that were set, by path, without the values of secret keys: to be kept with a run."""
        secret = {path for path, key in KEYS.items() if key.secret}
        return {path: "(set)" if path in secret else self.values[path] for path in self.sources}


def discover(cwd: Path, environ: Mapping[str, str], config_file: str | Path | None = None) -> list[Path]:
    """Return the configuration files to load, lowest precedence first; only `stepscope.yaml` may be absent."""
    local = cwd / FILE_NAME
    named = [cwd / path for path in (environ.get("STEPSCOPE_CONFIG"), config_file) if path]
    files = [local, *named] if os.path.isfile(local) else named
    return [path for index, path in enumerate(files) if path not in files[index + 1 :]]


def load(
    files: Files = (), settings: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> Config:
    """Return the configuration from all sources.

    Args:
        files: YAML files, lowest precedence first (see `discover`).
        settings: keyword settings: nested dicts, dotted paths, `store__dir` for `store.dir`, or any other spelling.
        environ: environment; `STEPSCOPE_DIR` sets `store.dir`, `STEPSCOPE_<SECTION>__<KEY>` any setting.

    Raises:
        UsageError: a setting is unknown, of the wrong type or unreadable; the message lists all problems.
    """
    config, problems = _load(files, settings or {}, environ or {})
    if problems:
        raise _error(problems)
    return config


def load_or_default(
    files: Files = (), settings: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> Config:
    """Return what `load` returns; where it would raise, keep every valid setting and put the error in the notices."""
    config, problems = _load(files, settings or {}, environ or {})
    return replace(config, notices=(*config.notices, str(_error(problems)))) if problems else config


class _Problem(NamedTuple):
    """A problem of a source, and what to do about it."""

    source: str
    cause: str
    remedy: str


class _GivenValue(NamedTuple):
    """One value of a source: its path, the path as its author wrote it, and where it stands."""

    path: str
    written: str
    value: object
    line: int | None = None

    def name(self) -> str:
        """Return the key and its line for a message."""
        where = f" (line {self.line})" if self.line else ""
        return f"'{self.written[:80]}'{where}"


class _Setting(NamedTuple):
    """A checked value and where it comes from."""

    value: object
    origin: str
    written: str
    rank: int
    """Of two spellings of one key in one source the higher rank wins."""


@dataclass
class _SettingsSource:
    """One source being read: its values become settings, or problems."""

    name: str
    """As messages have it."""
    settings: dict[str, _Setting] = field(default_factory=dict)
    """The valid settings, by own paths."""
    problems: list[_Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    spell: Callable[[str], str] = str
    """How a path is written in this source."""
    strangers: list[str] = field(default_factory=list)
    """Paths that name nothing."""

    def read(self, tree: Mapping[str, object], lines: Mapping[tuple[str, ...], int] | None = None) -> _SettingsSource:
        """Take the values of a tree; return this source."""
        entries = list(islice(self.flatten(tree, (), lines or {}), MAX_SETTINGS + 1))
        if len(entries) > MAX_SETTINGS:
            self.refuse(f"it holds more than {MAX_SETTINGS} settings", "give fewer")
        for entry in self.respell_callbacks(entries[:MAX_SETTINGS]):
            self.take(entry)
        return self

    def refuse(self, cause: str, remedy: str) -> None:
        """Add a problem."""
        self.problems.append(_Problem(self.name, cause, remedy))

    def flatten(
        self, tree: Mapping[str, object], above: tuple[str, ...], lines: Mapping[tuple[str, ...], int]
    ) -> Iterator[_GivenValue]:
        """Yield the values of a tree; null means not set."""
        for key, value in tree.items():
            if len(self.problems) > MAX_SETTINGS:
                return
            keys = (*above, key)
            if type(key) is not str:
                self.refuse(f"the key {describe(key)} is not a text", "put quotes around it")
            elif isinstance(value, Mapping) and len(keys) >= MAX_DEPTH:
                self.refuse(f"'{'.'.join(keys)[:80]}' is nested deeper than {MAX_DEPTH} levels", "flatten it")
            elif isinstance(value, Mapping):
                yield from self.flatten(value, keys, lines)
            elif value is not None:
                path = ".".join(keys)
                yield _GivenValue(path, path, value, lines.get(keys))

    def respell_callbacks(self, entries: list[_GivenValue]) -> Iterator[_GivenValue]:
        """Bring the three forms of callback groups to `callbacks.<group>.<option>`; no `_target_` is imported."""
        groups = {name: name for name in CALLBACKS.values()}
        for entry in entries:
            *above, name = entry.path.split(".")
            if name == "_target_" and len(above) <= (2 if above[:1] == ["callbacks"] else 1):
                groups[".".join(above)] = self.group_of(entry)
        for entry in entries:
            parts = entry.path.split(".")
            body = next((path for end in range(len(parts)) if (path := ".".join(parts[:end])) in groups), None)
            option = entry.path.removeprefix(f"{body}.")
            if body is None:
                yield entry
            elif groups[body] and option != "_target_":
                yield entry._replace(path=f"callbacks.{groups[body]}.{option}")

    def group_of(self, entry: _GivenValue) -> str:
        """Return the group of a `_target_`, or "" (and a problem) for a class that is not ours."""
        group = CALLBACKS.get(entry.value.rpartition(".")[2], "") if isinstance(entry.value, str) else ""
        if not group:
            cause = f"{entry.name()} is {describe(entry.value)}, not a callback of Stepscope"
            self.refuse(cause, f"use one of {', '.join(CALLBACKS)}")
        return group

    def take(self, entry: _GivenValue) -> None:
        """Check one entry and keep it, unless a stronger spelling of the same key was there."""
        alias = ALIASES.get(entry.path)
        path = alias.target if alias else entry.path
        kind = kind_of(path)
        if kind is None:
            self.unknown(entry)
            return
        try:
            value = kind.parse(alias.convert(entry.value) if alias and alias.convert else entry.value)
        except ValueError as error:
            self.wrong(entry, KEYS.get(path), error)
            return
        rank = list(ALIASES).index(entry.path) if alias else _OWN_SPELLING
        origin = f"{self.name} line {entry.line}" if entry.line else self.name
        self.keep(path, _Setting(value, origin, entry.written, rank))

    def keep(self, path: str, new: _Setting) -> None:
        """Keep a setting, or the stronger spelling if the key was set before."""
        old = self.settings.get(path)
        if old is None:
            _put(self.settings, path, new)
        elif old.rank == new.rank:
            self.refuse(f"'{new.written[:80]}' is set twice", "keep one of them")
        else:
            winner, loser = (new, old) if new.rank > old.rank else (old, new)
            self.settings[path] = winner
            if winner.value != loser.value:
                self.notices.append(f"{self.name}: '{winner.written}' overrides '{loser.written}'")

    def unknown(self, entry: _GivenValue) -> None:
        """Refuse an entry that is not a setting, and suggest the closest one."""
        below = next((known for known in PATHS if known.startswith(f"{entry.path}.")), None)
        if below:
            self.refuse(f"{entry.name()} is a section, not a value", f"set the keys below it, as in '{below}'")
            return
        self.strangers.append(entry.path)
        near = close_matches(entry.path, PATHS) if len(self.problems) < MAX_SHOWN else ""
        self.refuse(f"unknown key {entry.name()}", f"did you mean '{self.spell(near)}'?" if near else REFERENCE)

    def wrong(self, entry: _GivenValue, key: Key | None, error: ValueError) -> None:
        """Refuse a value that its key cannot have."""
        value = "something else" if key and key.secret else describe(entry.value)
        example = f"give a value such as the default, {key.kind.show(key.default)}" if key else "give plain data"
        self.refuse(f"{entry.name()} is {value}, {error}", example)


def _load(files: Files, settings: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Config, list[_Problem]]:
    """Return the configuration that all valid settings make, and the problems with the others."""
    problems: list[_Problem] = []
    notices: list[str] = []
    merged: dict[str, _Setting] = {}
    for source in _sources(files, settings, environ):
        problems += source.problems
        notices += source.notices
        for path, setting in source.settings.items():
            _put(merged, path, setting)
    values = {path: key.default for path, key in KEYS.items()}
    values.update({path: setting.value for path, setting in merged.items()})
    sources = {path: setting.origin for path, setting in merged.items()}
    for rule in IMPLICATIONS:
        if rule.path in merged and rule.holds(values[rule.path]):
            implied = {path: value for path, value in rule.implied.items() if path not in merged}
            values.update(implied)
            sources.update(dict.fromkeys(implied, f"implied by {rule.path}"))
    return Config(values, sources, tuple(notices)), problems


def _sources(files: Files, settings: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[_SettingsSource]:
    """Read each source, lowest precedence first."""
    yield from (_read_file(Path(path)) for path in files)
    if environ.get("STEPSCOPE_DIR"):
        yield _SettingsSource("STEPSCOPE_DIR").read({"store.dir": environ["STEPSCOPE_DIR"]})
    yield from (_read_variable(name, environ[name]) for name in sorted(ours(environ)))
    yield _keywords(settings)


def _keywords(settings: Mapping[str, object]) -> _SettingsSource:
    tree = {key.replace(BETWEEN, ".") if type(key) is str else key: settings[key] for key in settings}
    return _SettingsSource("the settings").read(tree)


def unknown_settings(settings: Mapping[str, object]) -> list[str]:
    """Return the paths of keyword settings that name nothing which can be set."""
    return _keywords(settings).strangers


def _read_variable(name: str, text: str) -> _SettingsSource:
    """Read a variable; one that names no setting gets a notice."""
    source = _SettingsSource(name, spell=variable_of)
    if BETWEEN in name:
        return source.read({path_of(name): _value(text)})
    near = close_matches(name, [*PLAIN, *map(variable_of, PATHS)])
    remedy = f"did you mean {near}?" if near else f"settings are {variable_of('<section>.<key>')}; {REFERENCE}"
    source.notices.append(f"the environment variable {name[:80]} sets nothing; {remedy}")
    return source


def _value(text: str) -> object:
    """Return the value of a variable: text, or YAML if it is in brackets."""
    if not text.strip().startswith(("[", "{")):
        return text
    from stepscope.core.yaml_text import YamlRefusal, read_text  # loads PyYAML

    try:
        return read_text(f"value: {text.strip()}").data["value"]
    except (YamlRefusal, KeyError):  # text after all, or a value that its kind refuses with its own message
        return text


def close_matches(word: str, known: Sequence[str]) -> str:
    """Return the closest known word, "" if none is close."""
    import difflib

    return next(iter(difflib.get_close_matches(word[:80], known, n=1)), "")


def _read_file(path: Path) -> _SettingsSource:
    from stepscope.core.yaml_text import read_file  # loads PyYAML

    source = _SettingsSource(f"'{path}'")
    try:
        document = read_file(path)
    except UsageError as error:
        source.refuse(error.cause, error.remedy)
        return source
    for key, first, again in document.duplicates:
        source.refuse(f"duplicate key '{key[:80]}' (lines {first} and {again})", "keep one of them")
    return source.read(document.data, document.lines)


def _error(problems: list[_Problem]) -> UsageError:
    what = "load " + " and ".join(dict.fromkeys(problem.source for problem in problems))
    if len(problems) == 1:
        return UsageError(what, problems[0].cause, problems[0].remedy)
    several = len({problem.source for problem in problems}) > 1
    shown = [
        f"\n  {f'{problem.source}: ' if several else ''}{problem.cause}; {problem.remedy}"
        for problem in problems[:MAX_SHOWN]
    ]
    more = f"\n  and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
    return UsageError(what, f"{len(problems)} problems", f"correct each of them:{''.join(shown)}{more}")


def _put(settings: dict[str, _Setting], path: str, setting: _Setting) -> None:
    """Set a path; a value above or below it is dropped, so that all settings stay a tree."""
    for other in [other for other in settings if other.startswith(f"{path}.") or path.startswith(f"{other}.")]:
        del settings[other]
    settings[path] = setting
