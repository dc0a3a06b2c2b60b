"""Kuhn poker in few bytes, by self-play, and what a strategy for it is worth, exactly (Kuhn 1950, "A simplified
two-person poker").

Each of two players antes a chip and holds one of three cards. The first passes or bets a chip, and so does the second;
if a bet follows a pass, the first answers it. A pass that answers a bet folds; otherwise the higher card takes all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import permutations

from rlhf.types import EnvironmentSpec, Message, Observation, Task

CARDS = "JQK"
"""The lowest first."""
ROLES = ("first", "second")
ENDS = ("pp", "bb", "pbb", "bp", "pbp")
"""The actions that end a hand: `b` for a bet or a call, `p` for a pass or a fold. The last two fold."""
INFORMATION_SETS = tuple(card + actions for card in CARDS for actions in ("", "pb", "p", "b"))
"""All that a player may be shown: its card and the actions so far, as in `Kpb`."""
DEALS = tuple(first + second for first, second in permutations(CARDS, 2))
Strategy = Mapping[str, float]
"""The probability of `b` in each information set, of both players."""


class KuhnPokerEnvironment:
    """One hand. The player to move reads its card and the actions so far; the reply `b` bets or calls, and any other
    one passes or folds. So no reply is illegal, and the probability of `b` is the whole strategy.

    The chips won are in `info["rewards"]` by role. The deal is the column `deal` of the task, or drawn by the seed.
    """

    spec = EnvironmentSpec(name="kuhn_poker", description="Kuhn poker: b bets or calls, p passes or folds", roles=ROLES)

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._deal, self._actions = task.row.get("deal") or "".join(random.Random(seed).sample(CARDS, 2)), ""
        return self._shown()

    def step(self, action: Message) -> Observation:
        actor = ROLES[len(self._actions) % 2]
        self._actions += "b" if action.content == "b" else "p"
        if self._actions not in ENDS:
            return self._shown()
        rewards = {role: float(chips(self._deal, self._actions, seat)) for seat, role in enumerate(ROLES)}
        return Observation(messages=(), terminated=True, role=actor, info={"rewards": rewards})

    def close(self) -> None:
        """Do nothing: a hand has no resources."""

    def _shown(self) -> Observation:
        seat = len(self._actions) % 2
        shown = Message(role="user", content=self._deal[seat] + self._actions)
        return Observation(messages=(shown,), role=ROLES[seat])


def deals() -> list[Task]:
    """Return a task for each deal, so that updates of six groups, or a multiple, have all deals equally often."""
    return [Task(id=deal, messages=(), row={"deal": deal}) for deal in DEALS]


def chips(deal: str, actions: str, seat: int) -> int:
    """Return what the player in a seat, 0 or 1, wins in a hand that has ended, in chips."""
    first_is_paid = actions == "bp" or (actions != "pbp" and CARDS.index(deal[0]) > CARDS.index(deal[1]))
    return (2 if actions.endswith("bb") else 1) * (1 if first_is_paid == (seat == 0) else -1)


def expected_value(strategy: Strategy) -> float:
    """Return the mean of what the first player wins, in chips, over all deals."""

    def value(deal: str, actions: str) -> float:
        if actions in ENDS:
            return chips(deal, actions, 0)
        bet = strategy[deal[len(actions) % 2] + actions]
        return bet * value(deal, actions + "b") + (1 - bet) * value(deal, actions + "p")

    return sum(value(deal, "") for deal in DEALS) / len(DEALS)


def best_response_value(strategy: Strategy, seat: int) -> float:
    """Return the most that a player in a seat, 0 or 1, can win on average against the strategy, in chips.

    It knows its card, and by the other's actions how likely each deal is (`weights`).
    """

    def best(card: str, actions: str, weights: Mapping[str, float]) -> float:
        if actions in ENDS:
            return sum(weight * chips(deal, actions, seat) for deal, weight in weights.items())
        if len(actions) % 2 == seat:
            return max(best(card, actions + action, weights) for action in "bp")
        bets = {deal: weight * strategy[deal[1 - seat] + actions] for deal, weight in weights.items()}
        passes = {deal: weights[deal] - bets[deal] for deal in weights}
        return best(card, actions + "b", bets) + best(card, actions + "p", passes)

    return sum(best(card, "", {deal: 1 / len(DEALS) for deal in DEALS if deal[seat] == card}) for card in CARDS)


def exploitability(strategy: Strategy) -> float:
    """Return half of NashConv, in chips: the mean over the seats of what a best response to the strategy wins. It is 0
    in an equilibrium, and 0.458 for uniform play."""
    return sum(best_response_value(strategy, seat) for seat in (0, 1)) / 2


def seated(first: Strategy, second: Strategy) -> Strategy:
    """Return the strategy of two players, each in its seat."""
    return {shown: (second if len(shown) == 2 else first)[shown] for shown in INFORMATION_SETS}
