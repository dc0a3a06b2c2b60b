"""The drawings of the quadrant recipe: one dark quarter each, drawn anew for each split."""

from __future__ import annotations

from collections import Counter

import numpy as np

from recipes.tasks.quadrant import QUARTERS, demonstrations, tasks
from rlhf.chat.image_reader import opened
from rlhf.types import Task


def darkest(task: Task) -> str:
    (image,) = task.messages[0].images
    grey = np.asarray(opened(image.data).convert("L"))
    half = len(grey) // 2
    means = [grey[top : top + half, left : left + half].mean() for top in (0, half) for left in (0, half)]
    return QUARTERS[int(np.argmin(means))]


def test_the_answer_is_the_dark_quarter_and_a_shuffled_image_says_nothing_of_it() -> None:
    drawn, shuffled = tasks(rows=64), tasks(rows=64, shuffled=True)
    assert [darkest(task) for task in drawn] == [task.answer for task in drawn]
    assert set(Counter(task.answer for task in drawn)) == set(QUARTERS)
    assert 0.1 < np.mean([darkest(task) == task.answer for task in shuffled]) < 0.5


def test_splits_and_demonstrations_share_no_image() -> None:
    sets = [{task.messages[0].images[0] for task in tasks(rows=64, split=split)} for split in ("train", "eval")]  # type: ignore[arg-type]
    sets.append({asked.images[0] for asked, _ in demonstrations(64, 0)})
    assert len(set().union(*sets)) == 3 * 64
