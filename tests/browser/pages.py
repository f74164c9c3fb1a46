"""Addresses of the page, and how to wait until a view stands."""

from __future__ import annotations

from urllib.parse import quote

VIEWS = ("overview", "training", "ranks", "system", "ledger", "alerts", "export")

IN_SIGHT = """() => {
  const seen = [...document.querySelectorAll('.chart')].filter((chart) => {
    const box = chart.getBoundingClientRect();
    return chart.checkVisibility() && box.bottom > 0 && box.top < innerHeight;
  });
  return seen.every((chart) => ['drawn', 'empty'].includes(chart.dataset.state)) &&
    !document.querySelector('[aria-busy=true]');
}"""
"""Whether no chart in the window is still loading, nor anything else."""


def address(server, view="runs", key="", query=""):
    """Return the address of a view, of all runs or of one."""
    place = f"run/{quote(key, safe='')}/{view}" if key else ("" if view == "runs" else view)
    return server.page(f"#/{place}{f'?{query}' if query else ''}")


def visit(page, server, view="runs", key="", query=""):
    """Go to a view and wait until it stands."""
    page.goto("about:blank")
    page.goto(address(server, view, key, query))
    settle(page, view)


def settle(page, view):
    """Wait until a view stands and its charts are drawn."""
    page.wait_for_function("(view) => document.body.dataset.view === view", arg=view)
    page.wait_for_function(IN_SIGHT)


def chart(page, name):
    """Return the chart of a metric."""
    return page.locator(f".chart[data-chart={quoted(name)}]").first


def quoted(text):
    """Return a text as a string of CSS."""
    escaped = "".join(f"\\{ord(letter):x} " if letter in '"\\\n' else letter for letter in text)
    return f'"{escaped}"'
