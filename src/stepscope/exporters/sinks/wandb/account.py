"""Our account at W&B: which server, which key, and whose it is, found as W&B's own package finds them."""

from __future__ import annotations

import base64
import configparser
import contextlib
import json
import netrc
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from stepscope.core.terminal_text import plain
from stepscope.exporters.sinks.http import HttpClient, is_page
from stepscope.exporters.sinks.sink import SinkDeniesError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_SERVER = "https://api.wandb.ai"
QUESTION = {"query": "query Viewer { viewer { username entity } }", "variables": {}}


class Account(NamedTuple):
    """W&B's server and our key there."""

    url: str
    key: str
    """Empty if there is none."""

    def __repr__(self) -> str:
        return f"Account(url={self.url!r})"

    def owner(self, environ: Mapping[str, str]) -> str:
        """Ask the server whose key this is; raises SinkError if it does not say."""
        token = base64.b64encode(f"api:{self.key}".encode()).decode()
        client = HttpClient(urlsplit(self.url), environ, {"Authorization": f"Basic {token}"})
        try:
            found = client.post("/graphql", json.dumps(QUESTION).encode(), {"Content-Type": "application/json"})
        finally:
            client.close()
        if is_page(found):
            raise SinkDeniesError(f"{self.url} answers with a web page; it is not W&B's API")
        try:
            viewer = json.loads(found.body)["data"]["viewer"]
            name = viewer["username"] or viewer["entity"]
        except (ValueError, KeyError, TypeError):
            raise SinkDeniesError(f"{self.url} does not know the API key") from None
        return plain(str(name))[:80]


def account_of(environ: Mapping[str, str], base_url: str = "") -> Account:
    """Find server and key: the address, the environment, W&B's settings file, netrc."""
    home = environ.get("HOME") or str(Path.home())
    url = base_url or environ.get("WANDB_BASE_URL") or _configured(environ, home) or DEFAULT_SERVER
    key = environ.get("WANDB_API_KEY") or _noted(environ, home, urlsplit(url).netloc)
    return Account(url.rstrip("/"), key)


def _configured(environ: Mapping[str, str], home: str) -> str:
    place = environ.get("WANDB_CONFIG_DIR") or os.path.join(home, ".config", "wandb")
    settings = configparser.ConfigParser(interpolation=None)
    # W&B, too, takes a file that it cannot read for none.
    with contextlib.suppress(configparser.Error, OSError, ValueError):
        settings.read(os.path.join(place, "settings"))
    return settings.get("default", "base_url", fallback="")


def _noted(environ: Mapping[str, str], home: str, host: str) -> str:
    paths = (environ.get("NETRC"), os.path.join(home, ".netrc"), os.path.join(home, "_netrc"))
    path = next((path for path in paths if path and os.path.isfile(path)), None)
    try:
        found = netrc.netrc(path).authenticators(host) if path else None
    except (OSError, netrc.NetrcParseError):
        return ""  # as W&B does
    return (found[2] if found else "") or ""
