"""Each view of each run shows the numbers of its records, which are read here from the files themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect

from rlhf.runs.jsonl import read_jsonl
from tests.browser.runs import LATER
from tests.browser.watched import Watched, cells, facts, number

RUNS = ("quickstart", *LATER)
PLAYING = ("quickstart", "tools", "selfplay", "ppo")
"""Those that sample episodes."""


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "metrics.jsonl"))


def episodes_of(run: Path, view: str = "episodes") -> list[dict[str, Any]]:
    parts = sorted((run / view).glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist(maps_as_pydicts="strict")]


def about(value: float | None) -> Any:
    """The same number in four digits."""
    return None if value is None else pytest.approx(value, rel=1e-3)


def test_the_list_of_runs_has_their_last_rewards(page: Watched, url: str, runs: Path) -> None:
    shown = {row["run"]: row for row in cells(page.open(url, "runs").locator("main table"))}
    assert set(shown) == set(RUNS)
    for run, row in shown.items():
        last = metrics_of(runs / run)[-1]
        assert row["updates"] == f"{last['update']} of {last['update']}"
        assert number(row["reward"]) == about(last.get("reward/mean"))
        assert row["outcome"] == "finished"


@pytest.mark.parametrize("run", RUNS)
def test_an_overview_has_the_last_number_of_every_metric(page: Watched, url: str, runs: Path, run: str) -> None:
    rows = metrics_of(runs / run)
    last = {name: value for row in rows for name, value in row.items() if value is not None}
    charts = page.open(url, "overview", run=run).locator("[data-metric]")
    texts = charts.evaluate_all("all => all.map(one => [one.dataset.metric, one.querySelector('p').innerText])")
    shown = {name: number(words.split(" · ")[0]) for name, words in texts}
    assert shown.keys() == {name for row in rows for name in row} - {"update", "time"}
    assert {name: value for name, value in shown.items() if value is not None} == {
        name: about(value) for name, value in last.items() if name in shown
    }
    assert charts.locator("canvas").count() == len(texts)
    assert page.page.locator("main pre").first.inner_text().strip() == (runs / run / "recipe.yaml").read_text().strip()


def test_the_pointer_on_a_curve_tells_its_numbers(page: Watched, url: str, runs: Path) -> None:
    rows = metrics_of(runs / "quickstart")
    chart = page.open(url, "overview", run="quickstart").locator("[data-metric='reward/mean']")
    box = chart.locator(".u-over").bounding_box()
    chart.locator(".u-over").hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    update, reward = chart.locator(".u-value").all_inner_texts()
    assert number(reward) == about(rows[int(update) - 1]["reward/mean"])


@pytest.mark.parametrize("view", ["episodes", "evaluations"])
@pytest.mark.parametrize("run", RUNS)
def test_the_table_of_episodes_has_their_records(page: Watched, url: str, runs: Path, run: str, view: str) -> None:
    records = episodes_of(runs / run, view)
    assert bool(records) == (run in PLAYING)
    order = {"order": "admitted_version, ordinal, sample"}
    shown = page.open(url, "episodes", run=run, view=view, **order)
    assert shown.locator("#count").inner_text().startswith(f"{len(records):,} episodes")
    records.sort(key=lambda one: (one["admitted_version"], one["ordinal"], one["sample"]))
    table = cells(shown.locator("main table"))
    assert len(table) == min(len(records), 100)
    for row, record in zip(table, records, strict=False):
        assert row["task"] == record["task"]
        assert row["outcome"] == record["outcome"]
        for column in ("update", "sample", "reward", "advantage", "sampled_tokens"):
            assert number(row[column]) == about(record[column]), column


@pytest.mark.parametrize("run", PLAYING)
def test_an_episode_has_its_record_and_its_tokens(page: Watched, url: str, runs: Path, run: str) -> None:
    record = max(episodes_of(runs / run), key=lambda one: (len(one["turns"] or ()), one["reward"], one["sample"]))
    at = {"ordinal": record["ordinal"], "sample": record["sample"], "version": record["admitted_version"]}
    shown = page.open(url, "episode", run=run, **at)
    told = facts(shown.locator("dl.facts").first)
    assert number(told["reward"].split()[0]) == about(record["reward"])
    assert number(told["advantage"]) == about(record["advantage"])
    assert told.get("answer") == record["answer"]
    tokens = shown.locator(".token")
    first, second = record["segment_lengths"][0], sum(record["segment_lengths"])
    assert tokens.count() == first
    assert (shown.get_by_role("navigation", name="Contexts").count() > 0) == (second > first)
    place = next(place for place in range(first) if record["kinds"][place] == 1)
    tokens.nth(place).hover()
    told = facts(shown.locator("#token"))
    assert number(told["engine log-prob"]) == pytest.approx(record["behaviour_logprobs"][place], rel=1e-5)
    assert number(told["learner log-prob"]) == pytest.approx(record["proximal_logprobs"][place], rel=1e-5)
    advantage = record["advantages"][place] if record["advantages"] else record["advantage"]
    assert number(told["advantage"]) == about(advantage)
    assert number(told["entropy"]) == about(record["entropies"][place])
    assert number(told["version"]) == record["versions"][place]
    said = record["conversation"] or [*record["prompt"], {"role": "assistant", "content": record["response"]}]
    assert shown.locator(".message b").all_inner_texts() == [message["role"] for message in said]


@pytest.mark.parametrize("view", ["episodes", "evaluations"])
def test_groups_show_their_episodes_side_by_side(page: Watched, url: str, runs: Path, view: str) -> None:
    records = episodes_of(runs / "tools", view)
    shown = page.open(url, "groups", run="tools", view=view, where="sample >= 0", order="lowest reward")
    means = [float(np.mean([one["reward"] for one in group])) for group in grouped(records)]
    told = [words.split(" reward ")[1].split(" ")[0] for words in shown.locator(".group > p").all_inner_texts()]
    assert [number(word.rstrip(",")) for word in told] == [about(mean) for mean in sorted(means)[: len(told)]]
    first = shown.locator(".group").first
    task = shown.locator("main h2 a").first.inner_text()
    replies = [one["response"] for one in records if one["task"] == task]
    assert {reply.strip() for reply in first.locator("pre").all_inner_texts()} <= {reply.strip() for reply in replies}
    shown.locator("main h2 a").first.click()
    expect(shown.get_by_label("Condition (SQL)")).to_have_value(f"task = '{task}'")
    assert {words.split(" · ")[0] for words in shown.locator("main h2").all_inner_texts()} == {task}


def grouped(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for one in records:
        groups.setdefault((one["ordinal"], one["admitted_version"]), []).append(one)
    return list(groups.values())


def test_the_system_has_the_work_of_the_records(page: Watched, url: str, runs: Path) -> None:
    records = episodes_of(runs / "tools")
    shown = page.open(url, "system", run="tools")
    (engine,) = cells(shown.locator("#engines"))
    assert engine["engine"] == records[0]["engine"]
    assert number(engine["sampled tokens"]) == sum(one["sampled_tokens"] for one in records)
    seconds = [one["generate_seconds"] for one in records]
    assert number(engine["median seconds"]) == about(float(np.median(seconds)))
    spans = [span for span in read_jsonl(runs / "tools" / "spans.jsonl") if span["name"] == "engine"]
    (load,) = cells(shown.locator("#loads"))
    assert number(load["steps"]) == sum(span["steps"] for span in spans)
    assert 0 < number(load["running requests"]) <= max(span["running"] for span in spans)
    (environment,) = cells(shown.locator("#environments"))
    assert number(environment["longest"]) == about(max(one["environment_seconds"] for one in records))
    assert {"learner-0", "engine-0"} <= {row["worker"] for row in cells(shown.locator("#placement"))}
    assert shown.locator("#provenance tbody tr").count() > 0


@pytest.mark.parametrize("run", RUNS)
def test_a_timeline_has_the_busy_seconds_of_the_spans(page: Watched, url: str, runs: Path, run: str) -> None:
    before, end = (row["time"] for row in metrics_of(runs / run)[-2:])
    shown = page.open(url, "timeline", run=run)
    spans = [span for span in read_jsonl(runs / run / "spans.jsonl") if span["name"] == "train"]
    busy = sum(max(0, min(one["start"] + one["seconds"], end) - max(one["start"], before)) for one in spans)
    (train,) = (row for row in cells(shown.locator("#shares")) if row["activity"] == "train")
    assert number(train["seconds"]) == about(busy)
    assert number(train["busy"]) + number(train["idle"]) == pytest.approx(100, abs=0.11)
    bars = shown.locator("svg.lane rect").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert max(bars) <= shown.locator("svg.lane").first.evaluate("lane => lane.getBoundingClientRect().right") + 1
    if run == "quickstart":
        shown.get_by_role("link", name="← earlier").click()
        expect(shown.get_by_role("heading", level=1)).to_have_text("Update 11")


def test_two_runs_are_compared(page: Watched, url: str, runs: Path) -> None:
    shown = page.open(url, "compare", runs="quickstart")
    shown.get_by_label("ppo").check()
    expect(shown.locator("#ends tbody tr")).to_have_count(2)
    shown.get_by_label("Metric").select_option("response/tokens_mean")
    expect(shown.locator("#ends caption")).to_have_text("response/tokens_mean")
    for row in cells(shown.locator("#ends")):
        values = [one["response/tokens_mean"] for one in metrics_of(runs / row["run"])]
        assert [number(row[head]) for head in ("first", "last", "largest")] == [
            about(value) for value in (values[0], values[-1], max(values))
        ]
    differ = {row["key"]: (row["quickstart"], row["ppo"]) for row in cells(shown.locator("#recipes"))}
    assert differ["trainer.updates"] == ("12 override", "3 override")
    assert differ["trainer.algorithm"][1] == "ppo override"
    assert "trainer.optimizer.schedule" not in differ
    expect(shown.locator("#parallel polyline")).to_have_count(2)
    expect(shown.locator("#parallel")).to_contain_text("algorithm")
    record = episodes_of(runs / "ppo", "evaluations")[-1]
    shown.get_by_label("Problem").fill(record["task"])
    shown.get_by_role("button", name="Show").click()
    expect(shown.locator("#problem section section")).to_have_count(2)
    expect(shown.locator("#problem").get_by_text(record["response"]).last).to_be_visible()
    for over in ("samples", "tokens", "hours", "updates"):
        shown.get_by_label("Over").select_option(over)
        expect(shown.locator("#curves .u-series").first).to_contain_text(over)
        assert f"over={over}" in shown.url
