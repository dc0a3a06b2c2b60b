"""Whoever has no mouse, a small screen, or other eyes can use every view."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.test_views import episodes_of
from tests.browser.watched import Watched

AT = {"ordinal": 0, "sample": 0, "version": 0}
VIEWS = {
    "runs": [{}],
    "overview": [{"run": "tools"}, {"run": "dpo"}],
    "groups": [{"run": "selfplay"}],
    "system": [{"run": "tools"}],
    "episodes": [{"run": "tools"}, {"run": "sft"}, {"run": "tools", "where": "nothing"}],
    "episode": [{"run": "tools", **AT, "colour": "kind"}, {"run": "selfplay", **AT, "colour": "advantage"}],
    "timeline": [{"run": "quickstart"}],
    "compare": [{}, *({"runs": "quickstart|ppo|tools", "part": part} for part in ("curves", "recipes", "episodes"))],
}
"""Every view, with all that it can look like."""


def open_all(page: Watched, url: str, view: str) -> list[Page]:
    """Each look of a view, one after the other: use one before the next."""
    for given in VIEWS[view]:
        yield page.open(url, view, **given)
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(page: Watched, url: str, scheme: str, view: str) -> None:
    page.page.emulate_media(color_scheme=scheme)
    for shown in open_all(page, url, view):
        found = Axe().run(shown)
        assert found.violations_count == 0, f"{shown.url}\n{found.generate_report()}"


@pytest.mark.parametrize("view", VIEWS)
def test_a_small_screen_needs_no_scrolling_across(page: Watched, url: str, view: str) -> None:
    page.page.set_viewport_size({"width": 360, "height": 740})
    for shown in open_all(page, url, view):
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360, shown.url
        assert shown.evaluate("document.body.scrollWidth") <= 360, shown.url


def test_the_keyboard_alone_opens_an_episode_and_comes_back(page: Watched, url: str, runs: Path) -> None:
    record = episodes_of(runs / "quickstart")[0]
    shown = page.open(url, "runs")

    def go_to(name: str) -> None:
        """Tab to a link by its words, and follow it."""
        for _ in range(90):
            shown.keyboard.press("Tab")
            if shown.evaluate("document.activeElement.innerText") == name:
                break
        assert shown.evaluate("document.activeElement.innerText") == name
        shown.keyboard.press("Enter")
        page.settled()

    go_to("quickstart")
    go_to("Episodes")
    go_to(record["task"])
    expect(shown.get_by_role("heading", level=1)).to_contain_text(record["task"])
    for _ in range(60):
        if shown.evaluate("document.activeElement.className") == "tokens":
            break
        shown.keyboard.press("Tab")
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowRight")
    expect(shown.locator("#token")).to_contain_text("1 of its episode")
    shown.get_by_label("Colour by").focus()
    shown.keyboard.press("ArrowDown")  # in the table of colours, whose focus stays
    page.settled()
    assert shown.evaluate("document.activeElement.name") == "colour"
    assert shown.evaluate("document.activeElement.value") == "log-prob"
    shown.go_back()
    shown.go_back()  # as Alt+Left does, which is a key of the window around the page
    page.settled()
    expect(shown.get_by_role("heading", level=1)).to_have_text("Episodes")
    assert shown.evaluate("document.activeElement.innerText") == record["task"]
