"""The check of words refuses old phrases where people read them, and names the better word."""

from __future__ import annotations

import pytest

import check_words


@pytest.fixture
def checked(tmp_path, capsys, monkeypatch):
    """Return a function that writes one file, checks the folder and returns the exit code and what was printed."""
    monkeypatch.setattr(check_words, "PENDING", {})

    def check(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        code = check_words.main([str(tmp_path)])
        return code, capsys.readouterr().err

    return check


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "# Title\n\nIt is made anew.\n"),
        ("docs/reference/cli.md", "one\n\nmade\nANEW\n"),
        ("src/stepscope/core/x.py", '"""Doc."""\n\nTEXT = "made anew"\n'),
        ("web/src/x.ts", "\n\nconst text = 'made anew';\n"),
    ],
)
def test_old_phrases_are_refused_everywhere(checked, name, text):
    """A phrase of the list is refused in every area, with its line and the better word."""
    code, printed = checked(name, text)
    assert code == 1
    assert f"{name}:" in printed
    assert "write: again" in printed


@pytest.mark.parametrize("text", ['"no x for "\n    "want of room"', "# no x for\n# want of room", '"for " f"want of"'])
def test_phrases_are_found_across_lines(checked, text):
    """A phrase is found where a comment or a string is wrapped."""
    assert checked("src/stepscope/x.py", f"x = 1\n{text}\n")[0] == 1


def test_code_in_markdown_is_not_read(checked):
    """Code blocks, inline code and addresses of a page may hold old words: they are names and printed output."""
    text = "# Title\n\n```text\nmade anew\n```\n\n`anew` and [a link](anew.md)\n"
    assert checked("docs/start/page.md", text) == (0, "")


@pytest.mark.parametrize("text", ["(rule S19)", "see S0-074", "as in F40 (F40)", "the\ndocuments", "NeMo RL Alert"])
def test_references_that_lead_nowhere_are_refused(checked, text):
    """Rule numbers and texts that are not in the repository are refused."""
    assert checked("src/stepscope/x.py", f'"""Doc {text}."""\n')[0] == 1


def test_words_inside_other_words_pass(checked):
    """Only whole words are refused, and formats that look like numbers of rules pass."""
    assert checked("src/stepscope/x.py", '"""Canewood, BF16, S3, a column (f64), unlike."""\n') == (0, "")


def test_pending_phrases_pass_in_their_area_only(checked, monkeypatch):
    """A phrase that an area still has is passed over there, and refused elsewhere."""
    monkeypatch.setattr(check_words, "PENDING", {"anew": ("package",)})
    assert checked("src/stepscope/x.py", '"""Anew."""\n')[0] == 0
    assert checked("README.md", "anew\n")[0] == 1


def test_pending_names_phrases_and_areas():
    """The table of what is still to be edited names only phrases and areas that exist."""
    assert set(check_words.PENDING) <= {*check_words.PHRASES, *check_words.CITATIONS}
    assert {area for areas in check_words.PENDING.values() for area in areas} <= set(check_words.AREAS)
