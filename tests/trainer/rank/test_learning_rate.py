from itertools import pairwise

import pytest

from rlhf.trainer.rank.learning_rate import learning_rate_factor


def factors(schedule: str, warmup_steps: int, total_steps: int = 10) -> list[float]:
    return [
        learning_rate_factor(step, schedule=schedule, warmup_steps=warmup_steps, total_steps=total_steps)
        for step in range(total_steps + 2)
    ]


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert factors("constant", 4)[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_falls_from_the_peak_to_zero_at_the_end_and_stays_there(schedule: str) -> None:
    values = factors(schedule, 2)
    assert values[2] == 1.0
    assert values[10:] == pytest.approx([0, 0])
    assert all(a >= b for a, b in pairwise(values[2:]))
    assert values[6] == pytest.approx(0.5)


def test_a_run_of_warm_up_alone_does_not_divide_by_zero() -> None:
    assert factors("cosine", 10)[9] == 1.0
