"""What `rlhf view` answers: the numbers of the records, for this machine's user alone."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlhf.apps.dashboard.answers import algorithm_name
from rlhf.apps.dashboard.app import STATIC, dashboard_app, live_events
from rlhf.apps.dashboard.library import Library, find_runs
from rlhf.runs.episode_parts import read_episodes, write_part
from rlhf.runs.image_files import write_images
from rlhf.runs.records import EpisodeOutcome, as_row
from tests.runs.seen_images import IMAGE
from tests.runs.test_episode_parts import FAILED, PLAYED, written

SCRIPT = "<script>alert(1)</script>"
ENDED = "its process ended without a summary"
ROWS = [
    {"update": 1, "time": 1.5, "reward/mean": 0.25, "eval/reward": 0.25, "mine/own": None},
    {"update": 2, "time": 2.5, "reward/mean": 0.5, "eval/reward": 0.75},
]

RECIPE = """
name: sorter
model: {path: /models/Qwen/Qwen3-8B, lora: {rank: 8}}
trainer:
  {algorithm: dr_grpo, updates: 4, proximal_logprobs: behaviour, loss: {policy: cispo, clip_low: 0.1, clip_high: 0.28}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "first"
    (run / "owner").mkdir(parents=True)
    (run / "tokenizer").mkdir()
    (run / "recipe.yaml").write_text(RECIPE)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    tokenizer = Tokenizer(WordLevel({"seven": 7, SCRIPT: 8}, unk_token="seven"))
    tokenizer.add_special_tokens(["seven"])
    tokenizer.save(str(run / "tokenizer" / "tokenizer.json"))
    worse = replace(PLAYED, sample=2, reward=-1.0, response=SCRIPT)
    written(run / "episodes", [PLAYED, FAILED, worse])
    written(run / "evaluations", [replace(PLAYED, outcome=EpisodeOutcome.EVALUATED, evaluation_set="it's hard")])
    return run


def page_of(run: Path, token: str | None = None) -> TestClient:
    library = Library(find_runs([run.parent]), [run.parent])
    return TestClient(dashboard_app(library, token), base_url="http://127.0.0.1:8400")


def test_players_are_named_in_a_run_with_policies_alone(run: Path) -> None:
    assert page_of(run).get("/api/players", params={"run": "first"}).json() == {}
    assert page_of(run).get("/api/overview", params={"run": "first"}).json()["policies"] == []
    (run / "recipe.yaml").write_text(f"{RECIPE}policies: {{two: {{}}, one: {{}}}}\n")
    write_part(run / "episodes", 2, [replace(PLAYED, role="first", policy=name) for name in ("two", "one")])
    assert page_of(run).get("/api/players", params={"run": "first"}).json() == {
        "policy": ["one", "two"], "role": ["first"],
    }  # fmt: skip
    found = page_of(run).get("/api/episodes", params={"run": "first", "where": "policy = 'two'"}).json()
    assert [row["policy"] for row in found["rows"]] == ["two"]
    assert page_of(run).get("/api/overview", params={"run": "first"}).json()["policies"] == ["two", "one"]


def test_runs_are_listed_and_a_damaged_one_says_why(run: Path) -> None:
    page = page_of(run)
    (run.parent / "second" / "owner").mkdir(parents=True)
    (run.parent / "second" / "recipe.yaml").write_text("[")
    first, second = page.get("/api/runs").json()
    assert first == page.get("/api/run", params={"run": "first"}).json()
    assert first == {
        "name": "first", "updates": 4, "made": 2, "outcome": ENDED, "writing": False, "model": "Qwen/Qwen3-8B + LoRA",
        "algorithm": "dr grpo", "held_out": {"metric": "eval/reward", "start": 0.25, "end": 0.75}, "began": 1.5,
        "lesson": {"metric": "reward/mean", "end": 0.5, "curve": [0.25, 0.5]}, "ended": 2.5, "left": None,
    }  # fmt: skip
    assert second["error"].endswith("recipe.yaml is not the recipe of a run")
    (run / "metrics.jsonl").write_text(json.dumps({"update": 1, "time": 1.5, "pairs/accuracy": 0.5}) + "\n")
    assert page.get("/api/runs").json()[0]["lesson"]["metric"] == "pairs/accuracy"


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"kind": "preference", "trainer": {"preference": {"loss": "ipo"}}}, "ipo"),
        ({"trainer": {"algorithm": None, "advantage": {"estimator": "group_relative"}}}, "grpo"),
        ({"trainer": {"algorithm": None, "advantage": {"estimator": "mine:own"}}}, "mine:own"),
        ({"kind": "reward_model", "trainer": {}}, "reward model"),
    ],
)
def test_a_run_is_named_by_what_it_trains_with(recipe: dict[str, Any], told: str) -> None:
    assert algorithm_name(recipe) == told


def test_an_overview_has_the_numbers_of_the_records_and_their_meaning(run: Path) -> None:
    found = page_of(run).get("/api/overview", params={"run": "first"}).json()
    assert (found["name"], found["update"], found["time"]) == ("sorter", [1, 2], [1.5, 2.5])
    assert found["outcome"] == ENDED
    reward = found["metrics"]["reward/mean"]
    assert (reward["values"], reward["meaning"]) == ([0.25, 0.5], "mean reward of the trained episodes")
    assert found["metrics"]["mine/own"] == {"values": [None, None]}


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        ({}, [1, 0, 2]),
        ({"where": "reward < 0.5", "order": "reward"}, [2, 1]),
        ({"where": "regexp_matches(response, 'alert')"}, [2]),
        ({"where": "reward_parts['exact'] = 1", "order": "reward DESC", "limit": 1}, [1]),
        ({"view": "evaluations"}, [1]),
    ],
)
def test_episodes_are_filtered_and_sorted(run: Path, given: dict[str, str], samples: list[int]) -> None:
    found = page_of(run).get("/api/episodes", params={"run": "first"} | given).json()
    assert [row["sample"] for row in found["rows"]] == samples
    assert found["total"] == len(samples) + ("limit" in given)


def test_an_episode_has_its_tokens_as_text_and_its_group(run: Path) -> None:
    place = {"run": "first", "ordinal": 3, "sample": 1, "version": 1}
    found = page_of(run).get("/api/episode", params=place).json()
    assert (found["texts"], found["special"]) == (["seven", SCRIPT, ""], [True, False, False])
    assert found["marks"] == [None, None, "clipped"]
    assert found["episode"]["behaviour_logprobs"] == [None, pytest.approx(-1e-7), -20.125]
    assert found["episode"]["reward_parts"] == {"exact": 1.0, "format": 0.0}
    assert [one["sample"] for one in found["siblings"]] == [1, 2]
    assert [one["ended"] for one in (found["episode"], *found["siblings"])] == ["ended by the model"] * 3
    evaluated = page_of(run).get("/api/episode", params=place | {"view": "evaluations", "set": "it's hard"}).json()
    assert evaluated["episode"]["evaluation_set"] == "it's hard"


def test_groups_have_the_spread_of_their_rewards_and_their_episodes(run: Path) -> None:
    page = page_of(run)
    first, second = page.get("/api/groups", params={"run": "first", "order": "spread DESC NULLS LAST"}).json()
    assert (first["task"], first["episodes"], first["lowest"], first["highest"]) == ("t/1", 2, -1.0, 0.1)
    assert (first["mean"], first["spread"]) == (pytest.approx(-0.45), pytest.approx(0.55))
    assert [row["response"] for row in first["rows"]] == ["42", SCRIPT]
    assert (second["mean"], [row["failure_kind"] for row in second["rows"]]) == (None, ["engine"])
    (evaluated,) = page.get("/api/groups", params={"run": "first", "view": "evaluations"}).json()
    assert evaluated["evaluation_set"] == "it's hard"


def test_the_system_has_workers_engines_and_failures(run: Path) -> None:
    (run / "logs").mkdir()
    table = "worker    node  cores  threads  GPUs\nengine-0  vm    0.5          1     -\n"
    (run / "logs" / "controller.log").write_text(f"starting\n{table}… start\n")
    played = replace(PLAYED, ordinal=9, engine="engine-0", generate_seconds=0.5, sampled_tokens=4)
    write_part(run / "episodes", 2, [played, replace(played, sample=2, generate_seconds=1.5)])
    load = {"name": "engine", "engine": "engine-0", "start": 1.0, "seconds": 1.0, "steps": 1, "running": 8.0}
    load |= {"waiting": 0.0, "kv_cache": 0.5, "prompt_tokens": 10, "cached_tokens": 0}
    later = load | {"steps": 3, "running": 4.0, "kv_cache": 0.25, "prompt_tokens": 30, "cached_tokens": 20}
    (run / "spans.jsonl").write_text("".join(json.dumps(span) + "\n" for span in (load, later)))
    found = page_of(run).get("/api/system", params={"run": "first"}).json()
    assert found["loads"] == [
        {"engine": "engine-0", "steps": 4, "running": 5.0, "waiting": 0.0, "kv_cache": 0.5, "prefix_hits": 0.5}
    ]
    assert found["placement"] == [line.split() for line in table.splitlines()]
    (engine,) = found["engines"]
    assert (engine["episodes"], engine["tokens"], engine["seconds"], engine["median_seconds"]) == (2, 8, 2.0, 1.0)
    assert found["environments"] == []
    assert [(row["failure_kind"], row["outcome"], row["episodes"]) for row in found["failures"]] == [
        ("engine", "failed", 1)
    ]
    assert found["disk"]["metrics.jsonl"] == (run / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_selection_is_exported_as_records(run: Path, tmp_path: Path, form: str) -> None:
    given = {"run": "first", "form": form, "where": "outcome = 'trained'"}
    file = tmp_path / f"chosen.{form}"
    file.write_bytes(page_of(run).get("/api/export", params=given).content)
    chosen = [record for record in read_episodes(run / "episodes") if record.outcome is EpisodeOutcome.TRAINED]
    assert [as_row(record) for record in read_episodes(file)] == [as_row(record) for record in chosen]


def test_the_timeline_of_an_update_has_the_spans_that_touch_it(run: Path) -> None:
    spans = [("start", 0.2, 0.3), ("generate", 1.4, 0.3), ("train", 2.0, 0.4), ("save", 2.6, 0.1)]
    lines = [json.dumps({"name": name, "start": start, "seconds": seconds}) + "\n" for name, start, seconds in spans]
    (run / "spans.jsonl").write_text("".join(lines))
    newest = page_of(run).get("/api/timeline", params={"run": "first"}).json()
    assert (newest["update"], newest["start"], newest["stop"]) == (2, 1.5, 2.5)
    assert [span["name"] for span in newest["spans"]] == ["generate", "train"]
    first = page_of(run).get("/api/timeline", params={"run": "first", "update": 1}).json()
    assert [span["name"] for span in first["spans"]] == ["start", "generate"]
    assert page_of(run).get("/api/timeline", params={"run": "first", "update": 9}).status_code == 400


def test_parts_that_come_later_are_found(run: Path) -> None:
    page = page_of(run)
    assert page.get("/api/episodes", params={"run": "first"}).json()["total"] == 3
    write_part(run / "episodes", 2, [replace(PLAYED, update=3)])
    assert page.get("/api/episodes", params={"run": "first"}).json()["total"] == 4


async def test_a_reader_is_told_when_the_records_grow_and_of_new_runs(run: Path) -> None:
    ends: list[bool] = []
    library = Library({}, [run.parent])
    told = live_events(lambda: list(map(library.folder, library.runs)), lambda: bool(ends))
    states = [await anext(told)]
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write("{}\n")
    states.append(await asyncio.wait_for(anext(told), 10))
    (run.parent / "second" / "owner").mkdir(parents=True)
    (run.parent / "second" / "recipe.yaml").write_text(RECIPE)
    states.append(await asyncio.wait_for(anext(told), 10))
    assert all(state.startswith("data: [[") for state in states)
    assert len(set(states)) == 3
    ends.append(True)
    assert [event async for event in told] == []


@pytest.mark.parametrize(
    ("path", "given", "words"),
    [
        ("overview", {"run": "other"}, "there is no run 'other'"),
        ("episodes", {"run": "first", "where": "rewrd < 1"}, 'Candidate bindings: "reward"'),
        ("episodes", {"run": "first", "where": "1) OR (1"}, "syntax error"),
        ("episodes", {"run": "first", "where": "EXISTS (FROM read_text('/etc/hostname'))"}, "Cannot access file"),
        ("episodes", {"run": "first", "view": "secrets"}, "no 'secrets'"),
        ("groups", {"run": "first", "order": "rewrd"}, 'column "rewrd" not found'),
        ("export", {"run": "first", "form": "jsonl", "where": "rewrd < 1"}, 'column "rewrd" not found'),
        ("episode", {"run": "first", "ordinal": 99, "sample": 0, "version": 0}, "there is no such episode"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(run: Path, path: str, given: dict[str, str], words: str) -> None:
    answer = page_of(run).get(f"/api/{path}", params=given)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_pages_of_others_may_not_ask(run: Path) -> None:
    page = page_of(run)
    assert page.get("/api/runs", headers={"Origin": "http://other.example"}).status_code == 403
    assert page.get("/api/runs", headers={"Host": "other.example"}).status_code == 421
    assert page_of(run, token="secret").get("/api/runs").status_code == 401
    assert page_of(run, token="secret").get("/api/runs", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_browser_opens_the_address_with_the_token_once_and_has_a_cookie_from_then_on(run: Path) -> None:
    page = page_of(run, token="secret & more")
    assert page.get("/", params={"token": "other"}).status_code == 401
    assert page.get("/api/runs", params={"token": "secret & more"}).status_code == 401
    opened = page.get("/", params={"token": "secret & more"})
    assert "url=/static/index.html" in opened.text
    assert re.search("HttpOnly;.*SameSite=strict", opened.headers["set-cookie"])
    assert "secret" not in opened.headers["set-cookie"]
    assert page.get("/api/runs").status_code == 200
    assert page.get("/api/runs", headers={"Origin": "http://other.example"}).status_code == 403
    page.cookies = {name: value[::-1] for name, value in page.cookies.items()}
    assert page.get("/api/runs").json()["error"].startswith("open the address that `rlhf view` printed")


@pytest.mark.waits
def test_a_server_beyond_loopback_prints_an_address_with_a_new_token(run: Path) -> None:
    command = [sys.executable, "-m", "rlhf", "view", str(run), "--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1].replace(socket.gethostname(), "127.0.0.1")
        with httpx.Client() as browser:
            assert browser.get(address.partition("?")[0] + "api/runs").status_code == 401
            assert browser.get(address).status_code == 200
            assert browser.get(address.partition("?")[0] + "api/runs").status_code == 200
        server.terminate()


def test_the_page_loads_nothing_of_others_and_runs_no_inline_script(run: Path) -> None:
    answer = page_of(run).get("/")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    for file in STATIC.iterdir():
        if file.is_file():
            assert not re.search(r"https?://|<script>|innerHTML", file.read_text()), file.name


def test_runs_of_one_name_are_both_shown(run: Path) -> None:
    assert set(find_runs([run, run.parent])) == {"first", str(run.resolve())}


def test_an_image_is_served_by_its_hash_alone(run: Path) -> None:
    write_images(run / "images", [IMAGE])
    (run / "images" / f"{IMAGE.sha256[:-1]}.png").write_text(SCRIPT)
    page = page_of(run)
    served = page.get("/api/image", params={"run": "first", "sha256": IMAGE.sha256})
    assert (served.content, served.headers["content-type"]) == (IMAGE.data, "image/png")
    assert served.headers["x-content-type-options"] == "nosniff"
    for other in ("0" * 64, IMAGE.sha256[:-1], "../recipe", f"../images/{IMAGE.sha256}", ""):
        refused = page.get("/api/image", params={"run": "first", "sha256": other})
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
    assert page_of(run, "secret").get("/api/image", params={"run": "first", "sha256": IMAGE.sha256}).status_code == 401
