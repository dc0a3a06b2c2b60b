"""Each view of each run shows the numbers of its records, which are read here from the files themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect

from rlhf.runs.jsonl import read_jsonl
from tests.browser.runs import LATER
from tests.browser.watched import NONE, Watched, cells, facts, number

RUNS = ("quickstart", *LATER)
PLAYING = ("quickstart", "tools", "selfplay", "policies", "ppo")
"""Those that sample episodes."""


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(run / "metrics.jsonl"))


def episodes_of(run: Path, view: str = "episodes") -> list[dict[str, Any]]:
    parts = sorted((run / view).glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist(maps_as_pydicts="strict")]


def about(value: float | None, rel: float = 1e-3) -> Any:
    """The same number in four digits."""
    return None if value is None else pytest.approx(value, rel=rel)


def told(readout: str) -> float | None:
    """The number of a chart, in three digits."""
    return number(readout) / 100 if readout.endswith(" %") else number(readout)


def test_the_list_of_runs_has_their_rewards(page: Watched, url: str, runs: Path) -> None:
    shown = {row["run"]: row for row in cells(page.open(url, "runs").locator("#runs"))}
    assert set(shown) == set(RUNS)
    for run, row in shown.items():
        last = metrics_of(runs / run)[-1]
        assert row["updates"] == f"{last['update']} of {last['update']}"
        lessons = [last[name] for name in ("reward/mean", "pairs/accuracy", "sft/nll") if name in last]
        assert number(row["training"]) == about(lessons[0], 5e-3)
        assert row["status"] == "finished"
        if "eval/reward" in last:
            start, end = row["held-out"].split(" → ")
            summary = json.loads((runs / run / "summary.json").read_text())
            assert [number(start), number(end)] == [
                about(summary[f"eval_reward_{at}"], 5e-3) for at in ("start", "end")
            ]


@pytest.mark.parametrize("run", RUNS)
def test_an_overview_has_the_last_number_of_every_metric(page: Watched, url: str, runs: Path, run: str) -> None:
    rows = metrics_of(runs / run)
    last = {name: value for row in rows for name, value in row.items() if value is not None}
    charts = page.open(url, "overview", run=run).locator("[data-metric]")
    charts.evaluate_all("all => all.forEach(one => one.closest('details')?.setAttribute('open', ''))")
    lines = charts.locator(".now").evaluate_all(
        "all => all.map(one => [one.closest('section').dataset.metric, one.querySelector(':has(> .swatch)')?.innerText,"
        " one.querySelector('.readout').innerText])"
    )
    shown = {name if whose in (None, "all") else f"{whose}/{name}": told(words) for name, whose, words in lines}
    assert shown.keys() == {name for row in rows for name in row} - {"update", "time"}
    assert {name: value for name, value in shown.items() if value is not None} == {
        name: about(value, 5e-3) for name, value in last.items() if name in shown
    }
    expect(charts.locator("canvas")).to_have_count(charts.count())
    assert page.page.locator("#recipe pre").text_content().strip() == (runs / run / "recipe.yaml").read_text().strip()


def test_the_pointer_on_a_curve_tells_its_numbers(page: Watched, url: str, runs: Path) -> None:
    rows = metrics_of(runs / "quickstart")
    chart = page.open(url, "overview", run="quickstart").locator("[data-metric='reward/mean']")
    box = chart.locator(".u-over").bounding_box()
    chart.locator(".u-over").hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    update = int(chart.locator(".beside-readout").inner_text().removeprefix("at update "))
    assert told(chart.locator(".readout").inner_text()) == about(rows[update - 1]["reward/mean"], 5e-3)
    beside = page.page.locator("[data-metric='policy/entropy']")  # the same update on every chart
    assert told(beside.locator(".readout").inner_text()) == about(rows[update - 1]["policy/entropy"], 5e-3)
    chart.locator(".plot").focus()
    chart.locator(".plot").press("ArrowRight")
    expect(chart.locator(".beside-readout")).to_have_text(f"at update {update + 1}")


def test_policies_share_charts_and_choose_curves_and_episodes(page: Watched, url: str, runs: Path) -> None:
    last = metrics_of(runs / "policies")[-1]
    shown = page.open(url, "overview", run="policies")
    entropy = shown.locator("[data-metric='policy/entropy'] .now")
    for line, policy in zip(entropy.all(), ("one", "two"), strict=True):
        expect(line).to_contain_text(f"{policy}{last[f'{policy}/policy/entropy']:.3g}")
    shown.locator("select[name=policy]").select_option("two")
    page.settled()
    expect(entropy).to_have_count(1)
    expect(entropy).to_contain_text("two")
    expect(shown.locator("#samples article").first).to_contain_text("played by two")
    shown.get_by_role("link", name="The worst replies of the last update").click()
    page.settled()
    records = [one for one in episodes_of(runs / "policies") if one["policy"] == "two"]
    assert {(row["role"], row["policy"]) for row in cells(shown.locator("main table"))} == {("second", "two")}
    shown.get_by_role("link", name="All", exact=True).click()
    expect(shown.locator("#count")).to_contain_text(re.compile(rf"^{len(records)} episodes"))
    shown.get_by_label("Role").select_option("first")
    shown.get_by_role("button", name="Show").click()
    expect(shown.locator("#count")).to_have_text("0 episodes")
    cards = page.open(url, "groups", run="policies", policy="one").locator("article h3")
    assert {words.partition(" · ")[2] for words in cards.all_inner_texts()} == {"first · one"}
    assert page.open(url, "episodes", run="selfplay").locator("select[name=policy]").count() == 0


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
            assert number(row.get(column, NONE)) == about(record[column]), column


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


def test_runs_are_compared_by_curves_recipes_and_episodes(page: Watched, url: str, runs: Path) -> None:
    shown = page.open(url, "compare", runs="quickstart")
    shown.get_by_text("Choose runs").click()
    shown.get_by_label("ppo").check()
    expect(shown.locator("#ends tbody tr")).to_have_count(2)
    expect(shown.locator("#curves h2")).to_have_text("eval/reward")
    shown.get_by_label("Metric").select_option("response/tokens_mean")
    expect(shown.locator("#curves h2")).to_have_text("response/tokens_mean")
    for row in cells(shown.locator("#ends")):
        values = [one["response/tokens_mean"] for one in metrics_of(runs / row["run"])]
        assert [number(row[head]) for head in ("first", "last", "largest")] == [
            about(value) for value in (values[0], values[-1], max(values))
        ]
    for over in ("samples", "tokens", "hours", "updates"):
        shown.get_by_label("Over").select_option(over)
        page.settled().locator("#curves .u-over").hover()
        expect(shown.locator("#curves .readouts li").first).to_contain_text(over)
        assert f"over={over}" in shown.url
    shown.get_by_role("link", name="Recipes").click()
    page.settled()
    differ = {row["key"]: (row["quickstart"], row["ppo"]) for row in cells(shown.locator("#recipes"))}
    assert differ["trainer.updates"] == ("12\noverride", "3\noverride")
    assert differ["trainer.algorithm"][1] == "ppo\noverride"
    assert "trainer.optimizer.schedule" not in differ
    shown.get_by_role("navigation", name="Kinds of comparison").get_by_role("link", name="Episodes").click()
    record = episodes_of(runs / "ppo", "evaluations")[-1]
    shown.get_by_label("Problem").fill(record["task"])
    shown.get_by_role("button", name="Show").click()
    expect(shown.locator("#problem section section")).to_have_count(2)
    expect(shown.locator("#problem").get_by_text(record["response"]).last).to_be_visible()


def test_runs_of_different_kinds_are_compared_by_what_several_have(page: Watched, url: str) -> None:
    shown = page.open(url, "compare", runs="quickstart|ppo|dpo")
    expect(shown.locator("#curves h2")).to_have_text("eval/reward")
    assert "Not recorded by dpo." in shown.locator("main").inner_text()
    assert shown.locator("#parallel").count() == 0
    assert shown.locator(".charts h3").count() > 0


def test_the_overview_has_what_was_said_at_the_last_evaluation(page: Watched, url: str, runs: Path) -> None:
    records = [one for one in episodes_of(runs / "quickstart", "evaluations") if one["admitted_version"] == 12]
    record = min(records, key=lambda one: one["ordinal"])
    card = page.open(url, "overview", run="quickstart").locator("#samples article").first
    expect(card).to_contain_text(record["prompt"][-1]["content"])
    for words in (record["response"], f"expected {record['answer']}", f"reward {record['reward']:.0f}", "ended by"):
        expect(card).to_contain_text(words)


def test_a_league_shows_who_won_against_whom(page: Watched, url: str, runs: Path) -> None:
    state = max((runs / "policies" / "checkpoints").iterdir()) / "league.json"
    state.write_text(json.dumps({"results": {"main": {"main@4": [3, 4]}, "main@4": {"main": [1, 4]}}}))
    try:
        table = page.open(url, "overview", run="policies").locator("#league table")
    finally:
        state.unlink()
    assert table.locator("thead th").all_inner_texts() == ["wins of", "Elo", "main", "main@4"]
    assert table.locator("tbody tr").all_inner_texts() == ["main\t1074\t\u2013\t75 %", "main@4\t926.4\t25 %\t\u2013"]
