"""Show the runs of a folder as a page in the browser, live while they go on.

The page asks for a token, which is part of the address that is printed: on a machine with several users only who has
that address sees your runs. Only this machine reaches the page, unless --host names another address. --port 0 takes
any free port.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.cli.command import FINE, ROOT
from stepscope.cli.named_run import say
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain
from stepscope.store.catalog import chosen_root, elsewhere

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("dir", metavar="DIR", nargs="?", help=ROOT)
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: web.host, 127.0.0.1)")
    parser.add_argument("--port", metavar="PORT", type=int, help="port to listen on (default: web.port, 8080)")
    others = "also print a read-only address for others (always, unless --host is loopback)"
    parser.add_argument("--token", action="store_true", help=others)
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from stepscope.web.server import Server, configured, return_memory_early

    return_memory_early()
    root = _root(options.dir)
    server = Server(configured(str(root), options.host, options.port, others=options.token))

    def ready() -> None:
        for notice in server.notices():
            stream = sys.stderr if notice.startswith("warning") else sys.stdout
            print(plain(notice), file=stream, flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(server.doorway().as_uri())

    server.run(ready)
    return FINE


def _root(given: str | None) -> Path:
    """Return the folder to serve: the given one, else the default, else the one used last."""
    root, is_given = chosen_root(given)
    if root.is_dir():
        return root
    if given is not None:
        raise StepscopeError(f"serve {given!r}", f"there is no folder {root}", "name the folder that holds the runs")
    other = None if is_given else next(iter(elsewhere(root)), None)
    if other is not None:
        say(f"there is no {root}: this is {other}, where your last run is")
        return other
    say(f"there is no {root} yet: runs show up as soon as they are recorded there")
    return root
