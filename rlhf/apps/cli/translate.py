"""Print the recipe that a configuration of another system becomes, and what became of its settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rlhf.apps.translation.translating import Translation, translated
from rlhf.config import dump_yaml, flatten, shown_value
from rlhf.errors import UserError

HEADINGS = {"taken": "taken", "same": "done here anyway", "without": "without a counterpart", "unknown": "UNKNOWN"}


def run_translate(configuration: Path, output: Path | None = None, gpus: int | None = None) -> int:
    """Print the recipe and, as comments, the account; or write the recipe to the new file `output`, and the program's
    own functions to a module beside it."""
    found = translated(configuration, gpus)
    beside = (Path() if output is None else output.parent) / f"{found.module}.py"
    for file in [] if output is None else [output, *([beside] if found.source else [])]:
        if file.exists():
            raise UserError(f"{file} exists; give --output in a folder without it, or another name")
    recipe = dump_yaml(dict(found.values), sort_keys=False, allow_unicode=True)
    recipe = f"# {configuration.name} of {found.title}, translated by `rlhf translate`.\n{recipe}"
    if output is None:
        print(recipe, *(f"# {line}".rstrip() for line in account_of(found)), sep="\n")
        if found.source:
            print(f"# --output writes {beside.name} too, with the functions that the recipe names")
        return 0
    output.write_text(recipe)
    if found.source:
        beside.write_text(f'"""From {configuration.name}, copied by `rlhf translate`."""\n\n{found.source}')
    written = f"{output} and {beside}" if found.source else str(output)
    print(*account_of(found), f"wrote {written}; check it with: rlhf check {output}", sep="\n")
    return 0


def account_of(found: Translation) -> Iterator[str]:
    """Iterate over the lines of the account: every setting by what became of it."""
    for outcome, heading in HEADINGS.items():
        rows = [row for row in found.rows if row.outcome == outcome]
        if rows:
            yield f"{heading} ({len(rows)})"
        for row in rows:
            names = [name for name in row.names if name in found.given]
            theirs = ", ".join(f"{found.spelled[name]} {shown_value(found.given[name])}" for name in names)
            ours = ", ".join(f"{key} {shown_value(value)}" for key, value in row.values.items())
            theirs = theirs or f"{', '.join(row.names)} (their default)"
            yield f"  {theirs} -> {ours}" if ours else f"  {theirs}"
            if row.why:
                yield f"      {row.why}"
    yield ""
    called = [value for key, value in flatten(found.values.get("reward", {})) if key.endswith("function")]
    packages = {re.split("[.:]", value)[0]: value for value in called}
    for name, function in packages.items():
        if name != found.module and not find_spec(name):
            yield f"{function} needs the module {name}, which is not here: pip install it, or add its file"
    if "trl.rewards:accuracy_reward" in called:
        yield "or instead of trl's accuracy_reward: reward.kind math, which compares with the answer as it does"
    if found.to_name:
        yield f"for you to name: {', '.join(found.to_name)}"
    if found.problem:
        yield f"the recipe is refused: {found.problem}"
