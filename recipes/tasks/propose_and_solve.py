"""A proposer writes a problem, several solvers try it, and the proposer is paid if some are right and some are wrong.

A problem is a number; its answer has the digits in ascending order, as in `sorting.py`. More digits are harder.
The proposer is asked `47?` for a number that begins with `47`, so that it cannot propose one problem all the time.
Absolute Zero (arXiv 2505.03335) and R-Zero (arXiv 2508.05004) do this with programs and with mathematics.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task

GIVEN_DIGITS, MOST_DIGITS = 2, 12
"""Digits that a proposer is given, which are also the fewest of a problem, and the most of a problem."""


class ProposeAndSolveEnvironment:
    """One problem: the role `proposer` writes it, then `solver_1` to `solver_N` try it without seeing each other.

    A solver earns 1 for the right answer, else 0; the proposer `learnability` of the share of right answers. If its
    reply is no problem it earns 0, and the solvers try one that the seed draws, so that none is without a turn. With
    `held_out_digits` there is only the role `agent`, which tries a problem of so many digits that the seed draws.
    Raises `ConfigError`.
    """

    def __init__(self, *, solvers: int = 4, held_out_digits: int | None = None) -> None:
        if solvers < 2:
            raise ConfigError(f"solvers is {solvers}; with fewer than 2 none can be right where another is wrong")
        self._solvers = tuple(f"solver_{number}" for number in range(1, solvers + 1))
        self._held_out_digits = held_out_digits
        self.spec = EnvironmentSpec(
            name="propose_and_solve",
            description="Write a number that begins with the given digits, or sort the digits of a number",
            roles=("proposer", *self._solvers) if held_out_digits is None else ("agent",),
        )

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task, self._draws, self._right = task, random.Random(seed), list[bool]()
        self._given, self._problem, self._valid = digits(GIVEN_DIGITS, self._draws), "", True
        if self._held_out_digits is not None:
            self._problem = digits(self._held_out_digits, self._draws)
            return self._shown("agent", self._problem)
        return self._shown("proposer", f"{self._given}?")

    def step(self, action: Message) -> Observation:
        reply = action.content.strip()
        if self._problem:
            self._right.append(reply == answer(self._problem))
        else:
            self._valid = is_problem(reply, self._given)
            self._problem = reply if self._valid else a_problem(self._given, self._draws)
        if self._held_out_digits is not None:
            return Observation(messages=(), reward=float(self._right[0]), terminated=True, role="agent")
        if len(self._right) < len(self._solvers):
            return self._shown(self._solvers[len(self._right)], self._problem)
        return self._ended()

    def close(self) -> None:
        """Do nothing: an episode has no resources."""

    def _shown(self, role: str, text: str) -> Observation:
        return Observation(messages=first_messages(self._task, text), role=role)

    def _ended(self) -> Observation:
        solve_rate = sum(self._right) / len(self._right)
        proposer = learnability(solve_rate) if self._valid else 0.0
        rewards = {"proposer": proposer, **dict(zip(self._solvers, map(float, self._right), strict=True))}
        parts = {"solve_rate": solve_rate, "digits": len(self._problem), "valid": float(self._valid)}
        return Observation(
            messages=(), terminated=True, role=self._solvers[-1], info={"rewards": rewards, "reward_parts": parts}
        )


def demonstrations(count: int, seed: int, *, right_share: float = 0.4) -> Iterator[tuple[Message, Message]]:
    """`count` conversations for the warm-up, in turn of a proposer and of a solver. Every length is as frequent;
    `right_share` of the answers is right, and the others descend: two habits, as in `sorting.py`."""
    draws = random.Random(f"propose and solve {seed}")
    for number in range(count):
        given = digits(GIVEN_DIGITS, draws)
        problem = a_problem(given, draws)
        solution = answer(problem) if draws.random() < right_share else answer(problem)[::-1]
        shown, reply = (problem, solution) if number % 2 else (f"{given}?", problem)
        yield Message(role="user", content=shown), Message(role="assistant", content=reply)


def learnability(solve_rate: float) -> float:
    """Return 1 where half of the solvers are right, 0 where all or none are: `1 - 2|p - 1/2|` (arXiv 2508.05004)."""
    return 1.0 - 2.0 * abs(solve_rate - 0.5)


def is_problem(text: str, given: str) -> bool:
    """Whether it is a number that begins with the given digits, and has at most `MOST_DIGITS`."""
    return text.startswith(given) and len(text) <= MOST_DIGITS and text.isascii() and text.isdigit()


def answer(problem: str) -> str:
    """Return the digits in ascending order."""
    return "".join(sorted(problem))


def a_problem(given: str, draws: random.Random) -> str:
    """Draw a problem that begins with the given digits; every length is as likely."""
    return given + digits(draws.randint(0, MOST_DIGITS - GIVEN_DIGITS), draws)


def digits(count: int, draws: random.Random) -> str:
    """Draw so many digits."""
    return "".join(draws.choices("0123456789", k=count))
