"""Standard output that fails: what runs goes on, and a command that only prints ends quietly."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.cluster.console import lasting
from rlhf.errors import logged_in
from tests.end_to_end.running import ROOT, command, environment


def without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def on_a_closed_terminal() -> int:
    import pty

    terminal, writing = pty.openpty()
    os.close(terminal)
    return writing


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        (without_reader, "Broken pipe"),
        (on_a_closed_terminal, "Input/output error"),
        (lambda: os.open("/dev/full", os.O_WRONLY), "No space left on device"),
    ],
    ids=["pipe", "terminal", "disk"],
)
def test_a_stream_that_fails_is_told_once_in_the_log_and_writes_nothing_more(opened, why: str) -> None:
    log = io.StringIO()
    with open(opened(), "w", encoding="utf-8") as stream, logged_in(log):
        console = lasting(stream)
        for _ in range(3):
            console.writelines(["one\n", "two\n"])
            console.flush()
    assert log.getvalue().count("\n") == 1
    assert f"{why}): the run continues without it" in log.getvalue()


def test_a_failure_before_the_log_is_open_is_told_when_it_is() -> None:
    console, log = lasting(None), io.StringIO()
    print("nobody reads this", file=console)
    with logged_in(log):
        print("nor this", file=console)
    assert "Bad file descriptor): the run continues without it" in log.getvalue()


@pytest.mark.parametrize(("encoding", "seen"), [("ascii", "? start"), ("iso-8859-1", "? start"), ("gbk", "… start")])
def test_what_a_locale_lacks_is_a_question_mark(tmp_path: Path, encoding: str, seen: str) -> None:
    with (tmp_path / "file").open("w", encoding=encoding) as stream:
        print("… start", end="", file=lasting(stream), flush=True)
    assert (tmp_path / "file").read_text(encoding) == seen


def test_a_stream_that_does_not_wait_for_its_reader_is_one_that_fails() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    log = io.StringIO()
    with open(reading), open(writing, "w", encoding="utf-8") as stream, logged_in(log):
        print("more than a pipe holds" * 10_000, file=lasting(stream), flush=True)
    assert "it stopped accepting output): the run continues without it" in log.getvalue()


def rlhf(*arguments: str, stdout: int, variables: dict[str, str] | None = None) -> tuple[int, str]:
    ended = subprocess.run(
        command(*arguments), env=environment() | (variables or {}), stdout=stdout, stderr=subprocess.PIPE, text=True
    )
    return ended.returncode, ended.stderr


@pytest.mark.waits
def test_commands_that_print_end_quietly_without_a_reader_and_by_name_on_a_full_disk() -> None:
    assert rlhf("options", stdout=without_reader()) == (141, "")
    full = "error: standard output cannot be written: [Errno 28] No space left on device\n"
    assert rlhf("options", "trainer.loss", stdout=os.open("/dev/full", os.O_WRONLY)) == (1, full)
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    assert rlhf("explain", stdout=subprocess.DEVNULL, variables=ascii_only) == (0, "")


@pytest.mark.waits
def test_no_file_takes_the_number_of_a_stream_that_the_shell_closed(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, sys; sys.exit(os.readlink('/proc/self/fd/1'))")
    shell = f"exec '{sys.executable}' -m rlhf >&-"
    variables = environment() | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert subprocess.run(["sh", "-c", shell], env=variables, stderr=subprocess.PIPE).stderr == b"/dev/null\n"
