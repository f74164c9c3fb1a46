"""What is called after an import, and what the import itself looks like."""

from __future__ import annotations

import importlib
import sys

import pytest

from stepscope.core.after_import import AfterImport


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a package with one submodule, importable for this test only."""
    name = f"package_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 1\n")
    (folder / "inner.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for known in [known for known in sys.modules if known.partition(".")[0] == name]:
        del sys.modules[known]


@pytest.fixture
def imports():
    made = AfterImport()
    yield made
    made.stop()


def test_the_function_is_called_once_the_module_is_whole(module, imports):
    """It gets the module after its code has run, once, and the import shows no trace of us."""
    found = []
    imports.call(module, lambda made: found.append(made.VALUE))
    assert found == []
    made = importlib.import_module(module)
    importlib.import_module(module)
    assert found == [1]
    assert type(made.__spec__.loader).__module__ == type(made.__loader__).__module__ == "_frozen_importlib_external"
    assert imports not in sys.meta_path


def test_a_module_that_is_there_already_is_taken_at_once(module, imports):
    """Nothing is waited for then, and no finder stays."""
    importlib.import_module(module)
    found = []
    imports.call(module, found.append)
    assert len(found) == 1
    assert imports not in sys.meta_path


def test_submodules_and_several_functions(module, imports):
    """A submodule can be waited for, by several; modules that nobody waits for are not touched."""
    found = []
    for number in range(2):
        imports.call(f"{module}.inner", lambda made, number=number: found.append((number, made.VALUE)))
    importlib.import_module(module)
    assert found == []
    importlib.import_module(f"{module}.inner")
    assert found == [(0, 2), (1, 2)]


def test_a_module_that_does_not_exist_is_still_waited_for(imports):
    """A failed import fails as ever, and is no reason to stop waiting."""
    imports.call("no_such_module_at_all", lambda made: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")
    assert imports in sys.meta_path
