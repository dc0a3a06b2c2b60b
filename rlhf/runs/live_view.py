"""The live view: a panel that is redrawn, and messages that scroll above it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rlhf.runs.view import EvaluationLine, PlainView, UpdateLine, View, duration, format_number
from rlhf.untrusted_text import escape_controls, escape_to_line

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 48
PHASE_COLOURS = {
    "generate": "cyan", "reward": "yellow", "train": "green", "weight_sync": "magenta", "evaluate": "blue",
    "wait": "red",
}  # fmt: skip


class LiveView:
    """Redraws a panel on a terminal. Its clock keeps running between updates; `elapsed` seconds have passed already."""

    def __init__(self, name: str, updates: int, stream: TextIO, elapsed: float = 0.0) -> None:
        self._name, self._updates = name, updates
        self._began = time.monotonic() - elapsed
        self._phase: str | None = "starting"
        self._spinner = Spinner("dots", style="cyan")
        self._last: UpdateLine | None = None
        self._rewards: list[float] = []
        self._evaluations: dict[str, list[EvaluationLine]] = {}
        self._more: Sequence[tuple[str, RenderableType]] = ()
        self._console = Console(file=stream)
        self._live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=8)
        self._live.start()

    def phase(self, name: str) -> None:
        self._phase = name

    def update(self, line: UpdateLine) -> None:
        self._last = line
        if line.reward is not None and math.isfinite(line.reward):
            self._rewards.append(line.reward)

    def evaluation(self, line: EvaluationLine) -> None:
        self._evaluations.setdefault(line.name, []).append(line)

    def show(self, rows: Sequence[tuple[str, RenderableType]]) -> None:
        """Show these rows, each with its label, below the others."""
        self._more = rows

    def message(self, text: str) -> None:
        self._console.print(Text(escape_controls(text)))

    def close(self) -> None:
        self._phase = None
        self._live.stop()

    def _panel(self) -> RenderableType:
        rows = (*self._rows(), *self._more)
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True, min_width=max(9, *(len(label) for label, _ in rows), 0))
        table.add_column(no_wrap=True)
        for label, cell in rows:
            table.add_row(Text(escape_to_line(label)), cell)
        return Panel(
            Group(self._progress(), Text(), table), title=Text(escape_to_line(self._name), "bold"), title_align="left",
            border_style="dim", padding=(0, 1), width=min(100, self._console.width),
        )  # fmt: skip

    def _progress(self) -> RenderableType:
        done = self._last.update if self._last else 0
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        elapsed = duration(time.monotonic() - self._began)
        left = duration(self._last.eta_seconds) if self._last else "-"
        row.add_row(
            Text(f"update {done}/{self._updates}", "bold"),
            ProgressBar(total=self._updates, completed=done, complete_style="cyan", finished_style="green"),
            Text(f"{elapsed} gone, {left} left"),
        )
        return row

    def _rows(self) -> list[tuple[str, RenderableType]]:
        line = self._last
        rows: list[tuple[str, RenderableType]] = []
        if self._phase:
            now = Table.grid(padding=(0, 1))
            now.add_row(self._spinner, Text(escape_to_line(self._phase)))
            rows.append(("now", now))
        if line is None or not line.lesson:
            return rows + self._reinforced(line)
        watched = "   ".join(f"{name} {value:.3f}" for name, value in line.lesson.items())
        rate = f"{watched}   rate {format_number(line.learning_rate, '.1e')}"
        rows += [("learning", Text(rate)), *self._evaluated()]
        return [*rows, ("an update", phases(line.seconds, line.phase_seconds)), speed(line)]

    def _evaluated(self) -> list[tuple[str, RenderableType]]:
        return [(name or "held out", held_out(lines)) for name, lines in self._evaluations.items()]

    def _reinforced(self, line: UpdateLine | None) -> list[tuple[str, RenderableType]]:
        rows: list[tuple[str, RenderableType]] = []
        if line is not None:
            rows.append(("reward", reward(line.reward, self._rewards)))
        rows.extend(self._evaluated())
        if line is not None:
            rows.append(("an update", phases(line.seconds, line.phase_seconds)))
            rows.append(speed(line, f"   staleness {line.staleness:.2f}"))
            rows.append(("learning", learning(line)))
            rows.append(("groups", groups(line)))
        return rows


def reward(latest: float | None, all_rewards: Sequence[float]) -> Text:
    """Return the latest reward, and a curve of all rewards."""
    return Text.assemble((format_number(latest, ".3f"), "bold"), "  ", (curve(all_rewards), "cyan"))


def curve(values: Sequence[float], width: int = CURVE_WIDTH) -> str:
    """Return a line of bars from the minimum to the maximum of `values`, averaged in at most `width` bins."""
    if not values:
        return ""
    bins = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in bins if part] if len(values) > width else list(values)
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def held_out(evaluations: Sequence[EvaluationLine]) -> Text:
    """Return the first and the latest evaluation of one set: its reward, or the first metric of preference pairs."""
    first, latest = evaluations[0], evaluations[-1]
    then, now = shown_number(first), shown_number(latest)
    before = "" if latest.update == first.update else f"{then:.3f} → "
    style = "bold green" if now > then else "bold"
    more = "".join(f"   {name} {value:.3f}" for name, value in latest.metrics.items())
    return Text.assemble(before, (f"{now:.3f}", style), more, (f"  after update {latest.update}", "dim"))


def shown_number(line: EvaluationLine) -> float:
    """Return the number that is compared between evaluations."""
    return next(iter(line.metrics.values())) if line.reward is None else line.reward


def phases(seconds: float, by_phase: Mapping[str, float]) -> Text:
    """Return the wall time of an update, by phase."""
    text = Text(f"{seconds:.2f} s ")
    for name, spent in by_phase.items():
        text.append(f"  {name} ", "dim").append(f"{spent:.2f}", PHASE_COLOURS.get(name, ""))
    return text


def speed(line: UpdateLine, more: str = "") -> tuple[str, RenderableType]:
    return "speed", Text(f"{line.tokens_per_second:,.0f} tokens/s{more}")


def learning(line: UpdateLine) -> Text:
    """Return learning rate, KL and clip fraction of an update."""
    rate, kl, clipped = (
        format_number(line.learning_rate, ".1e"),
        format_number(line.kl, ".1e"),
        format_number(line.clip_fraction, ".1%"),
    )
    reference = "" if line.kl_reference is None else f"   to reference {line.kl_reference:.3f}"
    return Text(f"rate {rate}   kl {kl}{reference}   clipped {clipped}")


def groups(line: UpdateLine) -> Text:
    """Return the counts of failed and filtered groups and of lost samples."""
    failed = (f"{line.failed} failed", "bold red" if line.failed else "dim")
    lost = (f"{line.lost} samples lost", "bold red" if line.lost else "dim")
    return Text.assemble(failed, "   ", (f"{line.filtered} filtered", "dim"), "   ", lost)


def make_view(name: str, updates: int, stream: TextIO, *, live: bool) -> View:
    """Return the live view if `live` and `stream` is a terminal, else plain lines."""
    return LiveView(name, updates, stream) if live and stream.isatty() else PlainView(stream)
