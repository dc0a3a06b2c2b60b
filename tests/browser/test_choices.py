"""What a reader chooses: conditions, orders, expressions, colours. Each has an address, which shows the same again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.browser.test_views import episodes_of
from tests.browser.watched import Watched, cells, number

FIELDS = {"where": "Condition (SQL)", "text": "Reply matches (regular expression)", "order": "Order (SQL)"}


def choose(shown: Page, **given: str) -> None:
    for field, words in given.items():
        shown.get_by_label(FIELDS[field]).fill(words)
    shown.get_by_role("button", name="Show", exact=True).click()
    for field, words in given.items():
        expect(shown.get_by_label(FIELDS[field])).to_have_value(words)


def replies(shown: Page) -> list[str]:
    return [row["response"] for row in cells(shown.locator("main table"))]


def test_episodes_are_filtered_and_sorted_and_the_address_keeps_it(
    page: Watched, context: BrowserContext, url: str, runs: Path
) -> None:
    records = episodes_of(runs / "quickstart")
    shown = page.open(url, "episodes", run="quickstart")
    choose(shown, where="reward = 1 AND update > 6", text="^0+1", order="update DESC, ordinal, sample")
    right = [one for one in records if one["reward"] == 1 and one["update"] > 6 and re.search("^0+1", one["response"])]
    expect(shown.locator("#count")).to_contain_text(f"{len(right):,} episodes")
    right.sort(key=lambda one: (-one["update"], one["ordinal"], one["sample"]))
    assert replies(shown) == [one["response"] for one in right][:100]
    again = Watched(context.new_page())
    assert replies(again.visit(url, shown.url)) == replies(shown)
    assert again.faults == []


def test_a_click_on_a_head_sorts_and_another_turns_the_order(page: Watched, url: str, runs: Path) -> None:
    rewards = sorted(one["sampled_tokens"] for one in episodes_of(runs / "tools"))
    shown = page.open(url, "episodes", run="tools")
    head = shown.locator("th", has_text="sampled_tokens")
    for direction, expected in (("descending", rewards[::-1]), ("ascending", rewards)):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", direction)
        assert [number(row["sampled_tokens"]) for row in cells(shown.locator("main table"))] == expected[:100]
    shown.go_back()
    expect(head).to_have_attribute("aria-sort", "descending")


def test_evaluations_and_more_rows_are_chosen(page: Watched, url: str, runs: Path) -> None:
    shown = page.open(url, "episodes", run="quickstart")
    shown.get_by_label("Rows").select_option("300")
    choose(shown)
    expect(shown.locator("main tbody tr")).to_have_count(300)
    shown.locator("select[name=view]").select_option("evaluations")
    choose(shown)
    expect(shown.get_by_role("heading", level=1)).to_have_text("Evaluations")
    shown.locator("main tbody a").first.click()
    assert "view=evaluations" in shown.url
    expect(shown.locator("dl.facts").first).to_contain_text("evaluated")


def test_a_mistake_in_a_condition_is_told_and_the_words_stay(page: Watched, url: str) -> None:
    shown = page.open(url, "episodes", run="quickstart")
    choose(shown, where="rewrd < 1")
    page.refused("rewrd")
    choose(shown, text="(", where="")
    page.refused("missing )")


def test_the_worst_replies_of_the_last_update_are_a_click_away(page: Watched, url: str, runs: Path) -> None:
    records = [one for one in episodes_of(runs / "quickstart") if one["update"] == 12]
    shown = page.open(url, "overview", run="quickstart")
    shown.get_by_role("link", name="The worst replies of the last update").click()
    expect(shown.locator("#count")).to_contain_text(f"{len(records)} episodes")
    assert [number(row["reward"]) for row in cells(shown.locator("main table"))] == sorted(
        one["reward"] for one in records
    )[:100]
    shown.locator("main tbody a").first.click()
    shown.get_by_role("link", name="All episodes of this task, by version").click()
    expect(shown.get_by_label(FIELDS["where"])).to_have_value(re.compile("^task = '"))
    assert len({row["task"] for row in cells(shown.locator("main table"))}) == 1


COLOURED = {
    "log-prob": lambda engine, learner, advantage: (learner / 4, 0.5),
    "engine \u2212 learner": lambda engine, learner, advantage: ((engine - learner) / 0.05, 0.5),
    "advantage": lambda engine, learner, advantage: (advantage / 2, 0.5),
}
"""Of a token: how strong its colour is, below zero red and above green, and the most opaque that it becomes."""


@pytest.mark.parametrize("colour", [*COLOURED, "kind", "ratio", "version"])
def test_tokens_have_the_colour_of_their_number(page: Watched, url: str, runs: Path, colour: str) -> None:
    record = next(one for one in episodes_of(runs / "ppo") if one["advantages"])
    at = {"ordinal": record["ordinal"], "sample": record["sample"], "version": record["admitted_version"]}
    shown = page.open(url, "episode", run="ppo", **at)
    shown.get_by_label("Colour by").select_option(colour)
    page.settled()
    backgrounds = shown.locator(".token").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(backgrounds) == len(record["token_ids"])
    for place, background in enumerate(backgrounds):
        red, green, blue, opacity = rgba(background)
        if record["kinds"][place] != 1:
            assert opacity == (0.3 if colour == "kind" and record["kinds"][place] == 2 else 0)
        elif colour == "kind":
            assert (opacity, blue > red) == (0.3, True)
        elif colour in COLOURED:
            columns = ("behaviour_logprobs", "proximal_logprobs", "advantages")
            strength, most = COLOURED[colour](*(record[column][place] for column in columns))
            assert opacity == pytest.approx(most * min(abs(strength), 1), abs=0.006)
            assert opacity < 0.01 or (red > green) == (strength < 0)


def rgba(words: str) -> list[float]:
    found = [float(one) for one in re.findall(r"[\d.]+", words)]
    return found if len(found) == 4 else [*found, 1.0]


def test_the_text_of_tokens_is_shown_as_chosen_and_clipped_ones_are_underlined(
    page: Watched, url: str, runs: Path
) -> None:
    page.page.route(re.compile("/api/episode[?]"), clipping_the_last)  # as short runs clip nothing
    shown = page.open(url, "episode", run="tools", ordinal=0, sample=0, version=0)
    tokens = shown.locator(".tokens")
    assert "<|im_end|>" in tokens.inner_text()
    assert "\u21b5" in tokens.inner_text()
    shown.get_by_label("Text").select_option("rendered")
    expect(tokens).not_to_contain_text("<|im_end|>")
    shown.get_by_label("Text").select_option("raw")
    expect(tokens).to_contain_text("user\\n")
    assert "text=raw" in shown.url
    expect(shown.locator("#marked")).to_contain_text("1 clipped")
    tokens.locator(".marked").hover()
    expect(shown.locator("#token")).to_contain_text("clipped it")


def clipping_the_last(route: Route) -> None:
    answer = route.fetch()
    found = answer.json()
    assert len(found["marks"]) == len(found["texts"])
    route.fulfill(response=answer, json=found | {"marks": [*found["marks"][:-1], "clipped"]})


def test_the_episodes_that_match_are_exported(page: Watched, url: str, runs: Path) -> None:
    shown = page.open(url, "episodes", run="quickstart", where="reward = 1 AND update = 12")
    with shown.expect_download() as begun:
        shown.get_by_role("link", name="parquet").click()
    assert begun.value.suggested_filename == "episodes.parquet"
    right = [one for one in episodes_of(runs / "quickstart") if one["reward"] == 1 and one["update"] == 12]
    assert pq.read_table(begun.value.path()).to_pylist(maps_as_pydicts="strict") == right


def test_a_neighbourhood_is_copied_as_json(page: Watched, context: BrowserContext, url: str, runs: Path) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    record = max(episodes_of(runs / "tools"), key=lambda one: len(one["token_ids"]))
    at = {"ordinal": record["ordinal"], "sample": record["sample"], "version": record["admitted_version"]}
    shown = page.open(url, "episode", run="tools", **at)
    shown.locator(".token").nth(30).click()
    shown.get_by_role("group", name="Tokens").press("c")
    expect(shown.get_by_role("status")).to_have_text("21 tokens copied")
    copied = json.loads(shown.evaluate("navigator.clipboard.readText()"))
    assert [token["id"] for token in copied] == record["token_ids"][20:41]
    sampled = [token["engine"] for token in copied if token["kind"] == 1]
    assert sampled == pytest.approx([one for one in record["behaviour_logprobs"][20:41] if one is not None])
