"""Search over a local corpus as a tool, for questions whose answers are in documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.tasks.corpus import Document, load_corpus
from rlhf.env.tool_use import Handled, ToolUseEnvironment, text_argument, text_tool

SEARCH = text_tool("search", "Finds the documents that fit some words best.", "query", "the words to look for")


class SearchEnvironment(ToolUseEnvironment):
    """Asks the task's question, with a search tool over the documents of the JSONL file `documents`.

    A search shows the best `results` documents, `longest` characters of each. `score` is as in `SingleTurnEnvironment`.
    Raises `DataError`, `ConfigError`.
    """

    def __init__(self, *, documents: str, results: int = 3, longest: int = 600, score: str | None = None) -> None:
        self._corpus = load_corpus(Path(documents))
        self._results, self._longest = results, longest
        super().__init__(
            "search", "A question, and documents to find its answer in", [Handled(tool=SEARCH, run=self._run)], score
        )

    def _run(self, arguments: Mapping[str, Any]) -> str:
        found = self._corpus.search(text_argument(arguments, "query"), self._results)
        shown = [f"[{place}] {document_text(document, self._longest)}" for place, document in enumerate(found, start=1)]
        return "\n\n".join(shown) or "Nothing was found."


def document_text(document: Document, longest: int) -> str:
    """Return the title and the beginning of the text."""
    text = document.text if len(document.text) <= longest else document.text[:longest] + "…"
    return f"{document.title}\n{text}" if document.title else text
