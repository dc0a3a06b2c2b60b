"""A page of the browser, and all that goes wrong on it."""

from __future__ import annotations

from urllib.parse import urlencode

from playwright.sync_api import ConsoleMessage, Dialog, Locator, Page, Request, Response, expect

CHROMIUM = "/usr/bin/chromium"
NONE = "\u2013"
"""What the page shows where the records have nothing."""


class Watched:
    """Keeps what a user of the browser's tools would see as faults: errors, failed requests, requests to elsewhere."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self._origin = ""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("response", self._response)
        page.on("requestfailed", self._failed)

    def open(self, url: str, view: str, /, **given: object) -> Page:
        """Go to a view and wait until it is shown."""
        return self.visit(url, f"{url}/static/index.html#/{view}?{urlencode(given)}")

    def visit(self, url: str, address: str) -> Page:
        """Go to an address of the server as a new page does, and wait until it is shown."""
        self._origin = url
        self.page.goto("about:blank")  # an address that differs behind the # alone is no new page
        self.page.goto(address)
        return self.settled()

    def settled(self) -> Page:
        """Wait until the view of the address is shown."""
        expect(self.page.locator("#page")).to_have_attribute("data-shown", self.page.evaluate("location.hash"))
        return self.page

    def refused(self, words: str) -> None:
        """Expect that the server has refused a request, and that the page says why."""
        self.page.locator("[role=alert]", has_text=words).wait_for()
        assert self.faults, "nothing was refused"
        assert all("400" in fault for fault in self.faults), self.faults
        self.faults.clear()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._origin, "data:")):
            self.faults.append(f"asked elsewhere: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a stream that its own page closed
            self.faults.append(f"{request.failure}: {request.url}")


def cells(table: Locator) -> list[dict[str, str]]:
    """The rows of a table, by the words of its heads."""
    heads = [head.strip() for head in table.locator("thead th").all_inner_texts()]
    rows = table.locator("tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.innerText))")
    return [dict(zip(heads, row, strict=True)) for row in rows]


def facts(definitions: Locator) -> dict[str, str]:
    """The definitions of a list, by their terms."""
    return dict(
        zip(definitions.locator("dt").all_inner_texts(), definitions.locator("dd").all_inner_texts(), strict=True)
    )


def number(text: str) -> float | None:
    """A number as the page writes it, with four digits."""
    return None if text == NONE else float(text.replace(",", "").removesuffix(" %"))
