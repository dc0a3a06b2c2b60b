"""A quickstart is watched while it trains. By its name it is the first file: the others wait for the run's end."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Page, expect

from rlhf.runs.jsonl import read_jsonl
from tests.browser.conftest import WAIT_MILLISECONDS, Training
from tests.browser.watched import Watched
from tests.commanded import commanded
from tests.pace import scaled

FIRST_UPDATE_SECONDS = scaled(120)


def made(shown: Page) -> int:
    return int(shown.locator("#made").inner_text().split(" of ")[0])


def wait_for_an_update(run: Training) -> None:
    deadline = time.monotonic() + FIRST_UPDATE_SECONDS
    while not ((metrics := run.folder / "metrics.jsonl").exists() and metrics.stat().st_size):
        assert run.process.poll() is None, "the quickstart ended before its first update"
        assert time.monotonic() < deadline, "the quickstart made no update"
        time.sleep(0.2)


def test_new_updates_appear_and_every_view_opens(page: Watched, quickstart: Training) -> None:
    wait_for_an_update(quickstart)
    with commanded(quickstart.folder, command="view") as (url, _):
        shown = page.open(url, "overview", run="quickstart")
        at_opening = made(shown)
        assert 1 <= at_opening < 12, "the run must still go on"
        shown.get_by_role("link", name="Timeline").focus()
        shown.evaluate("scrollTo(0, 1500)")
        expect(shown.locator("#made")).to_have_text(
            re.compile(f"^(?!{at_opening} )[0-9]+ of 12"), timeout=4 * WAIT_MILLISECONDS
        )
        later = made(shown)
        assert later > at_opening
        rows = read_jsonl(quickstart.folder / "metrics.jsonl")
        known = [re.escape(f"{row['reward/mean']:.3g}") for row in rows if row["update"] >= later]
        readout = shown.locator("[data-metric='reward/mean'] .readout")
        expect(readout).to_have_text(re.compile(f"^({'|'.join(known)})$"))
        expect(shown.locator(".run .pill")).to_have_text("running")
        expect(shown.get_by_role("link", name="Timeline")).to_be_focused()
        assert shown.evaluate("scrollY") > 1000
        for view in ("runs", "compare", "episodes", "groups", "timeline", "system"):
            page.open(url, view, run="quickstart", runs="quickstart")
        page.open(url, "episodes", run="quickstart").locator("main tbody a").first.click()
        page.settled()
        expect(shown.locator(".token").first).to_be_visible()
