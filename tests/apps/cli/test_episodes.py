"""`rlhf episodes`: what a user asks of recorded episodes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from rlhf.apps.cli.main import app
from rlhf.errors import RlhfError
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.episode_table import table_of
from rlhf.runs.records import EpisodeOutcome, as_row
from tests.runs.test_episode_parts import FAILED, PLAYED, written

HOSTILE = "\x1b[2J\u202ebad"
LATER = replace(
    PLAYED, ordinal=9, update=3, reward=0.75, reward_parts={"exact": 0.0}, response=HOSTILE, conversation=None
)

CUT = replace(
    PLAYED, role="black", status="truncated", evaluation_set="held_out", generate_seconds=8.0,
    turns=[{"segment": 0, "start": 1, "stop": 3, "reward": None, "terminated": False, "truncated": True}],
)  # fmt: skip
"""An episode of one turn of two tokens, which a limit cut off."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    written(run / "episodes", [PLAYED, FAILED], [LATER])
    written(run / "evaluations", [replace(PLAYED, outcome=EpisodeOutcome.EVALUATED, evaluation_set="hard")])
    return run


def asked(run: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["episodes", str(run), *options])


def rows(run: Path, *options: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in asked(run, "--format", "jsonl", *options).stdout.splitlines()]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--where", "reward < 0.5 and update > 1"), [3]),
        (("--where", "reward_parts['exact'] = 0"), [9]),
        (("--where", "regexp_matches(response, 'ba.$')"), [9]),
        (("--where", "failure_kind = 'engine'"), [4]),
        (("--order", "reward desc", "--limit", "1", "--where", "reward is not null"), [9]),
        (("--where", "update = (select max(update) from episodes)"), [9]),
        (("--evaluations",), [3]),
    ],
)
def test_episodes_are_found_by_sql(run: Path, options: tuple[str, ...], found: list[int]) -> None:
    assert [row["ordinal"] for row in rows(run, *options)] == found


def test_more_than_can_be_read_is_said(tmp_path: Path) -> None:
    written(tmp_path, [replace(PLAYED, ordinal=place) for place in range(21)])
    for form, lines in (("--columns=ordinal", 21), ("--text", 140)):
        shown = asked(tmp_path, form)
        assert len(shown.stdout.splitlines()) == lines
        assert shown.stderr == "these are the first 20; --limit shows more\n"
        assert asked(tmp_path, form, "--limit", "20").stderr == ""
    assert len(rows(tmp_path)) == 21


def test_expressions_are_columns(run: Path) -> None:
    worst = ("--columns", "ordinal, round(list_min(proximal_logprobs), 2) AS least", "--where", "update = 2")
    assert rows(run, *worst) == [{"ordinal": 3, "least": -20.25}]


def test_a_limit_is_one_of_the_answer_and_not_of_what_is_counted(run: Path) -> None:
    assert rows(run, "--columns", "count(*) AS n", "--limit", "1") == [{"n": 3}]
    assert rows(run, "--columns", "task", "--order", "ordinal DESC", "--limit", "1") == [{"task": "t/1"}]


def test_the_table_is_one_line_an_episode_and_inert(run: Path) -> None:
    lines = asked(run).stdout.splitlines()
    assert lines[0].split() == ["update", "task", "sample", "outcome", "reward", "tokens", "answer", "response"]
    assert lines[3].endswith("\\x1b[2J\\u202ebad")
    assert len(lines) == 4


def test_the_text_of_an_episode_says_what_was_said_and_why_and_what_was_unlikely(run: Path) -> None:
    told = asked(run, "--text", "--where", "update = 2").stdout
    assert told.splitlines() == [
        "── update 2 · t/1 · sample 1 · trained · ended by itself · reward 0.1 (exact 1, format 0) · - tokens",
        "[user] 6*7?",
        "[assistant] ",
        '  → add({"x": [1, {"y": null}]})',
        "[expected] 42",
        '[least likely] "151000" at token 2 (-20.25), "8" at token 1 (-0.00)',
        "",
    ]
    assert "[assistant] \\x1b[2J\\u202ebad" in asked(run, "--text", "--where", "update = 3").stdout


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("sampling: {max_tokens: 2}", "cut off by sampling.max_tokens = 2"),
        ("{sampling: {max_tokens: 9}, data: {eval: {max_tokens: 2}}}", "cut off by data.eval.max_tokens = 2"),
        ("environment: {max_turns: 1}", "cut off by environment.max_turns = 1"),
        ("environment: {max_turns: 2}", "cut off by another role or the environment or the end of the context"),
        ("{agent: {program: mine}, environment: null}", "cut off by a limit of tokens, turns or time"),
        ("rollout: {generate_timeout_seconds: 7.5}", "cut off by rollout.generate_timeout_seconds = 7.5"),
        ("sampling: {max_tokens: 3}", "cut off by another role or the end of the context"),
    ],
)
def test_the_text_of_an_episode_says_its_role_and_what_cut_it_off(tmp_path: Path, recipe: str, told: str) -> None:
    """A run that went on with another recipe has the limits of both."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "until-000002.yaml").write_text(recipe)
    (tmp_path / "recipe.yaml").write_text("sampling: {max_tokens: 1}")
    written(tmp_path / "episodes", [replace(CUT, admitted_version=1), replace(CUT, ordinal=5, admitted_version=2)])
    first, second = asked(tmp_path, "--text", "--order", "ordinal").stdout.split("\n\n")[:2]
    assert f" · role black · trained · {told} · reward" in first
    assert " · cut off by sampling.max_tokens = 1 · reward" in second


def test_episodes_are_exported(run: Path, tmp_path: Path) -> None:
    for form in ("parquet", "jsonl"):
        file = tmp_path / f"some.{form}"
        asked(run, "--format", form, "-o", str(file), "--where", "outcome = 'trained'")
        assert list(map(as_row, read_episodes(file))) == [as_row(PLAYED), as_row(LATER)]
        assert len(asked(file).stdout.splitlines()) == 3
    asked(run, "--format", "parquet", "-o", str(tmp_path / "column.parquet"), "--columns", "reward", "--limit", "1")
    assert pq.read_table(tmp_path / "column.parquet").to_pydict() == {"reward": [0.1]}


def test_episodes_are_exported_in_the_formats_of_others(run: Path, tmp_path: Path) -> None:
    played = ("--where", "conversation is not null")
    assert json.loads(asked(run, "--format", "atif", *played).stdout)["trajectory_id"] == "3.1"
    [trace] = map(json.loads, asked(run, "--format", "openenv", *played).stdout.splitlines())
    assert trace["turns"][0]["completion_token_ids"] == [8, 151_000]
    folder = tmp_path / "trajectories"
    assert asked(run, "--format", "atif", "-o", str(folder), *played).exit_code == 0
    assert [file.name for file in folder.iterdir()] == ["3.1.json"]
    assert json.loads((folder / "3.1.json").read_text())["schema_version"] == "ATIF-v1.8"
    assert [*tmp_path.iterdir()] == [folder]
    for options, told in (
        (("-o", str(folder)), "exists: name another"),
        (("--columns", "task"), "--format atif exports whole episodes: leave out --columns"),
    ):
        assert told in str(asked(run, "--format", "atif", *options).exception)


def test_what_an_earlier_version_did_not_record_is_null(tmp_path: Path) -> None:
    pq.write_table(table_of([LATER]).drop_columns("entropies"), tmp_path / "part-000001.parquet")
    assert rows(tmp_path, "--columns", "entropies, reward") == [{"entropies": None, "reward": 0.75}]
    asked(tmp_path, "--format", "parquet", "-o", str(tmp_path / "whole.parquet"))
    assert list(map(as_row, read_episodes(tmp_path / "whole.parquet"))) == [as_row(LATER)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--columns", "rewrd"), 'Candidate bindings: "reward"'),
        (("--where", "reward <"), "syntax error"),
        (("--where", "exists(select * from read_text('/etc/hostname'))"), "Cannot access file"),
        (("--columns", "1) ; drop view episodes; select (1"), "syntax error"),
        (("--format", "parquet"), "--output"),
        (("--text", "--columns", "task"), "leave out --columns"),
    ],
)
def test_what_cannot_be_answered_is_one_named_error(run: Path, options: tuple[str, ...], words: str) -> None:
    failed = asked(run, *options)
    assert isinstance(failed.exception, RlhfError)
    assert words in str(failed.exception)
    assert "\n" not in str(failed.exception)
