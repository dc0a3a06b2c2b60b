"""Take the pictures of the docs, of the runs `quickstart` and `tool_calculator` in a folder:

.venv-ecosystem/browser/bin/python -m tests.browser.pictures runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from tests.browser.watched import CHROMIUM, Watched
from tests.end_to_end.running import ROOT
from tests.servers import running

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1120, 700


def take(url: str, page: Watched) -> None:
    """Write every picture."""
    quickstart, tools = {"run": "quickstart"}, {"run": "tool_calculator"}

    def save(name: str) -> None:
        page.settled().mouse.move(0, 0)
        page.page.screenshot(path=PICTURES / f"{name}.png")

    page.open(url, "overview", **quickstart)
    save("overview")
    page.open(url, "episodes", **tools, where="len(turns) > 1 AND reward = 1 AND update > 1", order="update")
    page.page.locator("main tbody a").first.click()
    page.settled().get_by_label("Colour by").select_option("kind")
    page.settled().locator(".token:not(.unsampled)").first.click()
    page.page.set_viewport_size({"width": WIDTH, "height": 965})
    page.page.locator("h2", has_text="Conversation").evaluate("one => scrollTo(0, one.offsetTop - 8)")
    save("episode")
    page.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.open(url, "timeline", **tools)
    save("timeline")
    page.open(url, "compare", runs="quickstart|tool_calculator")
    save("compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    given = parser.parse_args()
    with running(dashboard_app(Library(find_runs([given.runs])))) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        take(url, Watched(browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})))
        browser.close()
    for picture in sorted(PICTURES.glob("*.png")):
        print(f"{picture.relative_to(ROOT)} {picture.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
