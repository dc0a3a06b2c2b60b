"""Search over a local corpus: the best documents first, and a corpus that cannot be used."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from recipes.tasks.corpus import Corpus, Document, words
from recipes.tasks.search import SearchEnvironment
from rlhf.errors import DataError
from rlhf.types import Message
from tests.env.test_tool_use import QUESTION, calls, contents

DOCUMENTS = [
    {"title": "Swift", "text": "The swift is a bird that sleeps while it flies."},
    {"title": "Penguin", "text": "The penguin is a bird that cannot fly. It swims."},
    {"title": "Trout", "text": "The trout swims. " * 40},
    {"text": "Stones lie."},
]


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "library.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)) + "\n\n")
    return str(path)


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


@pytest.mark.parametrize(("content", "says"), [("", "has no documents"), ('{"text": "x"}\nno json\n', "line 2")])
def test_a_corpus_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "corpus.jsonl").write_text(content)
    with pytest.raises(DataError, match=says):
        SearchEnvironment(documents=str(tmp_path / "corpus.jsonl"))
