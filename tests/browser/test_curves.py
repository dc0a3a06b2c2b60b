"""Curves of any numbers are drawn, and soon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from tests.browser.watched import Watched
from tests.runs.made_run import made_run
from tests.servers import running

ODD = {
    "nearly equal": [1 - 1e-7, 1 + 1e-7, 1.0],
    "equal": [1e18, 1e18, 1e18],
    "nothing": [None, None, None],
    "zero": [0, 0, 0],
    "tiny": [1e-300, 2e-300, 5e-324],
    "huge": [-1.7e308, 1.7e308, 0],
    "apart": [1e-12, 1e12, -3],
    "once": [None, 2.5, None],
}


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[str]:
    for name, length in {"three": 3, "one": 1, "none": 0}.items():
        rows = [{metric: values[place] for metric, values in ODD.items()} for place in range(length)]
        (made_run(tmp_path / name, rows) / "owner").mkdir()
    with running(dashboard_app(Library(find_runs([tmp_path])))) as url:
        yield url


@pytest.mark.parametrize("run", ["three", "one", "none"])
def test_a_curve_of_odd_numbers_is_drawn(page: Watched, odd: str, run: str) -> None:
    shown = page.open(odd, "overview", run=run)
    shown.locator("details.metrics").evaluate_all("all => all.forEach(one => one.setAttribute('open', ''))")
    expect(shown.locator("[data-metric] canvas")).to_have_count(0 if run == "none" else len(ODD))
    for metric in ODD:
        page.open(odd, "compare", runs="|".join(["three", run]), metric=metric, over="updates")
