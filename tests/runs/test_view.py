"""What a person sees: lines that grep finds, and a panel on a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
from dataclasses import replace

import pytest

from rlhf.runs.live_view import LiveView, make_view
from rlhf.runs.view import EvaluationLine, PlainView, UpdateLine, duration, format_evaluation, plain_line

LINE = UpdateLine(
    update=3, updates=60, reward=0.5, staleness=0.25, seconds=1.5, phase_seconds={"generate": 1.0, "train": 0.5},
    tokens_per_second=8123, eta_seconds=90, learning_rate=3e-4, kl=0.0012, clip_fraction=0.01, failed=1, filtered=2,
)  # fmt: skip


def test_an_update_is_one_line_with_a_name_before_every_number():
    text = plain_line(LINE)
    assert "\n" not in text
    parts = ("update  3/60", "reward  0.500", "staleness 0.25", "lr 3.0e-04", "failed 1", "eta  1:30", "generate 1.00")
    assert [part for part in parts if part not in text] == []
    assert "kl       -" in plain_line(replace(LINE, kl=None)), "no number is a dash"


def test_every_evaluation_set_is_one_line_with_what_was_asked_for():
    line = EvaluationLine(update=3, reward=0.25, problems=256)
    assert format_evaluation(line) == "evaluation after update 3  reward 0.250  problems 256"
    named = replace(line, name="hard", metrics={"pass@8": 0.5, "maj@8": 0.375})
    assert format_evaluation(named) == (
        "evaluation after update 3  hard  reward 0.250  pass@8 0.500  maj@8 0.375  problems 256"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (3600, "1:00:00"), (11220, "3:07:00")],
)
def test_durations_read_as_on_a_clock(seconds: float | None, text: str):
    assert duration(seconds) == text


def test_a_pipe_gets_plain_lines_and_every_phase_is_named_once():
    stream = io.StringIO()
    view = make_view("run", 60, stream, live=True)
    assert isinstance(view, PlainView)
    for _ in range(2):
        view.phase("training")
        view.update(LINE)
    view.evaluation(EvaluationLine(update=3, reward=0.25, problems=256))
    view.message("engine-0 on this machine")
    view.close()
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["…", "update", "update", "evaluation", "engine-0"]


def everything_on(controller: int) -> str:
    """What was written to a terminal that is closed: it comes in pieces, and then an error."""
    pieces = []
    with os.fdopen(controller, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while piece := screen.read(65536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_a_terminal_gets_a_panel_with_everything_in_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        view = make_view("run", 60, stream, live=True)
        assert isinstance(view, LiveView)
        view.phase("training")
        for update, reward in ((0, 0.25), (2, 0.5)):
            view.evaluation(EvaluationLine(update=update, reward=reward, problems=256))
        view.evaluation(EvaluationLine(update=2, name="hard", reward=0.125, problems=30, metrics={"pass@8": 0.75}))
        view.update(LINE)
        view.message("something [odd] happened")
        view.close()
    shown = everything_on(controller)
    parts = (
        "update 3/60", "0.250 → ", "8,123 tokens/s", "1 failed", "something [odd] happened", "1:30 left", "held out",
        "hard", "0.125", "pass@8 0.750",
    )  # fmt: skip
    assert [part for part in parts if part not in shown] == []
