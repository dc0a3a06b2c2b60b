"""The list of runs, the theme, and the scales of charts: of made runs, whose numbers are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from tests.browser.watched import Watched, cells
from tests.runs.made_run import made_run
from tests.servers import running

ENDS = {"low": 0.2, "high": 0.9, "middle": 0.5}
NOISE = {"policy/approx_kl": 1e-14, "response/truncated": 0.001, "optimizer/loss": 1e-15, "response/tokens_mean": 70.0}


def rows(end: float) -> list[dict[str, float]]:
    return [
        {"eval/reward": end * share, "reward/mean": end, "seconds/update": 10.0}
        | {name: value * (1 + 0.01 * share) for name, value in NOISE.items()}
        for share in (0.5, 1.0)
    ]


def made(folder: Path, name: str, end: float, outcome: str = "finished") -> None:
    recipe = f"name: made\nmodel: {{path: Qwen/{name}}}\ntrainer:\n  updates: 2\n  rate: {end}    # override\n"
    (made_run(folder / name, rows(end), {"outcome": outcome, "evaluations": {}}, recipe) / "owner").mkdir()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, end in ENDS.items():
        made(tmp_path, name, end, "engine-0: it died\nin two lines" if name == "middle" else "finished")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with running(dashboard_app(Library(find_runs([folder]), [folder]))) as url:
        yield url


def names(shown: Page) -> list[str]:
    return [row["run"] for row in cells(shown.locator("#runs"))]


def test_runs_are_sorted_and_found_and_the_address_keeps_it(
    page: Watched, context: BrowserContext, address: str
) -> None:
    shown = page.open(address, "runs")
    head = shown.locator("th", has_text="held-out")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(page.settled()) == ["high", "middle", "low"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert names(page.settled()) == ["low", "middle", "high"]
    failed = cells(shown.locator("#runs"))[1]
    assert failed["status"].startswith("failed")
    shown.get_by_label("Find runs").press_sequentially("QWEN finished")
    assert names(shown) == ["low", "high"]
    again = Watched(context.new_page())
    assert names(again.visit(address, shown.url)) == ["low", "high"]
    assert again.faults == []


def test_a_new_run_appears_in_the_list_and_in_compare(page: Watched, folder: Path, address: str) -> None:
    shown = page.open(address, "runs")
    shown.get_by_label("compare low").check()
    made(folder, "new", 0.7)
    expect(shown.locator("#runs").get_by_role("link", name="new")).to_be_visible()
    expect(shown.get_by_label("compare low")).to_be_checked()
    page.open(address, "compare", runs="low|high")
    shown.get_by_text("Choose runs").click()
    made(folder, "newer", 0.8)
    expect(shown.get_by_label("newer")).to_be_visible()


def test_a_failed_run_says_why(page: Watched, address: str) -> None:
    shown = page.open(address, "overview", run="middle")
    expect(shown.locator("#failure")).to_contain_text("engine-0: it died\nin two lines")
    expect(shown.locator(".run .pill")).to_have_text("failed")


def test_the_tabs_lead_from_view_to_view(page: Watched, address: str) -> None:
    shown = page.open(address, "overview", run="low")
    tabs = shown.get_by_role("navigation", name="Views of the run")
    for name in ("Episodes", "Groups", "Timeline", "System", "Overview"):
        tabs.get_by_role("link", name=name).click()
        page.settled()
        expect(tabs.locator("[aria-current=page]")).to_have_text(name)


def test_the_theme_is_switched_and_kept(page: Watched, address: str) -> None:
    page.page.emulate_media(color_scheme="light")
    shown = page.open(address, "overview", run="low")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = shown.evaluate(colour)
    shown.get_by_label("Theme").select_option("dark")
    dark = shown.evaluate(colour)
    assert dark != light
    assert page.open(address, "runs").evaluate(colour) == dark
    shown.get_by_label("Theme").select_option("system")
    assert shown.evaluate(colour) == light


@pytest.mark.parametrize("metric", NOISE)
def test_noise_is_a_flat_line(page: Watched, address: str, metric: str) -> None:
    """All points of the curve lie within a tenth of the height, though they differ."""
    shown = page.open(address, "overview", run="low")
    chart = shown.locator(f"[data-metric='{metric}']")
    chart.evaluate("one => one.closest('details')?.setAttribute('open', '')")
    chart.locator("canvas").wait_for()
    drawn = chart.locator("canvas").evaluate(
        """canvas => {
          const pixels = canvas.getContext("2d").getImageData(60, 0, canvas.width - 60, canvas.height);
          const rows = new Set();
          for (let at = 0; at < pixels.data.length; at += 4)
            if (pixels.data[at + 2] > 150 && pixels.data[at] < 80) rows.add(Math.floor(at / 4 / pixels.width));
          return [Math.min(...rows), Math.max(...rows), canvas.height];
        }"""
    )
    assert 0 <= drawn[1] - drawn[0] < 0.1 * drawn[2]


def test_a_sweep_is_compared_by_what_it_searched(page: Watched, address: str) -> None:
    shown = page.open(address, "compare", runs="|".join(ENDS))
    table = cells(shown.locator("#ends"))
    assert (table[0]["run"], table[0]["last"], table[0]["trainer.rate"]) == ("high", "0.9", "0.9")
    expect(shown.locator("#parallel polyline")).to_have_count(3)
    expect(shown.locator("#parallel")).to_contain_text("rate")
