"""Plots of reward curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Sequence[tuple[int, float]]
"""(update, reward)."""

INK, QUIET, TRAINING, EVALUATION = "#22262b", "#8a929c", "#7aa6d8", "#d1495b"


def plot_rewards(path: Path, training: Points, evaluations: Points, title: str) -> None:
    """Write a PNG: training reward of every update, its running mean, and the held-out evaluations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=140, layout="constrained")
    axes = figure.subplots()
    _draw_training(axes, training)
    _draw_evaluations(axes, evaluations)
    _dress(axes, title)
    figure.savefig(path)


def plot_curves(path: Path, curves: Mapping[str, Points], title: str) -> None:
    """Write a PNG with a curve for each name; the first is emphasized."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=140, layout="constrained")
    axes = figure.subplots()
    for place, (name, points) in enumerate(curves.items()):
        updates, values = zip(*points, strict=True)
        style = {"color": EVALUATION, "linewidth": 2.2, "zorder": 3} if place == 0 else {"linewidth": 1, "alpha": 0.7}
        axes.plot(updates, values, marker=".", label=name, **style)
    _dress(axes, title)
    axes.set_ylabel("score", color=INK)
    figure.savefig(path)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value with up to `window - 1` before it."""
    means = []
    for end in range(1, len(values) + 1):
        recent = values[max(0, end - window) : end]
        means.append(sum(recent) / len(recent))
    return means


def _draw_training(axes: Any, training: Points) -> None:
    if not training:
        return
    updates, rewards = zip(*training, strict=True)
    window = max(1, len(rewards) // 20)
    faint, dots = (0.5, "") if window > 1 else (1.0, ".")
    axes.plot(updates, rewards, color=TRAINING, linewidth=1, marker=dots, alpha=faint, label="training")
    if window > 1:
        axes.plot(updates, running_mean(rewards, window), color=TRAINING, linewidth=2.2, label=f"mean of {window}")


def _draw_evaluations(axes: Any, evaluations: Points) -> None:
    if not evaluations:
        return
    updates, rewards = zip(*evaluations, strict=True)
    axes.plot(updates, rewards, color=EVALUATION, linewidth=1.4, marker="o", markersize=5.5, label="held out")
    _label(axes, evaluations[0], below=len(evaluations) > 1)
    _label(axes, evaluations[-1], below=False)


def _label(axes: Any, point: tuple[int, float], *, below: bool) -> None:
    offset = (0, -15 if below else 9)
    axes.annotate(f"{point[1]:.2f}", point, xytext=offset, textcoords="offset points", ha="center", color=EVALUATION)


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.set_xlabel("update", color=INK)
    axes.set_ylabel("mean reward", color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.04, y=0.12)
    axes.grid(axis="y", color=QUIET, alpha=0.25)
    axes.tick_params(colors=QUIET)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(side == "bottom")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best", labelcolor=INK)
