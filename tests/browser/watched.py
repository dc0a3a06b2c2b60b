"""A page of the browser, and all that goes wrong on it."""

from __future__ import annotations

from urllib.parse import urlencode

from playwright.sync_api import ConsoleMessage, Page, Request, Response


class Watched:
    """Keeps what a user of the browser's tools would see as faults: errors, failed requests, requests to elsewhere."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self._origin = ""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._request)
        page.on("response", self._response)
        page.on("requestfailed", self._failed)

    def open(self, url: str, view: str, **given: object) -> Page:
        """Go to a view and wait until it is shown."""
        self._origin = url
        self.page.goto(f"{url}/static/index.html#/{view}?{urlencode(given)}")
        self.page.reload()  # an address that differs after the # only is no new page
        self.page.locator("main h1").wait_for()
        return self.page

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._origin, "data:")):
            self.faults.append(f"asked elsewhere: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a stream that its own page closed
            self.faults.append(f"{request.failure}: {request.url}")
