"""What a page must never do, written down while it does it."""

from __future__ import annotations

from contextlib import contextmanager


@contextmanager
def watched_page(context, origin):
    """Open a page that may talk to `origin` only, and that must have no fault when it is closed."""
    page = context.new_page()
    page.watched = Watched(page, origin)
    yield page
    page.close()
    assert page.watched.faults == []


class Watched:
    """The faults of a page: dialogs, errors, complaints on the console, requests to anybody but its server."""

    def __init__(self, page, origin):
        """Listen to a page that may talk to `origin` only."""
        self.faults: list[str] = []
        self.allowed: list[str] = []
        self.page, self.origin = page, origin
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.faults.append(f"script error: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)
        page.on("popup", lambda other: self.faults.append(f"opened {other.url}"))

    def allow(self, *parts):
        """Accept messages on the console that contain one of these, as the test provokes them."""
        self.allowed += parts

    def _dialog(self, dialog):
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message):
        if message.type in {"error", "warning"} and not any(part in message.text for part in self.allowed):
            self.faults.append(f"console {message.type}: {message.text}")

    def _request(self, request):
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.faults.append(f"asked for {request.url}")
