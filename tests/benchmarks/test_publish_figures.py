"""The arithmetic of the publish benchmark."""

from __future__ import annotations

from benchmarks.publish.figures import Measured, Round, missed, result


def plan(name: str, *rounds: tuple[float, float, float]) -> Measured:
    return Measured(
        plan=name,
        rounds=[
            Round(gloo=g, reload=r, kept=r / 2, publish=p, spans={"canary": p / 2, "reload": r}) for g, r, p in rounds
        ],
    )


def test_a_publish_is_held_against_the_slower_of_its_two_bounds() -> None:
    assert plan("a", (1, 2, 3)).ratio == 1.5
    assert plan("a", (4, 2, 3)).ratio == 0.75


def test_a_plan_that_takes_more_than_twice_its_bound_is_missed() -> None:
    plans = [plan("fine", (1, 2, 4)), plan("slow", (1, 2, 4.1))]
    assert missed(plans) == ["slow"]
    assert result(plans) == {"benchmark": "publish", "fine": 2.0, "slow": 2.05, "missed": ["slow"]}
