"""Hostile texts in a real terminal, tmux: they are seen, and the terminal obeys nothing in them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.untrusted_text import escape_controls
from tests.hostile_texts import HOSTILE_TEXTS as BY_NAME
from tests.pace import scaled
from tests.runs.made_run import made_run
from tests.runs.test_episode_parts import FAILED, PLAYED, written

HOSTILE_TEXTS = tuple(BY_NAME.values())
CONFIGURATION = """\
set -g history-limit 200000
set -g set-clipboard on
set -g allow-rename on
set -g automatic-rename off
set -g monitor-bell on
set -g allow-passthrough on
"""
STATE = """\
#{pane_title} #{window_name} #{alternate_on}#{cursor_flag}#{insert_flag}#{keypad_flag}#{wrap_flag}#{origin_flag}\
#{mouse_any_flag}#{window_bell_flag} #{scroll_region_upper}-#{scroll_region_lower} #{pane_tabs}"""
"""What commands of a terminal change."""
CONSOLE = """\
import sys
from rlhf.apps.failures import print_failure
from rlhf.errors import EnvironmentFailed
from rlhf.runs.live_view import LiveView
from rlhf.runs.view import PlainView
from tests.hostile_texts import HOSTILE_TEXTS as named
plain, live = PlainView(sys.stdout), LiveView("run", 3, sys.stdout)
for text in named.values():
    live.message(text)
    live.phase(text[:200])
live.close()
for text in named.values():
    plain.message(text)
    print_failure(EnvironmentFailed("game", "raised", text))
"""
"""What a training prints: messages on a terminal and in a log, and failures."""


class Terminal:
    """A pane of a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended = folder, folder / "ended"
        (folder / "conf").write_text(CONFIGURATION)
        self._tmux("-f", str(folder / "conf"), "new-session", "-d", "-x", "200", "-y", "50", "bash --norc")
        self.run("PS1=; stty -echo")

    def run(self, command: str) -> None:
        """Run a command to its end. The terminal must not answer, which the shell would take for what is typed."""
        self._ended.unlink(missing_ok=True)
        self._tmux("send-keys", "-l", f'{command}; read -rst 0.3 -n 1 answer; echo "$answer" >{self._ended}')
        self._tmux("send-keys", "Enter")
        deadline = time.monotonic() + scaled(60)
        while not (self._ended.exists() and self._ended.read_text()):
            assert time.monotonic() < deadline, self.shown()[-5000:]
            time.sleep(0.05)
        assert self._ended.read_text() == "\n", "the terminal gave an answer"

    def state(self) -> str:
        """Return modes, title and clipboard."""
        return self._tmux("display-message", "-p", STATE) + self._tmux("list-buffers")

    def shown(self) -> str:
        """Return all that was shown since the last call, with its colours."""
        shown = self._tmux("capture-pane", "-p", "-e", "-J", "-S", "-")
        self._tmux("send-keys", "-R")
        self._tmux("clear-history")
        return shown

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._folder / "socket"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(30)).stdout

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path_factory.mktemp("tmux"))
    yield terminal
    terminal.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run all of whose texts are hostile."""
    run = tmp_path_factory.mktemp("runs") / "run"
    told = [
        replace(
            PLAYED, ordinal=place, task=text[:200], answer=text, reward_detail=text, conversation=[
                {"role": text[:200], "content": text, "tool_calls": [{"name": text[:200], "arguments": {"x": text}}]}
            ],
        ) for place, text in enumerate(HOSTILE_TEXTS)
    ]  # fmt: skip
    lost = [replace(FAILED, ordinal=1000 + place, failure_detail=text) for place, text in enumerate(HOSTILE_TEXTS)]
    made_run(run, [{f"eval/{text[:200]}/avg@1": 0.5 for text in HOSTILE_TEXTS}], {"outcome": HOSTILE_TEXTS[0]})
    written(run / "episodes", [*told, *lost])
    (run / "console.py").write_text(CONSOLE)
    return run


def letters(text: str) -> str:
    """Return what can be found of a text however its lines are broken."""
    return re.sub("[^!-~]", "", text)


@pytest.mark.parametrize(
    ("command", "characters"),
    [
        ("-m rlhf episodes {run} --text --limit 99", 200),
        ("-m rlhf episodes {run} --columns answer,failure_detail --limit 99", 50),
        ("-m rlhf episodes {run} --format jsonl", 0),
        ("-m rlhf top {run} | cat", 200),
        ("{run}/console.py 2>&1 | cat", 200),
        ("-m rlhf top {run}", None),
        ("{run}/console.py 2>&1", None),
    ],
)
def test_texts_are_seen_and_change_nothing(terminal: Terminal, run: Path, command: str, characters: int | None) -> None:
    before = terminal.state()
    terminal.run(f"PYTHONPATH=. {sys.executable} {command.format(run=run)}")
    assert terminal.state() == before
    shown = terminal.shown()
    if characters is None:
        return  # it has colours of its own
    assert "\x1b" not in shown
    beginnings = [letters(escape_controls(text)[:characters]) for text in HOSTILE_TEXTS]
    assert [beginning for beginning in beginnings if beginning not in letters(shown)] == []


def test_a_terminal_that_is_shown_the_texts_themselves_obeys_them(terminal: Terminal, run: Path) -> None:
    before = terminal.state()
    short = "".join(text for text in HOSTILE_TEXTS if len(text) < 1000)
    (run / "raw").write_bytes(short.encode(errors="surrogatepass"))
    with pytest.raises(AssertionError, match="answer"):
        terminal.run(f"cat {run}/raw")
    assert terminal.state() != before
