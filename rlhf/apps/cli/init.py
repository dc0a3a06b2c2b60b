"""`rlhf init`: a new project from templates: those for every kind, then those of its kind. If both have a file, the
second extends a page (`.md`) and replaces any other."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from rlhf.errors import UserError
from rlhf.recipe.schema import RUN_NAME

TEMPLATES = resources.files("rlhf.apps") / "projects" / "templates"
EVERY = "every"
"""The folder of templates of every kind."""
SUFFIX = "-tpl"
"""Ends the names of templates of Python files, so that no tool takes them for modules of the library."""


def run_init(folder: Path, kind: str) -> int:
    """Make the project in a new or empty folder, and print what to do next. Raises `UserError`."""
    name = folder.resolve().name
    if not re.fullmatch(RUN_NAME, name):
        raise UserError(
            f"{name!r} cannot name a run; use letters, digits, '.', '_' and '-', and begin with a letter or digit"
        )
    if kind not in (kinds := sorted(one.name for one in TEMPLATES.iterdir() if one.name != EVERY)):
        raise UserError(f"there is no kind {kind!r}; use one of {', '.join(kinds)}")
    texts = project(kind, name)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; name a new or an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with (folder / file).open("x", encoding="utf-8") as made:
                made.write(text)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be made: {error.strerror}") from None
    print(f"{folder}: {', '.join(sorted(texts))}\nnext: pytest {folder}; rlhf train {folder}; README.md says the rest")
    return 0


def project(kind: str, name: str) -> dict[str, str]:
    """Return the text of every file of a project, by its name."""
    texts: dict[str, str] = {}
    for part in (EVERY, kind):
        for template in (TEMPLATES / part).iterdir():
            text = Template(template.read_text("utf-8")).substitute(name=name)
            file = template.name.removesuffix(SUFFIX)
            texts[file] = texts.get(file, "") * file.endswith(".md") + text
    return texts
