"""Hostile and ordinary YAML."""

from __future__ import annotations

import os
from itertools import count

import pytest
import yaml

from stepscope.core.errors import UsageError
from stepscope.core.yaml_text import YamlRefusal, read_file, read_text

PARSERS = [False, True] if yaml.__with_libyaml__ else [False]
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.fixture(params=PARSERS, ids=lambda fast: "libyaml" if fast else "python")
def read(request):
    """Return `read_text` with each parser."""
    return lambda text: read_text(text, fast=request.param)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (LAUGHS, "more than 20000 values"),
        ("a: &a [1]\n" + "b: [" + "*a, " * 101 + "]", "more than 100 aliases"),
        ("a: &a [*a]", "is not defined yet"),
        ("a: " + "[" * 200_000, "nested deeper than 20 levels"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(500)), "nested deeper than 20 levels"),
        ("\n".join(f"k{number}: 1" for number in range(30_000)), "more than 20000 values"),
        ("a: !!python/object/apply:os.system ['true']", "the tag 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("!!python/name:os.system a: 1", "is not allowed"),
        ("a: !env HOME", "the tag '!env' is not allowed"),
        ("a: [1\nb: 2", "line 2"),
        ("a: 1\n---\nb: 2", "a second document starts (line 2)"),
        ("- 1", "not a mapping"),
        ("? [a]\n: 1", "a key is not a word"),
        ("a: \0", "characters that YAML forbids"),
        ("a: \ud800", "characters that YAML forbids"),
    ],
    ids=count(),
)
def test_hostile_text_is_refused_at_once(read, text, cause):
    """Bombs, objects and broken text end in a clear refusal."""
    with pytest.raises(YamlRefusal) as refused:
        read(text)
    assert cause in refused.value.cause
    assert refused.value.remedy


@pytest.mark.promise("S1-056")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-8", 1e-8),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-1e-3", -1e-3),
        ("12", 12),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("1.2.3", "1.2.3"),
        ("9" * 400, "9" * 400),
    ],
    ids=count(),
)
def test_scalars_follow_yaml_1_2(read, text, value):
    """Numbers are numbers, words are words, quoted is text."""
    assert read(f"a: {text}").data == {"a": value}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~"])
def test_an_empty_file_is_an_empty_mapping(read, text):
    """Nothing is a valid configuration."""
    assert read(text).data == {}


def test_keys_are_text_and_keep_their_lines(read):
    """`no` and `1` as keys stay what was written."""
    document = read("no: 1\nb:\n  1: x\n")
    assert document.data == {"no": 1, "b": {"1": "x"}}
    assert document.lines == {("no",): 1, ("b",): 2, ("b", "1"): 3}


def test_duplicate_keys_are_found_with_both_lines(read):
    """The first value stays, the second is reported."""
    document = read("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert document.data == {"a": {"b": 1, "c": 2}}
    assert document.duplicates == (("b", 2, 4),)


def test_aliases_within_the_caps_work(read):
    """An anchor saves writing."""
    assert read("a: &x {p: 1}\nb: *x").data == {"a": {"p": 1}, "b": {"p": 1}}


@pytest.mark.parametrize(
    ("content", "cause"),
    [(b"#" * 1_000_001, "larger than 1000000 bytes"), (b"a: \xff", "not valid UTF-8"), (b"a: [", "line")],
    ids=count(),
)
def test_unfit_files_are_refused_by_name(tmp_path, content, cause):
    """The error names the file and the cause."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"cannot load '{path}': .*{cause}.*; "):
        read_file(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    """Only regular files are opened: a pipe would block."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_file(tmp_path / "pipe")
