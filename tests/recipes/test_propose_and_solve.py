"""A proposer is paid for a problem that some solvers solve; what is no problem costs its reward, and no one's turn."""

from __future__ import annotations

import pytest

from recipes.tasks.propose_and_solve import ProposeAndSolveEnvironment, answer, demonstrations, is_problem
from rlhf.types import Message, Observation, Task

NOTHING = Task(id="0", messages=())


def played(*replies: str, seed: int = 0) -> list[Observation]:
    """An episode in which `GIVEN` and `RIGHT` stand for the given digits and the right answer."""
    environment = ProposeAndSolveEnvironment(solvers=len(replies) - 1)
    heard = [environment.reset(NOTHING, seed=seed)]
    for reply in replies:
        shown = heard[-1].messages[0].content
        said = reply.replace("GIVEN", shown[:-1]).replace("RIGHT", answer(shown))
        heard.append(environment.step(Message(role="assistant", content=said)))
    return heard


@pytest.mark.parametrize(("right", "earned"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 0.5), (4, 0.0)])
def test_a_proposer_is_paid_for_a_problem_that_half_of_the_solvers_solve(right: int, earned: float) -> None:
    *asked, end = played("GIVEN31", *["RIGHT"] * right, *["3"] * (4 - right))
    assert [one.role for one in asked] == ["proposer", "solver_1", "solver_2", "solver_3", "solver_4"]
    assert len({one.messages for one in asked[1:]}) == 1, "all solvers see the same problem"
    assert end.terminated
    assert end.info["rewards"] == {"proposer": earned, **{f"solver_{n}": float(n <= right) for n in range(1, 5)}}
    assert end.info["reward_parts"] == {"solve_rate": right / 4, "digits": 4, "valid": 1.0}


@pytest.mark.parametrize("reply", ["", "nothing", "GIVEN1234567890123", "GIVEN½", "GIVEN²", "1GIVEN", "GIVEN 1"])
def test_solvers_of_no_problem_get_one_that_the_seed_draws_and_the_proposer_nothing(reply: str) -> None:
    heard = played(reply, "RIGHT", "wrong", seed=3)
    assert is_problem(heard[1].messages[0].content, heard[0].messages[0].content[:-1])
    assert heard[1] == played("other", "RIGHT", "wrong", seed=3)[1]
    assert heard[-1].info["rewards"] == {"proposer": 0.0, "solver_1": 1.0, "solver_2": 0.0}
    assert heard[-1].info["reward_parts"]["valid"] == 0.0


def test_a_held_out_problem_is_the_agent_s_and_follows_from_the_seed() -> None:
    environment = ProposeAndSolveEnvironment(held_out_digits=8)
    problems = [environment.reset(NOTHING, seed=seed).messages[0].content for seed in range(20)]
    assert len({problem for problem in problems if len(problem) == 8}) == 20
    for problem, rewarded in ((answer(problems[-1]), 1.0), ("87654321", 0.0)):
        assert environment.reset(NOTHING, seed=19).messages[0].content == problems[-1]
        assert environment.step(Message(role="assistant", content=problem)).reward == rewarded


def test_demonstrations_are_problems_of_every_length_and_answers_of_two_habits() -> None:
    texts = [[message.content for message in one] for one in demonstrations(400, 0)]
    assert all(is_problem(reply, shown[:-1]) for shown, reply in texts[::2])
    assert all(reply in (answer(shown), answer(shown)[::-1]) for shown, reply in texts[1::2])
    assert 0.3 < sum(reply == answer(shown) for shown, reply in texts[1::2]) / 200 < 0.55
    assert {len(reply) for _, reply in texts} == set(range(2, 13))
