from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.columns import (
    RowSchema,
    SchemaTable,
    decode_entries,
    encode_entry,
    encode_names,
    encode_schema,
)

NAME = st.text(min_size=1, max_size=8)
SCHEMA = st.builds(
    lambda number, names: RowSchema(number, tuple(names), "d" * len(names)),
    st.integers(16, 1040),
    st.lists(NAME, max_size=5),
)


def table_of(data):
    table = SchemaTable()
    for entry in decode_entries(data)[0]:
        table.add(entry)
    return table


@given(st.lists(SCHEMA), st.lists(NAME, max_size=20))
def test_round_trip(schemas, names):
    """What is declared is read back, rows and pairs alike."""
    data = b"".join(map(encode_schema, schemas)) + encode_names(0, names)
    table = table_of(data)
    assert table.schemas == {schema.id: schema for schema in schemas}
    assert table.names == names


@given(st.lists(SCHEMA, min_size=1), st.data())
def test_any_cut(schemas, data):
    """A file cut anywhere gives its whole entries, and the number of their bytes to go on from."""
    entries = list(map(encode_schema, schemas))
    whole = b"".join(entries)
    cut = data.draw(st.integers(0, len(whole)))
    found, used = decode_entries(whole[:cut])
    assert [entry["id"] for entry in found] == [schema.id for schema in schemas][: len(found)]
    assert used == sum(map(len, entries[: len(found)])) <= cut
    assert len(found) == len(entries) or used + len(entries[len(found)]) > cut


def test_changed_byte_ends_the_reading():
    """An entry with a changed byte is not taken, nor is what follows it."""
    first, second = encode_schema(RowSchema(16, ("a",), "d")), encode_schema(RowSchema(17, ("b",), "d"))
    spoiled = first + bytes([second[0]]) + second[1:-1] + b"!"
    assert decode_entries(spoiled)[0] == decode_entries(first)[0]


def test_declaring_anew():
    """A table can be declared anew as a whole, with any number of names behind pairs."""
    table = SchemaTable()
    table.add({"id": 16, "kinds": "dq", "names": ["a", "b"]})
    table.add({"first": 0, "names": [f"n{number}" for number in range(1200)]})
    again = table_of(b"".join(table.entries()))
    assert (again.schemas, again.names) == (table.schemas, table.names)


def test_names_come_in_order():
    """Names whose first id is not the next one are left alone: twice the same entry gives each name once."""
    entry = encode_names(0, ["a", "b"])
    assert table_of(entry + entry + encode_names(9, ["z"]) + encode_names(2, ["c"])).names == ["a", "b", "c"]


def test_unknown_entries_are_left_alone():
    """An entry of a kind that a later version adds changes nothing."""
    assert table_of(encode_entry({"units": {"a": "s"}}) + encode_names(0, ["a"])).names == ["a"]
