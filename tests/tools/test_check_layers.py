"""The layer check refuses every arrow but those of the design."""

from __future__ import annotations

import pytest

import check_layers


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that writes modules and returns exit code and findings."""

    def run(files):
        for name, text in files.items():
            path = tmp_path / "src" / "stepscope" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        code = check_layers.main([str(tmp_path)])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("recorder", "core"),
        ("session", "store"),
        ("watcher", "session"),
        ("views", "alerts"),
        ("cli", "session"),
        (check_layers.FACE, "trackers"),
        ("recorder", "version"),
    ],
)
def test_arrows_of_the_design_pass(source, target):
    """An arrow down, or one of the few inside a layer, is allowed."""
    assert check_layers.allowed(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("core", "store"),
        ("recorder", "store"),
        ("store", "recorder"),
        ("analysis", "store"),
        ("alerts", "views"),
        ("session", "watcher"),
        ("watcher", "cli"),
        ("integrations", "trackers"),
    ],
)
def test_other_arrows_are_refused(check, source, target):
    """An arrow up or to a neighbour fails and the message says what may be imported."""
    code, said = check({f"{source}/a": f"from stepscope.{target} import b\n", f"{target}/b": ""})
    assert code == 1
    assert f"{source} imports stepscope.{target}.b" in said
    assert f"{source} may import" in said


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from stepscope.store import a\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stepscope.store.a\n",
        "from ..store import a\n",
        "from ..store.a import thing\n",
    ],
)
def test_hidden_imports_are_seen(check, text):
    """An import inside a function, for types only, or relative counts like any other."""
    code, said = check({"recorder/b": text, "store/a": ""})
    assert code == 1
    assert "recorder imports stepscope.store.a" in said


def test_cycles_are_refused(check):
    """Two modules of one room that import each other, one of them inside a function, are a cycle."""
    code, said = check(
        {"core/a": "import stepscope.core.b", "core/b": "def f():\n    from stepscope.core.a import x\n"}
    )
    assert code == 1
    assert "import cycle of stepscope.core.a, stepscope.core.b" in said


@pytest.mark.parametrize(
    "text",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stepscope.core.a import x\n",
        "NAME = 'stepscope.core.a'\n",
    ],
)
def test_types_and_strings_close_a_cycle(check, text):
    """An import that only the type checker follows, or a module's name in a string, closes a cycle."""
    code, said = check({"core/a": "import stepscope.core.b", "core/b": text})
    assert code == 1
    assert "import cycle of stepscope.core.a, stepscope.core.b" in said


@pytest.mark.parametrize("text", ["'stepscope.views.a'", "'stepscope.views.a:run'", "f'stepscope.views.a.{name}'"])
def test_a_module_named_in_a_string_is_an_import(check, text):
    """A string, or the start of an f-string, that names a module above is refused like an import of it."""
    code, said = check({"store/b": f"def f(name):\n    return {text}\n", "views/a": ""})
    assert code == 1
    assert "store imports stepscope.views.a" in said


def test_a_process_may_be_named(check):
    """A module of the table PROCESSES may name the module that its process runs."""
    assert check({"session/watching": "RUN = 'stepscope.watcher.process'\n", "watcher/process": ""}) == (0, "")


@pytest.mark.parametrize("text", ["import stepscope", "from stepscope import init", "from .. import init"])
def test_top_package_is_not_imported_from_inside(check, text):
    """No module imports the top package, in whatever spelling."""
    code, said = check({"__init__": "", "cli/a": text})
    assert code == 1
    assert "imports the top package" in said


def test_third_party_at_import_is_refused(check):
    """`import stepscope` may not load a third-party module, directly or through another module."""
    code, said = check({"__init__": "from stepscope.core import a", "core/a": "import yaml"})
    assert code == 1
    assert "loads the third-party module 'yaml'" in said


def test_unknown_room_is_refused(check):
    """A folder that has no layer yet fails and the message says where to add it."""
    code, said = check({"kitchen/sink": ""})
    assert code == 1
    assert "'kitchen' has no layer" in said


def test_missing_rooms_are_fine(check):
    """A tree that has only some of the rooms passes."""
    assert check({"core/a": "", "recorder/b": "from stepscope.core.a import x"}) == (0, "")
