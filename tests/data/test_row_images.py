"""Images of rows: others' shapes as they are, and a clear line for each image that no model can be shown."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from rlhf.data.config import DatasetConfig
from rlhf.data.sources import load_demonstrations, load_pairs, load_tasks
from rlhf.errors import DataError
from rlhf.images import IMAGE_MARK
from rlhf.types import Message

ROWS = 20


def png(
    size: tuple[int, int] = (8, 6), color: Any = (200, 10, 10), mode: str = "RGB", form: str = "png", **more: Any
) -> bytes:
    written = io.BytesIO()
    PIL.Image.new(mode, size, color).save(written, form, **more)
    return written.getvalue()


def as_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def verl(number: int, data: bytes, folder: Path) -> dict[str, Any]:
    """As geo3k in verl's examples."""
    return {
        "data_source": "geometry",
        "prompt": [{"role": "user", "content": f"<image>question {number}"}],
        "images": [{"bytes": data, "path": None}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
    }


def trl(number: int, data: bytes, folder: Path) -> dict[str, Any]:
    """TRL: parts without an image each, and a column of images."""
    parts = [{"type": "image"}, {"type": "text", "text": f"question {number}"}]
    return {"prompt": [{"role": "user", "content": parts}], "images": [{"bytes": data}], "answer": str(number)}


def llava(number: int, data: bytes, folder: Path) -> dict[str, Any]:
    """LLaVA: a file, and ShareGPT's names."""
    (folder / f"{number}.png").write_bytes(data)
    turns = [("human", f"<image>\nquestion {number}"), ("gpt", f"answer {number}")]
    return {"id": str(number), "image": f"{number}.png", "conversations": [{"from": a, "value": b} for a, b in turns]}


def openai(number: int, data: bytes, folder: Path) -> dict[str, Any]:
    parts = [{"type": "text", "text": f"question {number}"}, {"type": "image_url", "image_url": {"url": as_url(data)}}]
    return {"messages": [{"role": "user", "content": parts}], "answer": str(number)}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A Parquet file if the rows have bytes, else JSON lines."""
    if any(isinstance(value, list) and value and isinstance(value[0], dict) and "bytes" in value[0]
           for value in rows[0].values()):  # fmt: skip
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
        return folder / "rows.parquet"
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@pytest.mark.parametrize(
    ("shape", "columns", "content"),
    [
        (verl, {"prompt_column": "prompt", "answer_column": "reward_model.ground_truth"}, f"{IMAGE_MARK}question 3"),
        (trl, {"prompt_column": "prompt"}, f"{IMAGE_MARK}question 3"),
        (openai, {"prompt_column": "messages"}, f"question 3{IMAGE_MARK}"),
    ],
)
def test_rows_of_others_are_read_without_conversion(
    shape: Callable[..., dict[str, Any]], columns: dict[str, str], content: str, tmp_path: Path
) -> None:
    images = [png((8 + n, 6)) for n in range(ROWS)]
    file = write(tmp_path, [shape(n, images[n], tmp_path) for n in range(ROWS)])
    tasks = load_tasks(DatasetConfig.model_validate({"path": str(file), **columns}))
    assert [task.answer for task in tasks] == [str(n) for n in range(ROWS)]
    assert [task.messages[0].images[0].data for task in tasks] == images
    assert tasks[3].messages[0].content == content


def test_conversations_of_llava_are_demonstrations(tmp_path: Path) -> None:
    file = write(tmp_path, [llava(n, png((8 + n, 6)), tmp_path) for n in range(ROWS)])
    config = DatasetConfig(path=str(file), prompt_column="conversations", answer_column=None)
    lessons = load_demonstrations(config)
    assert len(lessons) == ROWS
    asked, said = lessons[3].messages
    assert (asked.content, len(asked.images), said.content) == (f"{IMAGE_MARK}\nquestion 3", 1, "answer 3")


def test_pairs_show_the_image_to_both_replies(tmp_path: Path) -> None:
    row = {
        "prompt": "which?",
        "chosen": "\n\nHuman: which?\n\nAssistant: a",
        "rejected": "\n\nHuman: which?\n\nAssistant: b",
    }
    file = write(tmp_path, [row | {"images": [{"bytes": png()}]}])
    config = DatasetConfig(path=str(file), chosen_column="chosen", rejected_column="rejected")
    (pair,) = load_pairs(config).pairs
    assert pair.prompt == (Message(role="user", content=f"{IMAGE_MARK}which?", images=pair.prompt[0].images),)
    assert len(pair.prompt[0].images) == 1


def test_images_come_before_the_text_that_names_no_place_and_can_be_left_out(tmp_path: Path) -> None:
    row = {"question": "which?", "answer": "a", "images": [as_url(png()), as_url(png((9, 9)))]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    config = DatasetConfig(path=str(tmp_path / "rows.jsonl"))
    (task,) = load_tasks(config)
    assert task.messages[0].content == IMAGE_MARK * 2 + "which?"
    assert len(task.messages[0].images) == 2
    (task,) = load_tasks(config.model_copy(update={"images_column": None}))
    assert task.messages == (Message(role="user", content="which?"),)


def rotated() -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return png((8, 4), form="jpeg", exif=exif)


def gif() -> bytes:
    frames, written = [PIL.Image.new("RGB", (8, 8), (80 * n, 0, 0)) for n in range(3)], io.BytesIO()
    frames[0].save(written, "gif", save_all=True, append_images=frames[1:])
    return written.getvalue()


def bomb() -> bytes:
    """A header of 30,000 x 30,000 pixels with a few bytes behind it."""
    small = bytearray(png())
    small[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    small[29:33] = zlib.crc32(small[12:29]).to_bytes(4, "big")
    return bytes(small)


SHOWN: dict[str, Any] = {
    "one pixel": png((1, 1)),
    "CMYK": png(mode="CMYK", color=(0, 0, 0, 0), form="jpeg"),
    "rotated by EXIF": rotated(),
    "transparent": png(mode="RGBA", color=(0, 0, 0, 0)),
    "a palette": png(mode="P", color=3),
    "grey": png(mode="L", color=3),
    "webp": png(form="webp"),
    "bare base64": base64.b64encode(png((32, 32))).decode(),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is empty"),
    "truncated": (png((64, 64))[:-40], "cannot be decoded"),
    "cut in its header": (png()[:20], "cannot be decoded|no format"),
    "20,000 x 1": (png((20_000, 1)), "has 20000 x 1 pixels; a side may be 200 times as long as the other"),
    "16 bits": (png(mode="I;16", color=3), "has more than 8 bits a channel; convert it to 8"),
    "floats": (png(mode="F", color=3, form="tiff"), "has more than 8 bits a channel"),
    "animated": (gif(), "is animated; give the frames one by one"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is in no format that pillow reads"),
    "text": (b"no image at all", "is in no format that pillow reads"),
    "a decompression bomb": (bomb(), r"has 30000 x 30000 pixels; the most is|cannot be decoded"),
    "a missing file": ("absent.png", "is the file 'absent.png': No such file"),
    "a folder": (".", "is the file '.': Is a directory"),
    "a long name in Cyrillic": ("фото" * 60 + ".png", "is the file 'фото.*: File name too long"),
    "a null byte": ("a\0b.png", "is the file .*: embedded null byte"),
    "a URL": ("https://example.com/1.png", "is on a network .*, from which nothing is fetched: download it"),
    "wrong base64": ("data:image/png;base64,@@@@", "is not base64"),
    "a number": (3, "must be a file, bytes or base64, but reads 3"),
    "an object without any": ({"width": 3}, "must be a file, bytes or base64"),
}


def config_of(folder: Path, value: Any) -> DatasetConfig:
    row: dict[str, Any] = {"question": "which?", "answer": "a", "images": [value]}
    if isinstance(value, bytes):
        row["images"] = [{"bytes": value}]
    return DatasetConfig(path=str(write(folder, [row])))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing may be fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", SHOWN)
def test_an_unusual_image_is_shown(name: str, tmp_path: Path) -> None:
    (task,) = load_tasks(config_of(tmp_path, SHOWN[name]))
    assert len(task.messages[0].images) == 1


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", REFUSED)
def test_an_image_that_cannot_be_shown_is_refused_with_its_row(name: str, tmp_path: Path) -> None:
    value, told = REFUSED[name]
    with pytest.raises(DataError, match=rf"rows\.\w+, row 1, image 1 of column 'images' (.*{told})"):
        load_tasks(config_of(tmp_path, value))


def test_an_image_without_a_place_or_a_place_without_an_image_is_refused(tmp_path: Path) -> None:
    row = {"question": "<image> or <image>?", "answer": "a", "images": [as_url(png())]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="row 1 has 1 images in its column, and 2 places for them in its messages"):
        load_tasks(DatasetConfig(path=str(tmp_path / "rows.jsonl")))


def test_an_image_is_turned_as_its_exif_says() -> None:
    from rlhf.chat.image_reader import opened

    assert opened(rotated()).size == (4, 8)
    assert opened(png(mode="CMYK", color=(0, 0, 0, 0), form="jpeg")).mode == "RGB"


def test_a_reply_of_the_assistant_has_no_image(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "draw"}, {"from": "gpt", "value": "here: <image>"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"conversations": turns, "image": as_url(png())}) + "\n")
    config = DatasetConfig(path=str(tmp_path / "rows.jsonl"), prompt_column="conversations", answer_column=None)
    (lesson,) = load_demonstrations(config)
    assert [len(message.images) for message in lesson.messages] == [1, 0]
    assert lesson.messages[1].content == "here: <image>"
    parts = [{"type": "image_url", "image_url": {"url": as_url(png())}}]
    said = [{"role": "user", "content": "draw"}, {"role": "assistant", "content": parts}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    with pytest.raises(DataError, match="message 2 of column 'messages' is the assistant's and has an image"):
        load_demonstrations(config.model_copy(update={"prompt_column": "messages"}))
