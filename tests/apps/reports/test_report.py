"""Reports of made runs: what is in them, that they stand alone, and that no text of a model does anything in them."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlhf.apps.reports.report import LONGEST_TEXT, html_report
from rlhf.runs.model_card import fenced
from rlhf.runs.stored_run import read_run
from tests.hostile_texts import HOSTILE_TEXTS, unseen
from tests.runs.made_run import RECIPE, made_run
from tests.runs.test_episode_parts import FAILED, PLAYED, written

HOSTILE = {**HOSTILE_TEXTS, "entities": "&lt;b&gt;", "a longer fence": "````html\n<b>\n", "the end of data": "]]>"}
del HOSTILE["one long line"]  # a test of its own shortens it
ROWS = [
    {"reward/mean": 0.25, "policy/entropy": 0.5, "policy/logprob_difference": 0.02, "seconds/train": 1.0, "mine": 2.0}
] * 4
SUMMARY = {
    "outcome": "finished", "samples": 64, "wall_seconds": 3723.0,
    "evaluations": {"hard": {"problems": 8, "start": {"avg@1": 0.25}, "end": {"avg@1": 0.75}}},
}  # fmt: skip


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [value for name, value in attrs if name == "src" and value]

    def handle_data(self, data: str) -> None:
        self.text += data


TAGS = {
    "article", "body", "details", "div", "figcaption", "figure", "h1", "h2", "h3", "head", "html", "img", "li", "main",
    "meta", "pre", "section", "small", "span", "strong", "style", "summary", "table", "td", "th", "title", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {"alt", "charset", "class", "content", "http-equiv", "lang", "name", "scope", "src"}


def reported(folder: Path) -> str:
    return html_report(read_run(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose last update has five episodes; the rewards of the one before are more extreme."""
    folder = made_run(tmp_path / "run", ROWS, summary=SUMMARY)
    episodes = [
        replace(PLAYED, update=2, ordinal=9, sample=n, reward=reward, response=f"reply {reward}", conversation=None)
        for n, reward in enumerate([0.5, 0.0, 0.25, 1.0, 0.75])
    ]
    written(folder / "episodes", [replace(PLAYED, update=1, reward=9.0), FAILED], episodes)
    (folder / "code").mkdir()
    (folder / "code" / "graded.py").write_text("def reward(response, row): ...\n")
    state = folder / "checkpoints" / "version-000004" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"provenance": {"model.path": "9b43"}}')
    return folder


def test_a_report_says_what_became_of_the_run(folder: Path) -> None:
    shown = Page(reported(folder)).text
    parts = (
        "made", "finished", "4 of 40", "64", "1:02:03", "evaluation hard: avg@1", "0.25 → 0.75",
        "engine and learner differ by 0.02 nats since update 1", "policy/entropy", "0.5 nats", "mine",
        "at least 0.01 nats", "best", "reply 1.0", "middle", "reply 0.5", "worst", "reply 0.0", "exact 1, format 0",
        "6*7?", "42", RECIPE, "model.path", "9b43", "graded.py",
        "def reward(response, row): ...",
    )  # fmt: skip
    assert [part for part in parts if part not in shown] == []
    assert [reply for reply in ("reply 0.25", "reply 0.75", "9 (") if reply in shown] == []


def test_the_page_stands_alone(folder: Path) -> None:
    page = Page(reported(folder))
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert page.attributes & {"href", "srcset", "action", "data", "onclick"} == set()
    assert page.tags & {"script", "link", "iframe", "object", "form", "base"} == set()
    assert "http" not in reported(folder).replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in reported(folder)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_no_text_of_others_does_anything(tmp_path: Path, folder: Path, hostile: str) -> None:
    said = [{"role": hostile, "content": hostile, "tool_calls": [{"name": hostile, "arguments": {hostile: hostile}}]}]
    episode = replace(
        PLAYED, update=3, task=hostile, answer=hostile, reward_detail=hostile, conversation=said,
        reward_parts={hostile: 1.0}, status="terminated",
    )  # fmt: skip
    written(folder / "episodes", [episode])
    made_run(folder, [{**ROWS[0], hostile: None}] * 4, SUMMARY | {"outcome": hostile})
    (folder / "code" / "graded.py").write_text(hostile, errors="replace")
    (folder / "code" / "<script>.py").write_text("")
    report = reported(folder)
    assert report.count("<article>") == 1
    page = Page(report)
    assert (page.tags - TAGS, page.attributes - ATTRIBUTES) == (set(), set())
    assert unseen(report) == set()


def test_a_long_text_is_shortened_and_says_so(folder: Path) -> None:
    long = "a" * 1_000_000
    written(folder / "episodes", [replace(PLAYED, update=3, response=long + "end", conversation=None)])
    (words,) = re.findall(r"<pre>(a[^<]*)</pre>", reported(folder))
    assert words.endswith("aend")
    assert len(words) < LONGEST_TEXT + 100
    assert f"… {1_000_003 - LONGEST_TEXT} characters left out …" in words


def test_a_run_without_episodes_metrics_or_end_is_reported_too(tmp_path: Path) -> None:
    report = reported(made_run(tmp_path / "run", []))
    assert "outcomeits process ended without a summaryupdates0 of 40" in Page(report).text
    assert "Episodes" not in report


def test_episodes_that_cannot_be_read_are_told(folder: Path) -> None:
    for part in (folder / "episodes").iterdir():
        part.write_bytes(b"PAR")
    report = reported(folder)
    assert "<article>" not in report
    assert "damaged" in report


def test_a_curve_has_gaps_and_may_have_no_number_at_all(tmp_path: Path) -> None:
    rows = [{"reward/mean": value, "mine": None} for value in (0.0, None, 1e300, -1e-9)]
    page = Page(reported(made_run(tmp_path / "run", rows)))
    assert len(page.sources) == 2


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("a ````` b").splitlines()[0] == "``````text"
    assert fenced("none").splitlines()[0] == "```text"
