import numpy as np

from stepscope.importers.run_builder import ImportFormat, RunBuilder, RunBuilders


def test_many_points_at_once_are_the_same_as_one_by_one():
    """`extend` and `add` give the same series."""
    whole, single = RunBuilder(), RunBuilder()
    whole.extend("loss", np.array([1.0, 2.0]), np.array([3, 4]), np.array([5.0, 6.0]), rank=1, attempt=2)
    for value, step, time in ((1.0, 3, 5.0), (2.0, 4, 6.0)):
        single.add("loss", value, step, time, 1, 2)
    assert whole.columns == single.columns


def test_points_beyond_the_limit_are_counted_when_they_come_at_once():
    """`extend` keeps as many points as there is room for, and counts the others."""
    run = RunBuilder(most_points=2)
    run.extend("loss", np.arange(5.0), np.arange(5), np.arange(5.0))
    found = run.imported("x", "some")
    assert found.series("loss").value.tolist() == [0.0, 1.0]
    assert found.notes == ("points beyond the limit, left out (3 times)",)


def test_a_file_may_hold_several_runs():
    """Each run of a file has its own points and its key; a note on the whole is the first one's."""

    def fill(path: str, runs: RunBuilders) -> None:
        for key in ("b", "a"):
            runs.of(key).add("loss", 1.0, 0)
        runs.note("a table is missing")

    first, second = ImportFormat("some", "of a test", fill_all=fill).read_all("x")
    assert (first.key, second.key) == ("a", "b")
    assert (first.notes, second.notes) == (("a table is missing",), ())
