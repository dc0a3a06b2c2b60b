"""`rlhf translate` makes a recipe of another system's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlhf.recipe.translation.translating import Translation

HEADINGS = {
    "taken": "taken",
    "same": "done here anyway",
    "without": "without a counterpart",
    "unknown": "UNKNOWN: look them up",
}


def translate(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of TRL, verl or OpenRLHF.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file for the recipe.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that train, where CONFIG does not say (TRL).")] = None,
) -> None:
    """Translate TRL's GRPOConfig, verl's or OpenRLHF's arguments into a recipe, and say what became of each setting."""
    import yaml

    from rlhf.errors import UserError
    from rlhf.recipe.translation.translating import translated

    if output is not None and output.exists():
        raise UserError(f"{output} exists; give the name of a new file")
    found = translated(configuration, gpus)
    recipe = yaml.safe_dump(dict(found.values), sort_keys=False, allow_unicode=True)
    recipe = f"# {configuration.name} of {found.title}, translated by `rlhf translate`.\n{recipe}"
    if output is None:
        print(recipe, *(f"# {line}".rstrip() for line in account_of(found)), sep="\n")
        return
    output.write_text(recipe)
    print(*account_of(found), f"wrote {output}; check it with: rlhf check {output}", sep="\n")


def account_of(found: Translation) -> Iterator[str]:
    """Iterate over the lines of the account: every setting by what became of it."""
    for outcome, heading in HEADINGS.items():
        rows = [row for row in found.rows if row.outcome == outcome]
        if rows:
            yield f"{heading} ({len({name for row in rows for name in row.names if name in found.given})})"
        for row in rows:
            names = [name for name in row.names if name in found.given]
            theirs = ", ".join(f"{name} {shown(found.given[name])}" for name in names)
            ours = ", ".join(f"{key} {shown(value)}" for key, value in row.values.items())
            yield "  " + " -> ".join(filter(None, (theirs or f"{row.names[0]} (their default)", ours)))
            yield from [f"      {row.why}"] if row.why else []
    yield ""
    if found.to_name:
        yield f"for you to name: {', '.join(found.to_name)}"
    if found.problem:
        yield f"the recipe is refused: {found.problem}"


def shown(value: Any) -> str:
    """Return a value as a recipe writes it."""
    return str(value).lower() if isinstance(value, bool) else str(getattr(value, "source", value))
