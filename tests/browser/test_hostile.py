"""Whatever a model wrote is text on the page: it is seen, and it does nothing."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Page
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlhf.apps.dashboard.app import dashboard_app
from rlhf.apps.dashboard.library import Library, find_runs
from rlhf.runs.records import EpisodeRecord
from tests.browser.watched import Watched
from tests.hostile_texts import HOSTILE_TEXTS, MARK, unseen
from tests.runs.made_run import made_run
from tests.runs.test_episode_parts import PLAYED, written
from tests.servers import running

NAMES = list(HOSTILE_TEXTS)


def record(place: int, text: str) -> EpisodeRecord:
    """An episode with the text in every column that a model, an environment or a scorer writes."""
    call = {"name": text[:1000], "arguments": {"x": text[:1000]}}
    return replace(
        PLAYED, ordinal=place, sample=0, task=f"{place} {text[:300]}", answer=text[:3000], response=text,
        prompt=[{"role": "user", "content": text[:3000]}], reward_detail=text[:3000], failure_kind=text[:100],
        failure_detail=text[:3000], role=text[:100], reward_parts={text[:100]: 1.0}, token_ids=[7, 8, 100 + place],
        conversation=[{"role": text[:100], "content": text, "tool_calls": [call]}],
    )  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hostile")
    lines = [
        f"p{place}: {json.dumps(without_halves(text)[:300])}\n" for place, text in enumerate(HOSTILE_TEXTS.values())
    ]
    recipe = "".join(lines) + "name: made\ntrainer: {updates: 1, proximal_logprobs: sampled, loss: {policy: mine}}\n"
    run = made_run(folder / "run", [{text[:300]: 1.0 for text in HOSTILE_TEXTS.values()}], recipe=recipe)
    (run / "owner").mkdir()
    (run / "tokenizer").mkdir()
    tokens = {without_halves(text)[:5000]: 100 + place for place, text in enumerate(HOSTILE_TEXTS.values())}
    Tokenizer(WordLevel({"seven": 7, "eight": 8} | tokens, unk_token="seven")).save(
        str(run / "tokenizer" / "tokenizer.json")
    )
    written(run / "episodes", [record(place, text) for place, text in enumerate(HOSTILE_TEXTS.values())])
    with running(dashboard_app(Library(find_runs([folder])))) as url:
        yield url


def without_halves(text: str) -> str:
    """As a record holds it, which is Unicode: half a character is written with its escape."""
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def seen(text: str) -> str:
    """As the page shows it."""
    return "".join(f"\\u{{{ord(one):x}}}" if one in UNSEEN or nothing(one) else one for one in without_halves(text))


UNSEEN = set().union(*map(unseen, HOSTILE_TEXTS.values()))


def nothing(character: str) -> bool:
    """Whether it will never be a character: U+FFFE and its like."""
    return unicodedata.category(character) == "Cn" and ord(character) & 0xFFFE == 0xFFFE


def assert_inert(shown: Page) -> None:
    """No script of a text has run, and no element of one is there. `Watched` keeps dialogs and requests."""
    assert shown.evaluate(f"window.{MARK}") is None
    assert shown.title() != MARK
    made = shown.evaluate(
        "[...document.querySelectorAll('main *:not(details.fold)')].map(one => one.tagName).filter(tag =>"
        " ['SCRIPT', 'IMG', 'IFRAME', 'OBJECT', 'STYLE', 'META', 'BASE', 'LINK', 'VIDEO', 'DETAILS', 'PLAINTEXT']"
        ".includes(tag))"
    )
    assert made == []
    attributes = "all => all.flatMap(one => [...one.attributes]).map(one => one.name).filter(name => /^on/.test(name))"
    assert shown.locator("main *").evaluate_all(attributes) == []
    addresses = shown.locator("a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert [address for address in addresses if not address.startswith(("#", "/api/export?"))] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_reply_is_text(page: Watched, hostile: str, name: str) -> None:
    text, place = HOSTILE_TEXTS[name], NAMES.index(name)
    shown = page.open(hostile, "episode", run="run", ordinal=place, sample=0, version=1)
    assert shown.locator(".message pre").first.text_content() == seen(text)
    assert seen(text[:300]) in shown.locator("h1").text_content()
    assert shown.locator(".token").nth(2).text_content().replace("↵", "") == seen(text)[:5000] or len(text) > 5000
    shown.locator(".token").nth(2).hover()
    shown.locator("#token dd").first.wait_for()
    assert_inert(shown)


@pytest.mark.parametrize("view", ["overview", "episodes", "groups", "system"])
def test_views_with_all_hostile_replies_are_inert(page: Watched, hostile: str, view: str) -> None:
    shown = page.open(hostile, view, run="run", limit=100)
    whole = shown.locator("main").text_content()
    for name, text in HOSTILE_TEXTS.items():
        shown_text = text[:30] if view != "overview" else re.sub("[\ud800-\udfff]", "\ufffd", text[:30])
        assert view == "system" or seen(shown_text) in whole, name
    assert_inert(shown)


def test_the_comparison_of_hostile_recipes_is_inert(page: Watched, hostile: str) -> None:
    shown = page.open(hostile, "compare", runs="run", metric=HOSTILE_TEXTS["script"][:300])
    assert_inert(shown)


@pytest.mark.parametrize("name", ["script", "event of an image", "SQL", "NUL"])
def test_an_address_that_another_wrote_is_text(page: Watched, hostile: str, name: str) -> None:
    words = HOSTILE_TEXTS[name]
    for view, given in {
        "episodes": {"run": "run", "where": words, "order": words},
        "compare": {"runs": words, "metric": words, "over": words},
        "overview": {"run": words},
        words: {"run": words},
    }.items():
        shown = page.open(hostile, view, **given)
        assert_inert(shown)
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]
