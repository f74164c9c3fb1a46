"""Loading and merging the configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.core.config import discover, load, load_or_default
from stepscope.core.errors import UsageError

MIB = 1 << 20
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def _write(text: str, name: str = "x.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def message(files=(), settings=None) -> str:
    """Return the error of a configuration that must not load."""
    with pytest.raises(UsageError) as caught:
        load(files, settings)
    return str(caught.value)


def test_without_sources_every_key_has_its_default():
    """Nothing needs to be configured, and nothing is said then."""
    config = load()
    assert config.get("store.seal_bytes") == 4 * MIB
    assert config.get("watcher.drain_interval") == 0.1
    assert not config.sources
    assert not config.notices


def test_no_file_loads_no_third_party_module():
    """PyYAML is imported only where there is a file to read."""
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); import stepscope.core.config as c; c.load()"
    code += "; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


def test_precedence_lowest_first(write):
    """Files in their order, then STEPSCOPE_DIR, then settings; key by key."""
    files = [write("store: {dir: a, max_runs: 1, max_age_days: 1}", "a.yaml"), write("store: {dir: b, max_runs: 2}")]
    config = load(files, {"store__max_runs": 3}, environ={"STEPSCOPE_DIR": "c"})
    assert [config.get(f"store.{key}") for key in ("dir", "max_runs", "max_age_days")] == ["c", 3, 1.0]
    assert config.sources["store.dir"] == "STEPSCOPE_DIR"
    assert config.sources["store.max_age_days"].endswith("a.yaml' line 1")


def test_discover_orders_the_files(tmp_path):
    """`stepscope.yaml`, then STEPSCOPE_CONFIG, then config_file; absolute or from the working directory."""
    (tmp_path / "stepscope.yaml").touch()
    found = discover(tmp_path, {"STEPSCOPE_CONFIG": "/etc/s.yaml"}, "mine.yaml")
    assert found == [tmp_path / "stepscope.yaml", Path("/etc/s.yaml"), tmp_path / "mine.yaml"]


def test_discover_names_a_file_once(tmp_path):
    """A file that two sources name counts at its highest place; an absent default file is no file."""
    environ = {"STEPSCOPE_CONFIG": "stepscope.yaml"}
    assert discover(tmp_path, {}) == []
    assert discover(tmp_path, environ, "stepscope.yaml") == [tmp_path / "stepscope.yaml"]


@pytest.mark.parametrize(
    "settings",
    [
        {"store": {"max_runs": 7}},
        {"store.max_runs": 7},
        {"store__max_runs": 7},
        {"store": {"max_runs": "7", "dir": None}},
    ],
)
def test_settings_may_be_nested_dotted_or_underscored(settings):
    """All forms of keyword settings mean the same; None is not set."""
    assert load(settings=settings).get("store.max_runs") == 7


@pytest.mark.promise("S0-080")
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_key(write):
    """The message says where, what and what was probably meant."""
    path = write("\n\nstor:\n  seal_bytes: 3\n")
    expected = f"cannot load '{path}': unknown key 'stor.seal_bytes' (line 4); did you mean 'store.seal_bytes'?"
    assert message([path]) == expected


@pytest.mark.promise("S0-080")
def test_suggestions_know_the_other_spellings():
    """A misspelt word of the documents leads to that word."""
    assert "did you mean 'monitoring.alerting.enabled'?" in message(
        settings={"monitoring": {"alerting": {"enabld": 1}}}
    )
    assert "did you mean 'track_rank_0_only'?" in message(settings={"track_rank0_only": True})


def test_all_problems_are_reported_together(write):
    """One error lists unknown keys, duplicates, wrong kinds and sections that were given a value."""
    text = message(
        [write("a: 1\nweb: true\nstore: {max_runs: x}\nstore: {dir: a}")], {"recorder": {"ring_bytes": "1 GB"}}
    )
    assert "5 problems" in text
    for part in ("unknown key 'a' (line 1)", "'web' (line 2) is a section", "'store.max_runs' (line 3) is 'x'",
                 "duplicate key 'store' (lines 3 and 4)", "above the most allowed, 64 MiB"):  # fmt: skip
        assert part in text


def test_a_thousand_problems_make_a_short_message():
    """Twenty are told, the others counted."""
    text = message(settings={f"x{number}": 1 for number in range(1000)})
    assert text.endswith("and 980 more")
    assert len(text.splitlines()) == 22


def test_secrets_are_not_shown():
    """A value that may hold a password is not repeated in the error."""
    assert "hunter2" not in message(settings={"alerting": {"channels": "mailto://me:hunter2@mail"}})
    assert "hunter2" not in message(settings={"alerting": "mailto://me:hunter2@mail"})


def test_load_or_default_keeps_what_is_valid(write):
    """A broken file costs its broken keys and no more; the error becomes a notice."""
    config = load_or_default([write("store: {max_runs: x, max_age_days: 3}"), Path("/nowhere.yaml")], {"save_dir": "r"})
    assert (config.get("store.max_runs"), config.get("store.max_age_days"), config.get("store.dir")) == (0, 3.0, "r")
    assert config.notices[-1].startswith("cannot load")
    assert "No such file" in config.notices[-1]


@pytest.mark.promise("S0-084")
def test_targets_are_figures_by_the_names_of_metrics():
    """Any metric can have a target, a number or one with a unit; there is nothing to say about it."""
    given = {"step_seconds": "200 ms", "memory/peak_bytes": "8 GiB", "loss": 2, "mfu_ratio": "45%"}
    config = load(settings={"targets": given})
    assert [config.get(f"targets.{name}") for name in given] == [0.2, 8 * 2**30, 2.0, pytest.approx(0.45)]
    assert config.notices == ()
    assert "'targets.loss' is 'low', not a number" in message(settings={"targets": {"loss": "low"}})


def test_no_section_takes_an_unknown_key():
    """Nothing in the configuration is accepted and ignored."""
    assert "unknown key 'exporters.colour'" in message(settings={"exporters": {"colour": "red"}})
    assert "unknown key 'callbacks.profiler.colour'" in message(settings={"callbacks": {"profiler": {"colour": 1}}})
    assert "unknown key 'store.colour'" in message(settings={"store": {"colour": "red"}})
    assert "unknown key 'web.port.x'" in message(settings={"web": {"port": {"x": 1}}})


def targets(config):
    """Return the targets of a configuration, by path."""
    return {path: value for path, value in config.values.items() if path.startswith("targets.")}


def test_a_value_gives_way_to_a_later_section_and_back(write):
    """Where people name the keys themselves, a path is a value or a section, whichever came last."""
    first, second = write("targets: {a: {b: 1, c: 2}}", "a.yaml"), write("targets: {a: 3}")
    assert targets(load([first, second])) == {"targets.a": 3}
    assert targets(load([second, first])) == {"targets.a.b": 1, "targets.a.c": 2}


def test_the_same_key_twice_in_two_forms_is_refused():
    """A dotted and a nested form of one key in one source contradict each other."""
    assert "'store.dir' is set twice" in message(settings={"store.dir": "a", "store": {"dir": "b"}})


def test_our_own_spelling_wins_and_says_so():
    """Of two spellings of one key in one source ours wins; different values give a notice."""
    config = load(settings={"store": {"dir": "a"}, "save_dir": "b"})
    assert config.get("store.dir") == "a"
    assert config.notices == ("the settings: 'store.dir' overrides 'save_dir'",)


def test_a_setting_that_contains_itself_is_refused_quickly():
    """A cycle is a problem, not an endless loop."""
    cycle: dict[str, object] = {}
    cycle.update(a=cycle, b=cycle)
    assert "nested deeper" in load_or_default(settings={"web": cycle}).notices[0]


def test_keys_that_are_not_text_are_refused():
    """YAML 1.1 readers turn the key `on` into True."""
    assert "the key True is not a text" in message(settings={"web": {True: 1}})


def test_config_is_frozen():
    """Nobody changes settings after they were loaded."""
    with pytest.raises(AttributeError):
        load().values = {}  # type: ignore[misc]
