"""Metrics over several replies to one problem: avg@n, pass@k, maj@k. Pure functions of rewards and votes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import comb, fsum, isclose

from rlhf.types import ROUNDING


def average(rewards: Sequence[float]) -> float:
    """Return avg@n of one problem: the mean reward of its replies."""
    return fsum(rewards) / len(rewards)


def passes(reward: float, least: float) -> bool:
    """Whether a reward is at least `least`, up to the rounding of sums: ten times 0.1 is 1."""
    return reward >= least or isclose(reward, least, rel_tol=ROUNDING, abs_tol=ROUNDING)


def pass_at(k: int, *, replies: int, passed: int) -> float:
    """Estimate, without bias, the probability that at least one of k replies passes: `1 - C(n - c, k) / C(n, k)` of
    arXiv 2107.03374, the share of the subsets of size k that contain a passing reply."""
    if not 1 <= k <= replies:
        raise ValueError(f"pass@{k} of {replies} replies")
    return 1.0 - comb(replies - passed, k) / comb(replies, k)


def majority_at(k: int, votes: Sequence[Hashable], rewards: Sequence[float]) -> float:
    """Return the reward of the answer that most of k replies vote for (arXiv 2203.11171), averaged over juries of k, in
    order; an incomplete last jury is dropped. Answers tied for first place share the result equally. The reward of an
    answer is the mean reward of the replies in the jury that gave it."""
    if not 1 <= k <= len(votes):
        raise ValueError(f"maj@{k} of {len(votes)} replies")
    starts = range(0, len(votes) - k + 1, k)
    return average([_verdict(votes[start : start + k], rewards[start : start + k]) for start in starts])


def vote_of(response: str, mark: str | None) -> str:
    """Return the answer that a reply votes for: the stripped text after the last `mark`, up to the end of its line, or
    after `{` to the closing brace (`\\boxed{…}`); the whole reply without a mark. Without its mark a reply votes for
    ""."""
    if mark is None:
        return response.strip()
    _, found, rest = response.rpartition(mark)
    if not found:
        return ""
    return (_within_braces(rest) if mark.endswith("{") else rest.strip().partition("\n")[0]).strip()


def _verdict(votes: Sequence[Hashable], rewards: Sequence[float]) -> float:
    given: dict[Hashable, list[float]] = {}
    for vote, reward in zip(votes, rewards, strict=True):
        given.setdefault(vote, []).append(reward)
    most = max(map(len, given.values()))
    return average([average(its) for its in given.values() if len(its) == most])


def _within_braces(text: str) -> str:
    """Return the text before the brace that closes one opened before `text`; all of `text` when no brace closes it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place]
    return text
