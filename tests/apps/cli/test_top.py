"""`rlhf top` over made folders: what is shown while a run goes on, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from rlhf.apps.cli import top
from rlhf.runs.live_view import LiveView
from rlhf.runs.owner import Owner
from rlhf.runs.stored_run import read_again, read_run
from tests.apps.cli.conftest import Command
from tests.runs.made_run import made_run
from tests.runs.test_view import everything_on

ROW = {
    "reward/mean": 0.5, "policy/entropy": 0.25, "policy/logprob_difference": 0.001, "policy/clip_fraction_low": 0.0,
    "groups/failed": 1.0, "samples/lost": 2.0, "tokens/trained": 3000.0, "seconds/update": 2.0, "seconds/train": 1.0,
}  # fmt: skip
FINISHED = {"outcome": "finished", "wall_seconds": 75.0}


def on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the panel shows of a folder."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        run = read_run(folder)
        with closing(LiveView(run.name, run.updates, stream, top.elapsed(run))) as view:
            top.show_updates(view, run, 0)
    return everything_on(controller)


def test_the_panel_has_numbers_curves_evaluations_and_alarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = ROW | {"policy/logprob_difference": 0.02}
    evaluated = last | {"eval/reward": 0.75, "eval/held_out/avg@4": 0.75, "eval/held_out/pass@4": 0.875}
    folder = made_run(tmp_path / "run", [ROW, last, last, evaluated], summary=FINISHED)
    shown = on_a_terminal(folder, monkeypatch)
    parts = (
        "made", "update 4/40", "1:15 gone, 6:00 left", "0.500", "held out", "0.750", "pass@4 0.875", "1,500 tokens/s",
        "1 failed", "8 samples lost", "clipped 0.0%", "policy/entropy", "0.25 nats", "▁", "look at",
        "engine and learner differ by 0.02 nats since update 2",
    )  # fmt: skip
    assert [part for part in parts if part not in shown] == []


def test_the_panel_of_another_kind_has_its_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"pairs/loss": 0.5, "pairs/accuracy": 0.75, "optimizer/learning_rate": 1e-4, "eval/hard/accuracy": 0.625}
    shown = on_a_terminal(made_run(tmp_path / "run", [row]), monkeypatch)
    assert [part for part in ("pairs/loss 0.500", "pairs/accuracy 0.750", "hard", "0.625") if part not in shown] == []


def test_what_others_wrote_cannot_command_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "\\e[31m\\u202E[bold]"
    folder = made_run(
        tmp_path / "run",
        [{"eval/\x1b[2J/avg@1": 0.5, "\x1b]0;title\x07": None}] * 3,
        recipe=f'name: "{hostile}"\ntrainer: {{updates: 3}}\n',
    )
    shown = on_a_terminal(folder, monkeypatch)
    assert [one for one in ("\x1b[2J", "\x1b]0", "\x07", "\u202e", "\x1b[31m\\") if one in shown] == []
    assert [
        one for one in (r"\x1b[31m", r"\u202e", "[bold]", r"\x1b[2J", r"\x1b]0;title\x07") if one not in shown
    ] == []


def test_in_a_pipe_every_update_is_a_line_and_the_end_is_told(tmp_path: Path, rlhf: Command) -> None:
    made_run(tmp_path / "run", [ROW, ROW | {"eval/reward": 0.25, "eval/held_out/avg@1": 0.25}], summary=FINISHED)
    ended = rlhf("top", "run")
    assert ended.returncode == 0
    starts = [" ".join(line.split()[:2]) for line in ended.stdout.splitlines()]
    assert starts == ["update 1/40", "evaluation after", "update 2/40", "made: finished"]


def test_it_follows_a_run_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_run(tmp_path / "run", [ROW])
    (folder / "summary.json").write_text('{"outcome": "saved: of before it was resumed"}')
    owner = Owner.claim(folder)
    monkeypatch.setattr(top, "LOOK_SECONDS", 0.01)
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    watching = threading.Thread(target=top.run_top, args=[folder])
    watching.start()
    while "update  1/40" not in shown.getvalue():
        time.sleep(0.01)
    made_run(folder, [ROW, ROW], summary=FINISHED)
    owner.give_back()
    watching.join()
    assert shown.getvalue().splitlines()[-1] == "made: finished"
    assert "update  2/40" in shown.getvalue()


def test_q_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_run(tmp_path / "run", [ROW])
    owner = Owner.claim(folder)
    controller, terminal = pty.openpty()
    os.write(controller, b"xq")
    with os.fdopen(terminal) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert top.run_top(folder) == 0
    os.close(controller)
    owner.give_back()


def test_a_killed_run_ends_it_and_so_does_a_folder_that_is_moved(tmp_path: Path, rlhf: Command) -> None:
    folder = made_run(tmp_path / "run", [ROW])
    assert rlhf("top", "run").stdout.splitlines()[-1] == "made: its process ended without a summary"
    run = read_run(folder)
    (folder / "recipe.yaml").unlink()
    with pytest.raises(Exception, match="was moved or deleted"):
        read_again(run)
