"""`rlhf check` reads every row as the run will, and says what is wrong with its file and number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.apps.cli.check import run_check
from rlhf.chat.image_reader import noise_image
from rlhf.errors import UserError

GOOD = {"question": "1 + 1?", "answer": "2"}
LONG = GOOD | {"question": "x" * 110}
CHAT = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}] * 2}
SFT = ("kind=sft", "data.train.response_column=answer")
WHOLE = ("kind=sft", "data.train.prompt_column=messages")
PAIRS = (
    "kind=reward_model", "data.train.chosen_column=answer", "data.train.rejected_column=other",
)  # fmt: skip


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    return path


def checked(recipe: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        run_check(recipe, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "overrides", "message"),
    [
        (GOOD | {"answer": ["2"]}, (), "it reads ['2']; write answer_column: answer.0"),
        (GOOD | {"question": ""}, (), "the question in column 'question' is blank"),
        ({"question": "?"}, (), "has no column 'answer'"),
        (LONG, (), "the prompt has 129 tokens, which leaves no room for a reply in the context of 128; shorten it, or"),
        (LONG, SFT, "the demonstration has 131 tokens, more than the model's context of 128"),
        (GOOD | {"answer": ""}, SFT, "a reply to imitate is blank"),
        (GOOD | {"other": 3, "answer": {"a": 1}}, PAIRS, "must be text or a list of messages"),
        ({"messages": CHAT["messages"][:1]}, WHOLE, "ends with the user's message, so there is no reply to imitate"),
        (CHAT | {"tools": [{"name": "add"}]}, WHOLE, "the rows have tools, but the chat template ignores them"),
    ],
)  # fmt: skip
def test_a_row_far_behind_is_named(
    recipe: Path, rows: Path, row: dict[str, Any], overrides: tuple[str, ...], message: str
) -> None:
    good = GOOD | {"other": "3"} | CHAT
    written(rows, [good, good, good, row])
    error = checked(recipe, *overrides)
    assert "rows.jsonl, row 7: " in error or "rows.jsonl, row 7 has" in error
    assert message in error


def test_a_long_question_of_an_evaluation_set_is_named(recipe: Path, rows: Path, tmp_path: Path) -> None:
    held_out = written(tmp_path / "held_out.jsonl", [GOOD, LONG])
    error = checked(recipe, f"data.eval.path={held_out}")
    assert error.startswith(f"data.eval: {held_out}, row 3: the prompt has 129 tokens")
    assert error.endswith("leave such rows out with data.eval.max_prompt_tokens: 127")
    assert run_check(recipe, (f"data.eval.path={held_out}", "data.eval.max_prompt_tokens=127")) == 0


def test_what_the_run_will_leave_out_is_told(recipe: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(rows, [GOOD, LONG, GOOD])
    limit = "data.train.max_prompt_tokens=100"
    assert run_check(recipe, (limit,)) == 0
    assert "rows           data.train: 1 of 3 rows left out (1 above 100 prompt tokens)\n" in capsys.readouterr().out
    assert run_check(recipe, (limit, *SFT)) == 0
    assert "rows           data.train: 1 of 3 rows left out (1 above 100 prompt tokens)\n" in capsys.readouterr().out
    written(rows, [GOOD | {"other": "3"}, GOOD | {"other": "2"}])
    assert run_check(recipe, PAIRS) == 0
    assert "rows           1 of 2 pairs dropped: 1 where both replies are the same\n" in capsys.readouterr().out


def test_kept_rows_and_the_first_prompt_are_shown(recipe: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(rows, [{"n": n, "answer": str(n + 1)} for n in range(5)])
    made = ("data.train.template={{ n }} + 1?", "data.train.filter=n != 1", "data.train.few_shot.k=1")
    assert run_check(recipe, (*made, "data.train.few_shot.rows=[{n: 9, answer: 10}]")) == 0
    out = capsys.readouterr().out
    assert "rows           data.train: kept 4 of 5 rows\n" in out
    turns = [("first prompt", "user", "9 + 1?"), ("", "assistant", "10"), ("", "user", "0 + 1?")]
    lines = "".join(f"{label:<15}<|im_start|>{role}\n{'':<15}{said}<|im_end|>\n" for label, role, said in turns)
    assert lines in out
    assert checked(recipe, "data.train.template={{ m }}").endswith("'m' is undefined; the row has 'n', 'answer'")


def test_whole_conversations_are_demonstrations(recipe: Path, rows: Path) -> None:
    written(rows, [CHAT] * 3)
    assert run_check(recipe, WHOLE) == 0


def test_images_are_counted_with_their_sizes_and_tokens(
    recipe: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing = ("model.tiny.architecture=qwen3_vl", "model.tower=frozen", "model.tiny.max_position_embeddings=64")
    for name, size in {"a": (56, 56), "b": (112, 56), "c": (448, 448)}.items():
        (rows.parent / f"{name}.png").write_bytes(noise_image(size).data)
    written(rows, [GOOD | {"images": [f"{name}.png"]} for name in "aab"])
    run_check(recipe, seeing)
    shown = capsys.readouterr().out
    assert "data.train: 2 images of 56x56 to 112x56 pixels, each 4 to 8 tokens (6.0 on average)" in shown
    assert "user: [image 56x56]1 + 1?" in shown
    assert "set model.tower: frozen" in checked(recipe, seeing[0])
    written(rows, [GOOD | {"images": [f"{name}.png"]} for name in "ac"])
    assert "row 3: the prompt has" in checked(recipe, *seeing)
    written(rows, [GOOD | {"images": ["a.png"]}, GOOD | {"images": ["lost.png"]}])
    assert "row 3, image 1 of column 'images' is the file 'lost.png': No such" in checked(recipe, *seeing)
