"""What this library does not do, and why: the entries of `declined.toml` and the conditions they may name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import numpy as np

from tests.goldens.records import Record


@dataclass(frozen=True, slots=True)
class Declined:
    """Arrays of a family that match the three globs, for inputs on which the condition `when` holds."""

    family: str
    peer: str
    variant: str
    reason: str
    quantity: str = "*"
    when: str = "always"

    def covers(self, record: Record, quantity: str) -> bool:
        return (
            self.family == record.family
            and fnmatchcase(record.peer, self.peer)
            and fnmatchcase(record.variant, self.variant)
            and fnmatchcase(quantity, self.quantity)
            and CONDITIONS[self.when](record)
        )


@cache
def declined() -> tuple[Declined, ...]:
    """All entries of `declined.toml`."""
    text = Path(__file__).with_name("declined.toml").read_text(encoding="utf-8")
    return tuple(Declined(**entry) for entry in tomllib.loads(text)["declined"])


def interior_gaps(record: Record) -> bool:
    """Some row of the mask has masked tokens between two trained ones."""
    mask = record.inputs["mask"] > 0
    begun = np.cumsum(mask, axis=1)[:, :-1] > 0
    return bool((begun & ~mask[:, :-1] & mask[:, 1:]).any())


def singletons(record: Record) -> bool:
    """Some group has one member."""
    return bool((np.unique(record.inputs["index"], return_counts=True)[1] == 1).any())


def equal_groups(record: Record) -> bool:
    """Some group of several members has one score."""
    index, scores = record.inputs["index"], record.inputs["scores"]
    members = [scores[index == group] for group in np.unique(index)]
    return any(group.size > 1 and np.ptp(group) == 0 for group in members)


def beyond_maximum(record: Record) -> bool:
    """Some answer is longer than the maximum."""
    return record.params is not None and bool((record.inputs["lengths"] > record.params["max_len"]).any())


def wide_ratios(record: Record) -> bool:
    """Some log-ratio of two policies is beyond the +-20 at which some clamp it."""
    names = [name for name in ("logp", "old_logp", "rollout_logp") if name in record.inputs]
    logprobs = [record.inputs[name][record.inputs["mask"] > 0] for name in names]
    return any(np.abs(one - other).max() > 20 for one in logprobs for other in logprobs)


def wide_sequences(record: Record) -> bool:
    """The mean log-ratio of some sequence is beyond the 10 at which some clamp it, or `wide_ratios` holds."""
    mask = record.inputs["mask"] > 0
    log_ratio = np.where(mask, record.inputs["logp"] - record.inputs["old_logp"], 0.0)
    return wide_ratios(record) or bool((log_ratio.sum(1) / np.maximum(mask.sum(1), 1) > 10).any())


def wide_kl(record: Record) -> bool:
    """Some estimate of the divergence to the reference is beyond the 10 at which some clamp it."""
    log_ratio = record.inputs["ref_logp"].astype(np.float64) - record.inputs["logp"]
    estimates = (np.abs(log_ratio), log_ratio**2 / 2, np.expm1(log_ratio) - log_ratio)
    return max(estimate.max() for estimate in estimates) > 10


CONDITIONS: dict[str, Callable[[Record], bool]] = {
    "always": lambda record: True,
    "wide_ratios": wide_ratios,
    "wide_sequences": wide_sequences,
    "wide_kl": wide_kl,
    "interior_gaps": interior_gaps,
    "singletons": singletons,
    "equal_groups": equal_groups,
    "beyond_maximum": beyond_maximum,
}
