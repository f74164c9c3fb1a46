"""What run.json says, and what became known later."""

from __future__ import annotations

import json

import pytest

from stepscope.store.meta import MOST_LATER, read_meta
from tests.store.recorded import make_folder


def test_what_became_known_later_is_added(tmp_path):
    """Settings are added to those of the beginning; a name counts where the run has none of its own."""
    plain = make_folder(tmp_path / "a", run_id="a", name="a", config={"lr": 1, "x": 2})
    named = make_folder(tmp_path / "b", run_id="b", name="mine", config=None)
    for folder in (plain, named):
        folder.later_file.write_text(json.dumps({"config": {"lr": 3}, "name": "theirs"}))
    assert (read_meta(plain)["config"], read_meta(plain)["name"]) == ({"lr": 3, "x": 2}, "theirs")
    assert (read_meta(named)["config"], read_meta(named)["name"]) == ({"lr": 3}, "mine")


@pytest.mark.parametrize("text", ["", "[]", '{"config": 5, "name": [1]}', "{", " " * (MOST_LATER + 1), "[" * 100_000])
def test_a_file_that_holds_something_else_adds_nothing(tmp_path, text):
    """Whatever stands there, the run is what run.json says."""
    folder = make_folder(tmp_path / "a", run_id="a", config={"lr": 1})
    before = read_meta(folder)
    folder.later_file.write_text(text)
    assert read_meta(folder) == before
