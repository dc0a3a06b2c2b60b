"""Every dataset of reasoning-gym is answered and scored through the adapter as the library does it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment, dataset
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task
from tests.pace import scaled

pytestmark = pytest.mark.ecosystem

JUNK_IS_RIGHT = {
    "game_of_life_halting": "the scorer of 0.1.25 gives 1 to every text but `True` and `False` taken wrongly"
}
"""Datasets that reward nonsense: do not train on them as they are."""
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "leg_counting", "weight": 1}, {"name": "gcd", "weight": 2}]}
}
"""The options without which a dataset cannot be made."""
DRAWN_FROM_SETS = {"isomorphic_strings", "polynomial_multiplication", "ransom_note"}
"""Datasets whose questions depend on how Python hashes text in that process."""
JUNK = ("", "none of this is an answer", "<answer></answer>", "<answer>junk zzz</answer>", "<answer>[1, 'a</answer>")


def names() -> list[str]:
    return sorted(library().factory.DATASETS)


def library() -> Any:
    """Import it in the tests only: this file is collected where the package is not installed, too."""
    return importlib.import_module("reasoning_gym")


def task(index: int) -> Task:
    return Task(id=str(index), messages=(), row={"index": index})


def environment(name: str, **arguments: Any) -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment(name, seed=5, options=OPTIONS.get(name), **arguments)


def asked(name: str, index: int) -> tuple[ReasoningGymEnvironment, dict[str, Any]]:
    """Return an environment that has asked the problem, and the problem with its answer."""
    ours = environment(name)
    ours.reset(task(index), seed=0)
    problems = dataset(name, 5, 1000, json.dumps(OPTIONS.get(name, {}), sort_keys=True))
    return ours, problems[index]


def reply(ours: ReasoningGymEnvironment, text: str) -> Observation:
    return ours.step(Message(role="assistant", content=text))


def scores(ours: ReasoningGymEnvironment, replies: Iterable[str]) -> list[float]:
    """Return the reward of each reply, every one of which ends the episode."""
    heard = [reply(ours, text) for text in replies]
    assert all(observation.terminated and not observation.truncated for observation in heard)
    return [float(observation.reward) for observation in heard if observation.reward is not None]


def test_for_every_dataset_a_given_answer_scores_one() -> None:
    wrong = {}
    for name in names():
        for index in (0, 17):
            ours, problem = asked(name, index)
            answer = problem["answer"]
            if answer is not None and scores(ours, [f"Let me think.\n<answer>{answer}</answer>"]) != [1.0]:
                wrong[name, index] = answer
    assert wrong == {}


def test_for_every_dataset_junk_scores_less_than_half_but_for_the_documented_exception() -> None:
    best = {name: max(scores(asked(name, 0)[0], JUNK)) for name in names()}
    assert {name for name, score in best.items() if score >= 0.5} == set(JUNK_IS_RIGHT)
    assert all(0 <= score <= 1 for score in best.values())


def questions(hash_seed: int) -> dict[str, list[str]]:
    """Return the questions of every dataset in another process, whose hashes are fixed."""
    program = (
        "import json; from tests.env.adapters.test_reasoning_gym import environment, names, task\n"
        "print('\\n' + json.dumps({n: [environment(n).reset(task(i), seed=0).messages[0].content for i in (3, 4)]"
        " for n in names()}))"
    )
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=scaled(200),
        check=True,
    )
    (line,) = [line for line in process.stdout.splitlines() if line.startswith('{"')]  # the library prints, too
    asked: dict[str, list[str]] = json.loads(line)
    return asked


def test_two_processes_ask_the_same_and_other_hashes_change_the_documented_datasets() -> None:
    first, second, other = questions(0), questions(0), questions(1)
    assert len(first) == 106
    assert first == second
    assert {name for name in first if first[name] != other[name]} == DRAWN_FROM_SETS


def test_a_task_asks_its_problem_whatever_the_seed_and_one_without_an_index_goes_by_the_seed() -> None:
    def question(given: Task, seed: int) -> str:
        return environment("chain_sum").reset(given, seed=seed).messages[0].content

    nameless = Task(id="0", messages=())
    assert question(task(3), 0) == question(task(3), 1) == question(nameless, 3) == question(nameless, 1003)
    assert question(nameless, 3) != question(nameless, 4)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2\n</answer>", "2"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answer>1", None),
        ("1", None),
    ],
)
def test_the_answer_is_what_stands_in_the_last_tags(text: str, answer: str | None) -> None:
    ours, _ = asked("chain_sum", 0)
    assert reply(ours, text).info["answer"] == answer


def test_without_tags_the_whole_reply_is_the_answer_and_the_question_stands_alone() -> None:
    ours = environment("chain_sum", answer="reply")
    asked_plainly = ours.reset(task(0), seed=0).messages[0].content
    problem = library().create_dataset("chain_sum", seed=5, size=1000)[0]
    assert asked_plainly == problem["question"]
    assert reply(ours, f" {problem['answer']}\n").reward == 1.0


def test_an_answer_that_the_scorer_cannot_read_is_wrong_and_recorded() -> None:
    ours, _ = asked("prime_factorization", 0)
    unread = reply(ours, "<answer>seven</answer>")
    assert unread.reward == 0.0
    assert unread.info["unreadable"].startswith("ValueError")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "chain_sums"}, "no dataset chain_sums; similar names: chain_sum"),
        ({"name": "chain_sum", "options": {"min_terms": -1}}, "cannot make chain_sum"),
        ({"name": "chain_sum", "options": {"terms": 2}}, "cannot make chain_sum"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ReasoningGymEnvironment(**arguments)
