"""Preference pairs from every form people keep them in, and what becomes of rows that make none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config import build
from rlhf.data.config import DatasetConfig
from rlhf.data.preference import PreferencePair, Useless, pair_from_row
from rlhf.data.sources import load_pairs, load_tasks
from rlhf.errors import DataError
from rlhf.recipe.preflight import check_dataset
from rlhf.types import Message
from tests.datasets import HH

COLUMNS = {"chosen_column": "chosen", "rejected_column": "rejected", "answer_column": None}
CALL = {"function": {"name": "add", "arguments": {}}}
ASKED = (Message(role="user", content="2 + 2?"),)


def config(path: str = "pairs.jsonl", **values: Any) -> DatasetConfig:
    return build(DatasetConfig, {"path": path, **COLUMNS, **values})


def pair(row: dict[str, Any], **values: Any) -> PreferencePair | Useless:
    return pair_from_row(config(**values), row, "pairs.jsonl, row 7")


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


FORMS = {
    "texts beside a prompt": {"question": "2 + 2?", "chosen": "4", "rejected": "5"},
    "replies as messages beside a prompt": {
        "question": "2 + 2?",
        "chosen": [said("assistant", "4")],
        "rejected": [said("assistant", "5")],
    },
    "whole conversations as messages": {
        "chosen": [said("user", "2 + 2?"), said("assistant", "4")],
        "rejected": [said("user", "2 + 2?"), said("assistant", "5")],
    },
    "replies beside a prompt of messages (TRL)": {
        "question": [said("user", "2 + 2?")],
        "chosen": [said("assistant", "4")],
        "rejected": [said("assistant", "5")],
    },
    "conversations beside a prompt that they repeat": {
        "question": "2 + 2?",
        "chosen": [said("user", "2 + 2?"), said("assistant", "4")],
        "rejected": [said("user", "2 + 2?"), said("assistant", "5")],
    },
    "conversations stored as text": {
        "chosen": json.dumps([said("user", "2 + 2?"), said("assistant", "4")]),
        "rejected": json.dumps([said("user", "2 + 2?"), said("assistant", "5")]),
    },
    "whole conversations as transcripts": {
        "chosen": "\n\nHuman: 2 + 2?\n\nAssistant: 4",
        "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 5",
    },
}


@pytest.mark.parametrize("row", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_pair(row: dict[str, Any]) -> None:
    assert pair(row) == PreferencePair(prompt=ASKED, chosen="4", rejected="5")


@pytest.mark.parametrize("row", FORMS.values(), ids=FORMS)
def test_system_prompt_and_suffix_dress_the_prompt_of_every_form(row: dict[str, Any]) -> None:
    made = pair(row, system_prompt="Be brief.", prompt_suffix=" Now.")
    assert isinstance(made, PreferencePair)
    assert made.prompt == (Message(role="system", content="Be brief."), Message(role="user", content="2 + 2? Now."))


def test_a_transcript_of_several_turns_has_all_but_the_last_reply_as_its_prompt() -> None:
    beginning = "\n\nHuman: Hello\n\nAssistant: Hi!\n\nHuman: Human: is a word, isn't it?"
    made = pair({"chosen": f"{beginning}\n\nAssistant: It is.", "rejected": f"{beginning}\n\nAssistant: Ask: no."})
    assert isinstance(made, PreferencePair)
    assert [message.role for message in made.prompt] == ["user", "assistant", "user"]
    assert made.prompt[-1].content == "Human: is a word, isn't it?"
    assert (made.chosen, made.rejected) == ("It is.", "Ask: no.")


def test_messages_that_begin_with_the_assistants_follow_the_prompt_column() -> None:
    talk = [said("assistant", "Which?"), said("user", "2 + 2?")]
    made = pair(
        {"question": "Add", "chosen": [*talk, said("assistant", "4")], "rejected": [*talk, said("assistant", "5")]}
    )
    assert isinstance(made, PreferencePair)
    assert [one.content for one in made.prompt] == ["Add", "Which?", "2 + 2?"]


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        ("\n\nHuman: a\n\nAssistant: x", "\n\nHuman: a\n\nAssistant: x", Useless.SAME),
        ("\n\nHuman: a\n\nAssistant: ", "\n\nHuman: a\n\nAssistant: x", Useless.EMPTY),
        ("\n\nHuman: a\n\nAssistant: x", "\n\nHuman: b\n\nAssistant: y", Useless.APART),
        ("\n\nHuman: \n\nAssistant: x", "\n\nHuman: \n\nAssistant: y", Useless.BLANK),
        ("\n\nHuman: a\n\nAssistant: x\n\nHuman: b\n\nAssistant: y", "\n\nHuman: a\n\nAssistant: z", Useless.APART),
    ],
)
def test_a_row_that_teaches_nothing_says_why(chosen: str, rejected: str, reason: Useless) -> None:
    assert pair({"chosen": chosen, "rejected": rejected}) is reason


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "chosen": "x"}, r"row 7 has no column 'rejected' .* with rejected_column"),
        ({"chosen": "x", "rejected": "y"}, r"row 7 has no column 'question'"),
        (
            {"question": "q", "chosen": [3], "rejected": "y"},
            r"row 7: column 'chosen' must be text or a list of messages",
        ),
        (
            {"chosen": [said("user", "a"), said("assistant", "") | {"tool_calls": [CALL]}], "rejected": "y"},
            r"row 7: the reply in column 'chosen' has tool_calls; a reply of a pair is its content alone",
        ),
        (
            {"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: a\n\nAssistant: x"},
            r"row 7: column 'chosen' must end with the assistant's reply, but ends with the user's",
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_one_line_with_its_number(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pair(row)


def test_a_margin_is_a_number_or_an_error() -> None:
    row = {"question": "2 + 2?", "chosen": "4", "rejected": "5"}
    made = pair(row | {"gap": 2}, margin_column="gap")
    assert isinstance(made, PreferencePair)
    assert made.margin == 2.0
    for wrong in ("much", True, float("nan")):
        with pytest.raises(DataError, match=r"row 7.*column 'gap'"):
            pair(row | {"gap": wrong}, margin_column="gap")
    made = pair(row | {"gap": "0.5"}, margin_column="gap")  # a cell of a CSV file
    assert isinstance(made, PreferencePair)
    assert made.margin == 0.5


def written(path: Path, *rows: dict[str, Any]) -> DatasetConfig:
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return config(str(path))


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_a_file_gives_its_pairs_and_counts_what_it_drops(tmp_path: Path, name: str) -> None:
    same = FORMS["texts beside a prompt"] | {"rejected": "4"}
    found = load_pairs(written(tmp_path / name, FORMS["texts beside a prompt"], same, same))
    assert found.pairs == (PreferencePair(prompt=ASKED, chosen="4", rejected="5"),)
    assert found.dropped == {Useless.SAME: 2}
    assert found.describe() == "2 of 3 pairs dropped: 2 where both replies are the same"


def test_a_file_without_a_single_pair_is_refused(tmp_path: Path) -> None:
    same = FORMS["texts beside a prompt"] | {"rejected": "4"}
    with pytest.raises(DataError, match=r"has no pair to learn from .*1 where both replies are the same"):
        load_pairs(written(tmp_path / "pairs.jsonl", same))


def test_pairs_are_tasks_too_with_the_chosen_reply_as_their_demonstration(tmp_path: Path) -> None:
    (task,) = load_tasks(written(tmp_path / "pairs.jsonl", FORMS["whole conversations as transcripts"]))
    assert task.messages == ASKED
    assert task.answer is None
    assert task.row == {"response": "4"}


def test_real_pairs_are_read_and_the_few_useless_ones_counted() -> None:
    found = load_pairs(config(str(HH)))
    assert len(found.pairs) == 2303
    assert found.dropped == {Useless.EMPTY: 4, Useless.APART: 5}
    assert all(pair.prompt[-1].role == "user" for pair in found.pairs)
    assert "Human:" not in found.pairs[0].prompt[0].content


def test_before_a_run_the_first_row_is_looked_at_as_a_pair(tmp_path: Path) -> None:
    check_dataset(written(tmp_path / "pairs.jsonl", FORMS["whole conversations as transcripts"]))
    with pytest.raises(DataError, match="row 1 has no column 'rejected'"):
        check_dataset(written(tmp_path / "broken.jsonl", {"chosen": "x", "question": "2 + 2?"}))
