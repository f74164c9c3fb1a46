from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store import footer


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A Parquet file of 20 row groups: path, bytes, footer."""
    path = tmp_path_factory.mktemp("footer") / "a.parquet"
    source = "SELECT i, 'name' || (i // 2048) AS name, i / 3 AS x FROM range(40000) t(i)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({source}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    data = path.read_bytes()
    start, length = footer.locate(len(data), data[-footer.TAIL_BYTES :])
    return path, data, data[start : start + length]


def metadata(path, what):
    with duckdb.connect() as connection:
        return connection.execute(f"SELECT {what} FROM parquet_metadata('{path}')").fetchall()


def test_places_are_those_that_duckdb_sees(file):
    """Offset, length and rows of every column chunk agree with DuckDB's own reading."""
    path, _, raw = file
    start = "least(data_page_offset, coalesce(dictionary_page_offset, data_page_offset))"
    known = metadata(path, f"row_group_id, row_group_num_rows, {start}, total_compressed_size")
    groups = footer.parse(raw).groups
    assert known == [(i, g.rows, *column) for i, g in enumerate(groups) for column in g.columns]


def test_bounds_of_names_are_read(file):
    """The lowest and highest name of a row group are those that DuckDB wrote."""
    _, _, raw = file
    assert footer.parse(raw).groups[3].bounds["name"] == (b"name3", b"name3")


@pytest.mark.parametrize("drop", [set(), {0}, {19}, {3, 4, 11}, set(range(1, 20)), set(range(20))])
def test_dropped_row_groups_are_gone_and_the_others_whole(file, tmp_path, drop):
    """DuckDB reads every row of the groups that stay and none of the others."""
    _, data, raw = file
    rebuilt = footer.without_row_groups(raw, drop)
    path = tmp_path / "b.parquet"
    path.write_bytes(data[: -len(raw) - footer.TAIL_BYTES] + rebuilt + footer.tail(rebuilt))
    with duckdb.connect() as connection:
        found = [i for (i,) in connection.execute(f"SELECT i FROM '{path}' ORDER BY i").fetchall()]
    assert found == [i for i in range(40000) if i // 2048 not in drop]


def test_nothing_dropped_changes_no_byte(file):
    """A footer without losses is rebuilt as it was."""
    assert footer.without_row_groups(file[2], set()) == file[2]


def test_every_cut_is_refused(file):
    """A footer that ends too early is no footer."""
    for length in range(0, len(file[2]), 7):
        with pytest.raises(footer.FooterError):
            footer.parse(file[2][:length])


@given(st.binary(max_size=300))
def test_garbage_is_refused(data):
    """Whatever the bytes, the answer is a footer or a FooterError."""
    assert parses_or_refuses(data)


@given(st.data())
def test_altered_footers_never_escape(file, data):
    """Any byte changed, inserted or removed gives a footer or a FooterError, and rebuilding it too."""
    at = data.draw(st.integers(0, len(file[2])))
    new = file[2][:at] + data.draw(st.binary(max_size=4)) + file[2][at + data.draw(st.integers(0, 3)) :]
    assert parses_or_refuses(new)


def test_deep_nesting_is_refused():
    """Lists in lists in lists end in a FooterError, not in the recursion limit."""
    with pytest.raises(footer.FooterError, match="nested"):
        footer.parse(b"\x59" + b"\x19" * 100_000)


def test_endless_integers_and_long_lists_are_refused():
    """A length beyond the bytes costs nothing."""
    for data in (b"\x36" + b"\xff" * 50, b"\x49\xfc\xff\xff\xff\xff\x0f", b"\x1b\xff\xff\xff\xff\x0f\x11"):
        with pytest.raises(footer.FooterError):
            footer.parse(data)


def test_a_file_without_magic_has_no_footer():
    """The place of a footer is only taken from a whole tail."""
    for last in (b"", b"\x00" * 8, b"\xff\xff\xff\x7fPAR1"):
        with pytest.raises(footer.FooterError):
            footer.locate(100, last)


def parses_or_refuses(data):
    """Say whether bytes are a footer whose row groups sum up, or are refused with a FooterError."""
    try:
        parsed = footer.parse(data)
        footer.without_row_groups(data, {0})
    except footer.FooterError:
        return True
    return parsed.rows == sum(group.rows for group in parsed.groups)
