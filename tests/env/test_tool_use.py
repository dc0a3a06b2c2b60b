"""Questions, and tools to answer them with: search over documents, Python, and what a wrong call is answered."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from rlhf.env.corpus import Corpus, Document, words
from rlhf.env.python_tool import PythonToolEnvironment
from rlhf.env.search import SearchEnvironment
from rlhf.env.single_turn import SingleTurnEnvironment
from rlhf.errors import ConfigError, DataError
from rlhf.types import Message, Observation, Task, ToolCall

QUESTION = Task(id="0", messages=(Message(role="user", content="Which bird cannot fly?"),), answer="the penguin")
DOCUMENTS = [
    {"title": "Swift", "text": "The swift is a bird that sleeps while it flies."},
    {"title": "Penguin", "text": "The penguin is a bird that cannot fly. It swims."},
    {"title": "Trout", "text": "The trout swims. " * 40},
    {"text": "Stones lie."},
]


def calls(*asked: tuple[str, dict[str, object]]) -> Message:
    made = (ToolCall(id=f"c{index}", name=name, arguments=arguments) for index, (name, arguments) in enumerate(asked))
    return Message(role="assistant", content="", tool_calls=tuple(made))


def contents(observation: Observation) -> list[str]:
    return [message.content for message in observation.messages]


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "library.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)) + "\n\n")
    return str(path)


def run(code: str) -> str:
    """A runner for tests: it runs nothing."""
    return {"print(6 * 7)": "42\n", "pass": ""}.get(code, "x" * 100)


def broken(code: str) -> str:
    raise ConnectionError("the sandbox is gone")


def python(**arguments: object) -> PythonToolEnvironment:
    environment = PythonToolEnvironment(runner="tests.env.test_tool_use:run", **arguments)  # type: ignore[arg-type]
    environment.reset(QUESTION, seed=0)
    return environment


def test_one_reply_ends_a_single_turn_and_its_score_is_the_reward() -> None:
    environment = SingleTurnEnvironment(score="rlhf.reward.rules:exact")
    assert environment.reset(QUESTION, seed=0).messages == QUESTION.messages
    right = environment.step(Message(role="assistant", content="the penguin"))
    assert (right.reward, right.terminated, right.truncated) == (1.0, True, False)
    assert environment.step(Message(role="assistant", content="the swift")).reward == 0.0


def test_without_a_score_the_reward_is_left_to_the_recipe() -> None:
    environment = SingleTurnEnvironment()
    environment.reset(QUESTION, seed=0)
    end = environment.step(Message(role="assistant", content="the penguin"))
    assert (end.reward, end.terminated) == (None, True)


def test_a_score_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(ConfigError, match="score is no_module:f"):
        SingleTurnEnvironment(score="no_module:f")


def test_a_search_shows_the_best_documents_and_the_answer_ends_the_episode(library: str) -> None:
    environment = SearchEnvironment(documents=library, results=2, score="rlhf.reward.rules:exact")
    assert [tool.name for tool in environment.spec.tools] == ["search"]
    assert environment.reset(QUESTION, seed=0).messages == QUESTION.messages
    found = environment.step(calls(("search", {"query": "a bird that cannot FLY?"})))
    assert [(message.role, message.tool_call_id) for message in found.messages] == [("tool", "c0")]
    assert contents(found)[0].startswith("[1] Penguin\nThe penguin is a bird that cannot fly. It swims.\n\n[2] Swift")
    assert not found.done
    assert environment.step(Message(role="assistant", content="the penguin")).reward == 1.0


def test_a_long_document_is_cut_and_words_that_nobody_says_find_nothing(library: str) -> None:
    environment = SearchEnvironment(documents=library, longest=20)
    environment.reset(QUESTION, seed=0)
    found = environment.step(calls(("search", {"query": "trout"}), ("search", {"query": "zebra"})))
    assert contents(found) == ["[1] Trout\nThe trout swims. The…", "Nothing was found."]
    assert [message.tool_call_id for message in found.messages] == ["c0", "c1"]


def bm25(query: str, documents: list[str], index: int) -> float:
    """The formula, word by word."""
    bags = [Counter(words(document)) for document in documents]
    mean = sum(bag.total() for bag in bags) / len(bags)
    score = 0.0
    for word in set(words(query)):
        having = sum(word in bag for bag in bags)
        times = bags[index][word]
        norm = 1.2 * (0.25 + 0.75 * bags[index].total() / mean)
        score += math.log(1 + (len(bags) - having + 0.5) / (having + 0.5)) * times * 2.2 / (times + norm)
    return score


@pytest.mark.parametrize("query", ["the bird", "swims", "it flies while the trout swims", "stones stones bird"])
def test_documents_are_ordered_by_bm25(query: str) -> None:
    texts = [str(row["text"]) for row in DOCUMENTS]
    found = Corpus([Document(text=text) for text in texts]).search(query, 4)
    scores = {text: bm25(query, texts, index) for index, text in enumerate(texts)}
    expected = sorted((text for text in texts if scores[text] > 0), key=lambda text: -scores[text])
    assert [document.text for document in found] == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no documents"),
        ('{"title": "x"}\n', "line 1"),
        ('{"text": "x"}\nno json\n', "line 2"),
        (None, "cannot be read"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=says):
        SearchEnvironment(documents=str(path))


def test_python_says_what_the_runner_says() -> None:
    ran = python().step(calls(("python", {"code": "print(6 * 7)"}), ("python", {"code": "pass"})))
    assert contents(ran) == ["42", "(nothing was printed)"]


def test_of_a_long_output_the_beginning_and_the_end_are_read() -> None:
    said = contents(python(longest=29).step(calls(("python", {"code": "endless"}))))[0]
    assert said == "xxxxxxxxxx\n… cut …\nxxxxxxxxxx"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("perl", {"code": "1"}, "error: there is no tool 'perl'; there are: python"),
        ("python", {}, "error: give the argument 'code' as text; the call has []"),
        ("python", {"code": 7}, "error: give the argument 'code' as text; the call has ['code']"),
        ("python", {"code": "  "}, "error: give the argument 'code' as text; the call has ['code']"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_and_the_episode_goes_on(
    name: str, arguments: dict[str, object], says: str
) -> None:
    answered = python().step(calls((name, arguments)))
    assert contents(answered) == [says]
    assert not answered.done


def test_a_runner_that_is_broken_raises_and_answers_nothing() -> None:
    environment = PythonToolEnvironment(runner="tests.env.test_tool_use:broken")
    environment.reset(QUESTION, seed=0)
    with pytest.raises(ConnectionError):
        environment.step(calls(("python", {"code": "1"})))
