"""`rlhf explain`: what a metric means, its healthy range, and what to do outside of it."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf.errors import UserError
from rlhf.runs.metric_catalogue import Metric, catalogue, nearest_metric, search_metrics
from rlhf.untrusted_text import escape_to_line

SPELLING = 0.85
"""Similarity to a metric's name, or to a part of a family's name, from which a word counts as a misspelling."""


def run_explain(metric: str = "") -> int:
    """Print the explanation of a metric, or a list of those whose names begin so."""
    found = search_metrics(metric) if metric else catalogue()
    if not found:
        close = nearest_metric(metric)
        named = escape_to_line(metric)
        raise UserError(f"no metric begins with {named!r}" + (f"; did you mean {close!r}?" if close else ""))
    if len(found) > 1:
        width = max(len(one.name) for one in found)
        for one in found:
            print(f"{one.name:<{width}}  {one.plain_meaning}{f' (healthy: {one.healthy})' if one.healthy else ''}")
        return 0
    print("\n".join(explanation(found[0])))
    if (close := nearest_metric(metric, SPELLING)) not in (None, metric, found[0].name):
        print(f"  or       did you mean {close!r}?")
    return 0


def explanation(metric: Metric) -> Iterator[str]:
    """Return all that is known of a metric, as lines."""
    yield metric.name
    yield f"  meaning  {metric.plain_meaning}"
    parts = {"unit": metric.unit, "healthy": metric.healthy, "else": metric.remedy}
    yield from (f"  {name:<7}  {text}" for name, text in parts.items() if text)
