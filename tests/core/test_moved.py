import importlib
import sys

import pytest

OLD = {
    "stepscope.analysis.trend": "stepscope.analysis.series.trend",
    "stepscope.analysis.trace_summary": "stepscope.analysis.trace.summary",
    "stepscope.alerts.rule": "stepscope.alerts.rules.rule",
    "stepscope.integrations.flops": "stepscope.integrations.numerics.flops",
}


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_path_imports_the_module_at_its_new_place(old, new, monkeypatch):
    """A documented module that moved is still found under its old path: the same object, with a warning."""
    if "integrations" in old:
        pytest.importorskip("torch")
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {new}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__.name == new


def test_a_module_that_never_existed_is_still_missing():
    """Old paths do not hide a misspelled import."""
    with pytest.raises(ModuleNotFoundError, match=r"stepscope\.analysis\.nothing"):
        importlib.import_module("stepscope.analysis.nothing")
