"""`rlhf explain`: what a metric means, its healthy range, and what to do outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    print("\n".join(list_of(found) if len(found) > 1 else explanation(found[0])))
    if len(found) == 1 and (close := nearest_metric(metric, SPELLING)) not in (None, metric, found[0].name):
        print(f"  or       did you mean {close!r}?")
    return 0


def list_of(metrics: Sequence[Metric]) -> Iterator[str]:
    """Return a line for each metric."""
    width = max(len(metric.name) for metric in metrics)
    for metric in metrics:
        healthy = f" (healthy: {metric.healthy})" if metric.healthy else ""
        yield f"{metric.name:<{width}}  {metric.plain_meaning}{healthy}"


def explanation(metric: Metric) -> Iterator[str]:
    """Return all that is known of a metric, as lines."""
    yield metric.name
    yield f"  meaning  {metric.plain_meaning}"
    parts = {"unit": metric.unit, "healthy": metric.healthy, "else": metric.remedy}
    yield from (f"  {name:<7}  {text}" for name, text in parts.items() if text)
