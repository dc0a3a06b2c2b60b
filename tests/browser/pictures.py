"""Take the pictures of the docs, of a folder with the runs `quickstart`, `tools` and a sweep in `sweep-lr/`:

.venv-ecosystem/browser/bin/python -m tests.browser.pictures runs
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from tests.browser.watched import CHROMIUM, Watched
from tests.end_to_end.running import ROOT
from tests.servers import running

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1120, 700
COLOURS = 128
"""Of a picture: a third of the bytes."""


def take(url: str, page: Watched) -> None:
    """Write every picture."""
    quickstart, tools = {"run": "quickstart"}, {"run": "tools"}

    def save(name: str) -> None:
        page.settled().mouse.move(0, 0)
        page.page.screenshot(path=(file := PICTURES / f"{name}.png"))
        Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)

    page.open(url, "runs", sort="-held-out")
    save("runs")
    page.open(url, "overview", **quickstart)
    save("overview")
    page.open(url, "episodes", **tools, where="len(turns) = 2 AND reward = 1", order="sampled_tokens")
    page.page.locator("main tbody a").first.click()
    page.settled().get_by_label("Colour by").select_option("kind")
    page.settled().locator(".token:not(.unsampled)").first.click()
    page.page.set_viewport_size({"width": WIDTH, "height": 965})
    page.page.evaluate("scrollTo(0, 0)")
    save("episode")
    page.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.open(url, "timeline", **tools)
    save("timeline")
    page.page.set_viewport_size({"width": WIDTH, "height": 980})
    page.open(url, "compare", runs="|".join(f"sweep-lr/trial-{trial}" for trial in range(1, 9)))
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
