"""Judging arrays: the library agrees, it declines with a reason, or it differs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.goldens.declined import declined
from tests.goldens.records import Answer, Record, records

OUTCOMES = ("agree", "declined", "differ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one array; `detail` is the reason for declining, or how far the numbers are apart."""

    family: str
    array: str
    outcome: str
    detail: str = ""


def judge(folder: Path) -> list[Verdict]:
    """A verdict on every output array of a folder."""
    return [verdict for record in records(folder) for verdict in judge_record(record)]


def judge_record(record: Record) -> Iterator[Verdict]:
    """Verdicts on the arrays of one record. What agrees agrees, even where the peer is declined in general."""
    answers, failure = _tried(record)
    for quantity, theirs in record.outputs.items():
        array = f"{record.key}.{quantity}"
        trouble = distance(answers[quantity], theirs) if quantity in answers else failure
        reason = next((entry.reason for entry in declined() if trouble and entry.covers(record, quantity)), None)
        if not trouble:
            yield Verdict(record.family, array, "agree")
        elif reason is not None:
            yield Verdict(record.family, array, "declined", reason)
        else:
            yield Verdict(record.family, array, "differ", trouble)


def _tried(record: Record) -> tuple[Mapping[str, Answer], str]:
    """The answers, and why one may be absent: a record that the library cannot take is counted, not fatal."""
    try:
        return answers_to(record), "the library gives no answer"
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        return {}, f"{type(error).__name__}: {error}"


def answers_to(record: Record) -> Mapping[str, Answer]:
    """What the library says of the record; nothing for a family without a module or a record without parameters."""
    name = f"tests.goldens.families.{record.family}"
    if record.params is None or importlib.util.find_spec(name) is None:
        return {}
    answers: Mapping[str, Answer] = importlib.import_module(name).answer(record)
    return answers


def distance(answer: Answer, theirs: NDArray[Any]) -> str:
    """Empty where the two agree, or how far they are apart in words."""
    ours = np.asarray(answer.value, dtype=np.float64)
    expected = np.asarray(theirs, dtype=np.float64)
    if ours.shape != expected.shape:
        return f"shape {ours.shape}, theirs {expected.shape}"
    if answer.where is not None:
        chosen = np.asarray(answer.where) > 0
        ours, expected = ours[chosen], expected[chosen]
    excess = ours - expected if answer.at_most else np.abs(ours - expected)
    allowed = answer.atol + answer.rtol * np.abs(expected)
    if np.all(excess <= allowed):
        return ""
    return f"{float(np.max(excess)):.3g} apart, {float(np.mean(~(excess <= allowed))):.0%} of the elements"


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many verdicts of each outcome."""
    outcomes = [verdict.outcome for verdict in verdicts]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def result(verdicts: list[Verdict]) -> dict[str, Any]:
    """Counts in total and by family."""
    families = sorted({verdict.family for verdict in verdicts})
    by_family = {name: counts(verdict for verdict in verdicts if verdict.family == name) for name in families}
    return {**counts(verdicts), "families": by_family}
