"""Documents of a local file and a search over their words (BM25), in memory and without any service.

BM25 as in Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), section 3.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from rlhf.errors import DataError

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of BM25, at their usual values."""
WORD = re.compile(r"\w+")


class Document(BaseModel, frozen=True):
    """A line of a corpus: JSON with `text` and perhaps a `title`."""

    text: str
    title: str = ""


class Corpus:
    """Documents and, by word, where they say it."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = tuple(documents)
        counts = [Counter(words(f"{document.title} {document.text}")) for document in documents]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._norms = [SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length / mean) for length in lengths]
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, count in enumerate(counts):
            for word, times in count.items():
                self._places[word].append((index, times))

    def search(self, query: str, results: int) -> list[Document]:
        """Return the best documents first; of equals, the earlier one. Documents without any of the words are left
        out."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._documents) - len(places) + 0.5) / (len(places) + 0.5))
            for index, times in places:
                scores[index] += rarity * times * (SATURATION + 1) / (times + self._norms[index])
        best = sorted(scores, key=lambda index: (-scores[index], index))[:results]
        return [self._documents[index] for index in best]


def words(text: str) -> list[str]:
    """Return the words of a text, case aside."""
    return WORD.findall(text.casefold())


@lru_cache(maxsize=8)
def load_corpus(path: Path) -> Corpus:
    """Return the corpus of a JSONL file, read once by a process. Raises `DataError`."""
    try:
        with path.open(encoding="utf-8") as lines:
            documents = list(_documents(lines, path.name))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the corpus {path} cannot be read: {error}") from error
    if not documents:
        raise DataError(f"the corpus {path} has no documents: write a JSON object with `text` on each line")
    return Corpus(documents)


def _documents(lines: Iterable[str], name: str) -> Iterable[Document]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield Document.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise DataError(f"{name}, line {number}: write JSON with `text`, perhaps `title`; {problem}") from error
