"""Write the list of metrics of docs/run-folder.md from the catalogue."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from rlhf.runs.metric_catalogue import Metric, catalogue

PAGE = Path(__file__).resolve().parents[1] / "docs" / "run-folder.md"
LIST = re.compile(r"(?<=## metrics\.jsonl\n\n)(?:(?:- |  ).*\n)+")


def listed() -> str:
    """Return the list, one item a metric or family."""
    return "".join(f"{item(one)}\n" for one in catalogue())


def item(metric: Metric) -> str:
    unit = f" ({metric.unit})" if metric.unit else ""
    healthy = f". Healthy: {metric.healthy}" if metric.healthy else ""
    text = f"- `{metric.name}`{unit}: {metric.meaning}{healthy}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(LIST.sub(lambda _: listed(), PAGE.read_text(), count=1))
