"""Every dataset of reasoning-gym, asked and scored through servers that are processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from rlhf.env.adapters.reasoning_gym import IN_TAGS
from rlhf.env.client.servers import RemoteEnvironments
from rlhf.protocols import Environment
from rlhf.types import Observation, Task
from tests.commanded import ROOT
from tests.env.adapters.served import connected, in_session, say, serving, side_by_side
from tests.env.adapters.solved import SOLVERS, right_answer
from tests.env.adapters.test_reasoning_gym import JUNK, JUNK_IS_RIGHT
from tests.pace import scaled

pytestmark = pytest.mark.ecosystem

INDICES = [0, 17]
AT_ONCE = 16
DRAWN_FROM_SETS = {"isomorphic_strings", "polynomial_multiplication", "ransom_note"}
"""Datasets whose questions depend on how Python hashes text in that process."""
Entries = dict[str, list[dict[str, Any]]]
Asked = tuple[str, int]


def hashing(seed: int) -> dict[str, str]:
    return {"PYTHONHASHSEED": str(seed)}


@contextmanager
def server(hash_seed: int) -> Iterator[str]:
    with serving("tests.env.adapters.datasets:AnyDataset", **hashing(hash_seed)) as url:
        yield url


@pytest.fixture(scope="module")
def first() -> Iterator[str]:
    with server(0) as url:
        yield url


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    """What the library holds, in a process with the same hashes as the servers. It prints as it likes: a file."""
    file = tmp_path_factory.mktemp("library") / "entries.json"
    words = [sys.executable, "-W", "ignore", "-m", "tests.env.adapters.datasets", str(file), json.dumps(INDICES)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **hashing(0)}
    subprocess.run(words, env=environment, cwd=ROOT, timeout=scaled(200), check=True)
    found: Entries = json.loads(file.read_text())
    assert len(found) == 106
    return found


async def opened(session: Environment, name: str, index: int) -> str:
    task = Task(id=f"{name} {index}", messages=(), row={"dataset": name, "index": index})
    return (await session.reset(task, seed=0)).messages[0].content


async def questions(url: str, asked: list[Asked]) -> dict[Asked, str]:
    """What a server asks at each index of its dataset."""
    environments = await connected(url)

    def opening(name: str, index: int) -> Callable[[], Awaitable[str]]:
        return lambda: in_session(environments, lambda session: opened(session, name, index))

    texts = await side_by_side(AT_ONCE, [opening(*one) for one in asked])
    return dict(zip(asked, texts, strict=True))


@pytest.fixture(scope="module")
def asked(first: str, entries: Entries) -> dict[Asked, str]:
    return asyncio.run(questions(first, [(name, index) for name in entries for index in INDICES]))


async def replied(environments: RemoteEnvironments, name: str, index: int, reply: str) -> Observation:
    """The end of an episode of one reply."""

    async def play(session: Environment) -> Observation:
        await opened(session, name, index)
        return await say(session, reply)

    return await in_session(environments, play)


async def rewards(url: str, replies: list[tuple[str, int, str]]) -> list[float]:
    environments = await connected(url)
    ends = await side_by_side(AT_ONCE, [partial(replied, environments, *one) for one in replies])
    assert all(end.terminated and not end.truncated for end in ends)
    scores = [end.reward for end in ends]
    assert None not in scores
    return [float(score) for score in scores if score is not None]


def test_a_server_asks_what_the_library_asks(asked: dict[Asked, str], entries: Entries) -> None:
    straight = [f"{entry['question']}\n\n{IN_TAGS}" for name in entries for entry in entries[name]]
    assert list(asked.values()) == straight


async def test_two_servers_ask_the_same_for_the_same_seed(asked: dict[Asked, str]) -> None:
    with server(0) as second:
        assert await questions(second, list(asked)[::-1]) == asked


async def test_other_hashes_change_the_documented_datasets_and_no_others(asked: dict[Asked, str]) -> None:
    with server(1) as other:
        there = await questions(other, list(asked))
    assert {name for name, index in asked if asked[name, index] != there[name, index]} == DRAWN_FROM_SETS


async def test_for_every_dataset_a_right_answer_scores_one(first: str, entries: Entries) -> None:
    assert {name for name, (entry, *_) in entries.items() if entry["answer"] is None} == set(SOLVERS)
    held = [(name, index, entry) for name in entries for index, entry in zip(INDICES, entries[name], strict=True)]
    replies = [(name, index, f"So:\n<answer>{right_answer(name, entry)}</answer>") for name, index, entry in held]
    scores = await rewards(first, replies)
    assert {reply: score for reply, score in zip(replies, scores, strict=True) if score != 1.0} == {}


async def test_for_every_dataset_junk_scores_less_but_for_the_documented_exception(
    first: str, entries: Entries
) -> None:
    scores = await rewards(first, [(name, 0, junk) for name in entries for junk in JUNK])
    best = {name: max(scores[at * len(JUNK) : (at + 1) * len(JUNK)]) for at, name in enumerate(entries)}
    assert {name for name, score in best.items() if score >= 0.5} == set(JUNK_IS_RIGHT)
    assert min(scores) >= 0
