"""Each view of each run shows the numbers of its records."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator

from rlhf.runs.jsonl import read_jsonl
from tests.browser.watched import Watched

NONE = "\u2013"
"""What the page shows where the records have nothing."""


def test_the_list_of_runs_has_their_last_rewards(page: Watched, url: str, runs: Path) -> None:
    shown = {row[0]: row[1:] for row in rows_of(page.open(url, "runs").locator("main table"))}
    assert set(shown) == {"quickstart", "tools", "selfplay", "ppo", "dpo", "sft"}
    for run, (updates, reward, outcome) in shown.items():
        last = list(read_jsonl(runs / run / "metrics.jsonl"))[-1]
        assert updates == f"{last['update']} of {last['update']}"
        assert number(reward) == pytest.approx(last.get("reward/mean"), rel=1e-3)
        assert outcome == "finished"


def rows_of(table: Locator) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]


def number(text: str) -> float | None:
    """A number as the page writes it, with four digits."""
    return None if text == NONE else float(text.replace(",", ""))
