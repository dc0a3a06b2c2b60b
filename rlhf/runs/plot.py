"""Plots of reward curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Points = Sequence[tuple[int, float]]
"""(update, reward)."""

INK, QUIET, TRAINING, EVALUATION = "#22262b", "#8a929c", "#7aa6d8", "#d1495b"


def plot_rewards(path: Path, training: Points, evaluations: Points, title: str) -> None:
    """Write a PNG: training reward of every update, its running mean, and the held-out evaluations."""
    with _axes(path, title, "mean reward") as axes:
        if training:
            updates, rewards = zip(*training, strict=True)
            window = max(1, len(rewards) // 20)
            faint, dots = (0.5, "") if window > 1 else (1.0, ".")
            axes.plot(updates, rewards, color=TRAINING, linewidth=1, marker=dots, alpha=faint, label="training")
            if window > 1:
                recent = (rewards[max(0, end - window) : end] for end in range(1, len(rewards) + 1))
                means = [sum(part) / len(part) for part in recent]
                axes.plot(updates, means, color=TRAINING, linewidth=2.2, label=f"mean of {window}")
        if evaluations:
            updates, rewards = zip(*evaluations, strict=True)
            axes.plot(updates, rewards, color=EVALUATION, linewidth=1.4, marker="o", markersize=5.5, label="held out")
            below = -15 if len(evaluations) > 1 else 9
            for point, offset in ((evaluations[0], below), (evaluations[-1], 9)):
                axes.annotate(
                    f"{point[1]:.2f}", point, xytext=(0, offset), textcoords="offset points", ha="center",
                    color=EVALUATION,
                )  # fmt: skip


def plot_curves(path: Path, curves: Mapping[str, Points], title: str) -> None:
    """Write a PNG with a curve for each name; the first is emphasized."""
    with _axes(path, title, "score") as axes:
        for place, (name, points) in enumerate(curves.items()):
            updates, values = zip(*points, strict=True)
            best = {"color": EVALUATION, "linewidth": 2.2, "zorder": 3}
            axes.plot(updates, values, marker=".", label=name, **({"linewidth": 1, "alpha": 0.7} if place else best))


@contextmanager
def _axes(path: Path, title: str, label: str) -> Iterator[Any]:
    """Provide the axes of a figure, which is then written to a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=140, layout="constrained")
    axes: Any = figure.subplots()
    yield axes
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    axes.set_xlabel("update", color=INK)
    axes.set_ylabel(label, color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.04, y=0.12)
    axes.grid(axis="y", color=QUIET, alpha=0.25)
    axes.tick_params(colors=QUIET)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(side == "bottom")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best", labelcolor=INK)
    figure.savefig(path)
