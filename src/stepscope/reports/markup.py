"""HTML as nested calls: everything that is not markup is escaped, so that no kernel name can become part of a page."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EMPTY = frozenset({"meta", "link", "br", "rect", "path", "line"})
"""Elements without content."""


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return an element; `class_="x"` gives class="x", `text_anchor` gives text-anchor, and None is left out.

    Children are markup, text (escaped), or sequences of those; None is left out.
    """
    listed = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY:
        return Markup(f"<{name}{listed}/>")
    return Markup(f"<{name}{listed}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Return children one after the other."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (list, tuple)):
        return join(child)
    return escape(_text(child))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]], numeric: str = "") -> Markup:
    """Return a table; `numeric` has one letter per column, `n` for right-aligned numbers."""
    kinds = [("number" if kind == "n" else None) for kind in numeric.ljust(len(titles))]
    head = tag("tr", [tag("th", title, class_=kind) for title, kind in zip(titles, kinds, strict=True)])
    body = [tag("tr", [tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll")


def named(name: str, limit: int = 70) -> Markup:
    """Return a long name, shortened, with the full name as its tooltip."""
    short = name if len(name) <= limit else name[: limit - 1] + "…"
    return tag("span", short, class_="name", title=name if short != name else None)


def document(title: str, body: Sequence[Any], style: str, extra_style: str = "", script: str = "") -> str:
    """Return a page in one file; its policy allows its own style and script, by their hashes, and no other source.

    `style` names a style sheet in this room, `extra_style` is CSS that comes before it, and `script` is JavaScript that
    runs at the end of the body.
    """
    own = files("stepscope.reports").joinpath(style).read_text(encoding="utf-8")
    css = f"{extra_style}\n{own}" if extra_style else own
    code = script.replace("</script", "<\\/script")
    allowed = ["default-src 'none'", f"style-src '{_digest(css)}'", "base-uri 'none'", "form-action 'none'"]
    if script:
        allowed += [f"script-src '{_digest(code)}'", "img-src data: blob:"]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content="; ".join(allowed)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(css)),
    ]
    end = tag("script", Markup(code)) if script else None
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body, end), lang='en')}\n"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
