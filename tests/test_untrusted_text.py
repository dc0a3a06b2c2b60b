"""Text of a model or a server is shown and recorded without effect, and untrusted JSON is read within bounds."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf.apps.deploy.node import print_node_line
from rlhf.apps.failures import print_failure
from rlhf.env.encoding import dumps
from rlhf.errors import EnvironmentFailed
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter, read_jsonl
from rlhf.runs.live_view import LiveView
from rlhf.runs.view import PlainView
from rlhf.untrusted_text import (
    InvalidJson,
    escape_controls,
    escape_json,
    escape_to_line,
    read_json,
    replace_surrogates,
)
from tests.hostile_texts import HOSTILE_TEXTS, unseen

HOSTILE = {
    **HOSTILE_TEXTS, "colour": "\x1b[31mred", "return": "reward 0.1\rreward 9.9", "backspace": "9\b1",
    "nul": "\0", "override": "\u202egnp.exe", "isolate": "\u2066a\u2069", "mark": "\u200fa\u200e\u061c\ufeff",
    "lines": "a\u2028b\u2029c\x85d\ve\ff", "separators": "\x1c\x1d\x1e\x1f\x7f\a", "halves": "\ud800 \udfff",
    "both the wrong way": "\udc00\ud800", "unseen letters": "\U000e0041\U000e0042", "json": '{"a": "\x1b"}',
    "no width": "4\u200b2\u20604\u200d2\u200c4\xad2",
}  # fmt: skip
ORDINARY = "plain, é ü 漢字 עברית 😀 👩‍👩‍👧 क्‍ष\n\ttabs and lines"
names = pytest.mark.parametrize("name", HOSTILE)


def is_inert(text: str) -> bool:
    """Nothing that a terminal or an editor obeys, by Unicode's own categories; whatever it is can be encoded."""
    text.encode()
    obeyed = {"Cc", "Cs", "Zl", "Zp"}
    ordering = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    without_width = re.search("[\xad\u034f\u180e\u200b\u2060]|[\u200c\u200d][ -~]", text)
    return not without_width and not any(
        (unicodedata.category(one) in obeyed and one not in "\n\t")
        or unicodedata.bidirectional(one) in ordering
        or one in "\u200e\u200f\u061c\ufeff"
        or "\U000e0000" <= one <= "\U000e007f"
        for one in set(text)
    )


@names
def test_hostile_text_is_escaped_and_ordinary_text_stays(name: str) -> None:
    assert is_inert(escape_controls(HOSTILE[name]))
    assert unseen("".join(set(escape_controls(HOSTILE[name])))) == set()
    assert is_inert(escape_to_line(HOSTILE[name]))
    assert "\n" not in escape_to_line(HOSTILE[name] + "\nmore")
    assert escape_controls(ORDINARY) == ORDINARY
    assert replace_surrogates(HOSTILE[name]).encode()


@names
def test_a_record_reads_back_as_it_was_and_its_file_is_inert(name: str, tmp_path: Path) -> None:
    row = {"response": HOSTILE[name] + ORDINARY, HOSTILE[name]: [{"arguments": {"a": HOSTILE[name]}}]}
    lines = JsonlWriter(tmp_path / "episodes.jsonl")
    lines.write([row])
    lines.close()
    assert list(read_jsonl(tmp_path / "episodes.jsonl")) == [row]
    assert is_inert((tmp_path / "episodes.jsonl").read_text(encoding="utf-8"))
    assert len((tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert is_inert(dumps({"text": HOSTILE[name], HOSTILE[name]: 1})), "a frame to an environment"
    assert json.loads(dumps({"text": HOSTILE[name]}))["text"] == replace_surrogates(HOSTILE[name])


@names
def test_text_is_inert_in_errors_plain_lines_and_logs_of_hosts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.message(HOSTILE[name])
    view.phase(HOSTILE[name])
    print_node_line(HOSTILE[name])
    print_failure(EnvironmentFailed(HOSTILE[name], "raised", HOSTILE[name] + "\n" + HOSTILE[name]))
    shown = capsys.readouterr()
    assert is_inert(stream.getvalue())
    assert is_inert(shown.out)
    assert is_inert(shown.err)
    assert shown.err.count("\n") == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def live(show: Callable[[LiveView], None], name: str) -> str:
    stream = Terminal()
    view = LiveView(name, 3, stream)
    show(view)
    view.close()
    return stream.getvalue()


@names
def test_the_live_view_obeys_nothing_that_it_shows(name: str) -> None:
    """Its own commands are there, and none that the text brings."""
    hostile = HOSTILE[name]

    def show(view: LiveView) -> None:
        view.message(hostile)
        view.phase(hostile)

    shown = live(show, f"[red]{hostile}[/nonsense]")
    raw = {one for one in hostile if escape_controls(one) != one} - {"\x1b", "\r"}  # which its own commands begin with
    assert not raw & set(shown)
    own = live(lambda view: view.message("x"), "x")
    for command in ("\x1b]", "\x1b[31m", "\x1b[2J", "\x1b[6n", "\x1b[?1049h", "\x1b(0", "9.9\r"):
        assert command not in shown or command in own


def test_a_run_folder_and_its_records_are_their_makers_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "runs" / "run")
        folder.write_summary({})
        JsonlWriter(folder.episodes).close()
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o700
    assert (mode(folder.summary), mode(folder.episodes)) == (0o600, 0o600)
    folder.give_back()
    folder.path.chmod(0o750)
    RunFolder.keep(folder.path).give_back()
    assert mode(folder.path) == 0o750, "somebody opened it to others"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_json_escapes_are_those_of_json() -> None:
    everything = " ".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xE0000, 0xE0080)]))
    text = json.dumps(everything, ensure_ascii=False)
    assert json.loads(escape_json(text)) == everything
    assert is_inert(escape_json(text))


def test_json_that_cannot_be_used_is_refused() -> None:
    text = ["", "{", "NaN", "[-Infinity]", "1e999", "1" * 5000, "[" * 100_000, "[" * 65 + "]" * 65, "\ufeff{}", "{} {}"]
    for unusable in [*text, b"\xff"]:
        with pytest.raises(InvalidJson, match="JSON"):
            read_json(unusable)


def test_json_is_read_into_what_can_be_encoded() -> None:
    assert read_json(r'{"a\ud800": ["\udfff", 1, null, "\ud83d\ude00"]}') == {"a\ufffd": ["\ufffd", 1, None, "😀"]}
    assert read_json(b"[" * 64 + b"]" * 64)
    with pytest.raises(InvalidJson, match="more than 1000000 values"):
        read_json("[" + "[]," * 1_000_000 + "1]")
