"""A league: past versions of a policy play against it (fictitious self-play; AlphaStar, doi:10.1038/s41586-019-1724-z).

A member is a policy that is not trained, with a slot of its own in the engines. When it enters the league it becomes a
copy of the policy. Who plays against whom follows from the run's seed and the results so far.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf.config import Config, did_you_mean, failing_by_name, is_piece, load_bound
from rlhf.errors import CheckpointError, ConfigError
from rlhf.runs.payoff import Results, add_game, elo_ratings, games_of, win_rate
from rlhf.types import Group, PolicyVersion, Task

FILE = "league.json"
REMEMBERED = 4096
"""Groups whose players are remembered: more than can be played at once."""
EVEN = 0.5


class LeagueConfig(Config):
    """Past versions of a policy, as opponents of the policies that are trained."""

    policy: str
    """The policy whose past versions join. Other trained policies play only against this one: they exploit it."""
    members: int = Field(8, ge=1, le=64)
    """The largest number of past versions at once. A new one replaces the oldest."""
    add_every: int = Field(10, ge=1)
    """The number of updates between two entries: only then may a copy of the policy join."""
    add_above: float = Field(0.0, ge=0, lt=1)
    """A copy joins only if the policy won more than this share of its games since the last entry; a draw is half a
    win."""
    match: str = "uniform"
    """How its opponent is drawn from the members, policies that are not trained, and itself: `uniform`, `by_win_rate`,
    where those that it beats least are drawn most, or `module:function` `(win_rates, draws) -> opponent` of the
    policy's win rate against each and a `random.Random`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members' slots."""
        return tuple(f"{self.policy}_past_{place}" for place in range(1, self.members + 1))


def by_win_rate(win_rates: Mapping[str, float], draws: random.Random) -> str:
    """Draw an opponent with the weight `(1 - win rate)^2`, AlphaStar's for its main agents."""
    weights = [(1 - rate) ** 2 for rate in win_rates.values()]
    return draws.choices(list(win_rates), weights if any(weights) else None)[0]


MATCHES: Mapping[str, Callable[[Mapping[str, float], random.Random], str]] = {
    "uniform": lambda win_rates, draws: draws.choice(list(win_rates)),
    "by_win_rate": by_win_rate,
}


class League:
    """The members of a league, the results of their games, and the draw of the players of each group."""

    def __init__(
        self, config: LeagueConfig, trained: Sequence[str], fixed: Sequence[str], *, seed: int, folder: Path
    ) -> None:
        """Copy each member into `folder`. `fixed` are policies that are not trained, besides the members."""
        self.policy, self.folder = config.policy, folder
        self._config, self._trained, self._fixed, self._seed = config, trained, fixed, seed
        self._match = MATCHES.get(config.match) or failing_by_name(
            load_bound(config.match, "league.match", {}, given=2), config.match, "league.match"
        )
        self._roles: tuple[str, ...] = ()
        self._entered: dict[str, PolicyVersion] = {}
        self._results: Results = {}
        self._version: PolicyVersion = 0
        self._seats: dict[int, dict[str, str]] = {}
        self._titles: dict[int, dict[str, str]] = {}

    def seat(self, roles: tuple[str, ...]) -> Callable[[str, Task, int], str]:
        """Return who plays a role in training, in the group of a task with an ordinal: a policy that is trained plays
        one of these `roles` of the environment, and its opponent the others. Raises `ConfigError` for a single role."""
        if len(roles) < 2:
            raise ConfigError(f"a league needs an environment with several roles; this one has {roles[0]}")
        self._roles = roles

        def seated(role: str, task: Task, ordinal: int) -> str:
            if ordinal not in self._seats:  # the whole group has the same players, whatever happens meanwhile
                players = self._seats[ordinal] = self._drawn(ordinal)
                self._titles[ordinal] = {player: self._title(player) for player in players.values()}
                for remembered in (self._seats, self._titles):
                    if len(remembered) > REMEMBERED:
                        del remembered[next(iter(remembered))]
            return self._seats[ordinal][role]

        return seated

    def learn(self, groups: Sequence[Group], version: PolicyVersion) -> dict[str, float]:
        """Take the results of the groups of the update to this version into account. Returns the league's metrics."""
        present = {*map(self._title, self._entered), *self._fixed, *self._trained}
        for group in groups:
            titles = self._titles.get(group.ticket.ordinal, {})  # another may have entered the slot meanwhile
            for player, other, points in games_of(group, len(self._roles)):
                pair = titles.get(player, player), titles.get(other, other)
                if present.issuperset(pair):
                    add_game(self._results, *pair, points)
        self._version = version
        played = self._results.get(self.policy, {})
        metrics = {f"league/win_rate/{other}": points / games for other, (points, games) in played.items()}
        if (overall := win_rate(self._results, self.policy)) is not None:
            metrics["league/win_rate"] = overall
        ratings = {f"league/elo/{player}": rating for player, rating in elo_ratings(self._results).items()}
        return {"league/members": float(len(self._entered))} | metrics | ratings

    def entrant(self, version: PolicyVersion) -> str | None:
        """Return the slot that the policy of this version enters as a member, if it is to enter; from then on its
        results are the member's."""
        won = win_rate(self._results, self.policy)
        if version % self._config.add_every or (won is not None and won <= self._config.add_above):
            return None
        slot = min(self._config.names, key=lambda name: self._entered.get(name, -1))
        if slot in self._entered:
            gone = self._title(slot)
            self._results.pop(gone, None)
            for played in self._results.values():
                played.pop(gone, None)
        self._entered[slot] = version
        title = self._title(slot)
        if self.policy in self._results:
            self._results[title] = self._results.pop(self.policy)
        for played in self._results.values():
            if self.policy in played:
                played[title] = played.pop(self.policy)
        return slot

    def copy_of(self, slot: str) -> Path:
        """Return the folder of the adapter of a member."""
        return self.folder / self._title(slot)

    def write(self, path: Path) -> Path:
        """Write the state into a checkpoint; returns the file."""
        state = {"version": self._version, "entered": self._entered, "results": self._results}
        (path / FILE).write_text(json.dumps(state))
        return path / FILE

    def read(self, path: Path) -> None:
        """Continue from a checkpoint, without the copies of members that entered later. Raises `CheckpointError`."""
        try:
            state: dict[str, Any] = json.loads((path / FILE).read_text())
            self._version, self._entered, self._results = state["version"], state["entered"], state["results"]
        except (OSError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path / FILE} cannot be read ({error}); use another checkpoint") from None
        self._seats.clear()
        self._titles.clear()
        for copy in self.folder.glob(f"{self.policy}@*"):
            if int(copy.name.rpartition("@")[2]) > self._version:
                shutil.rmtree(copy)

    def _title(self, name: str) -> str:
        """Return the name of a player in results: that of a member has the version that entered."""
        return f"{self.policy}@{self._entered[name]}" if name in self._entered else name

    def _drawn(self, ordinal: int) -> dict[str, str]:
        draws = random.Random(f"{self._seed}/{ordinal}")
        player, seat = self._trained[ordinal % len(self._trained)], draws.choice(self._roles)
        # One that entered at this version may not have its weights in the engines yet.
        members = (slot for slot, entered in self._entered.items() if entered < self._version)
        known = (*members, *self._fixed, self.policy) if player == self.policy else (self.policy,)
        rates = {one: win_rate(self._results, player, self._title(one)) for one in known}
        opponent = self._match({one: EVEN if rate is None else rate for one, rate in rates.items()}, draws)
        if opponent not in known:
            raise ConfigError(f"league.match drew {opponent!r:.80}; the opponents are {', '.join(known)}")
        return dict.fromkeys(self._roles, opponent) | {seat: player}


def newest_results(checkpoints: Path) -> Results | None:
    """Return the results in the newest of these checkpoints; None without a league."""
    files = sorted(checkpoints.glob(f"version-*/{FILE}"))
    found: Results | None = json.loads(files[-1].read_text())["results"] if files else None
    return found


def check_league(config: LeagueConfig, policies: Mapping[str, bool], roles: object) -> None:
    """Check the league of `policies`, which are trained or not. Raises `ValueError`."""
    if roles:
        raise ValueError("roles are given by the league; remove roles, or league")
    learning = [name for name, trained in policies.items() if trained]
    if config.policy not in learning:
        known = f"; the policies that are trained: {', '.join(learning)}"
        raise ValueError(f"league.policy is {config.policy!r}{did_you_mean(config.policy, learning, known)}")
    if config.match not in MATCHES and not is_piece(config.match):
        raise ValueError(f"league.match is {config.match!r}; give {', '.join(MATCHES)}, or module:function")
    if taken := sorted(set(config.names) & set(policies)):
        raise ValueError(f"policies.{taken[0]} has the name of a member of the league; rename it")
