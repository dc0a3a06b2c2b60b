"""What the site of `mkdocs.yml` adds to docs/: pages that are made when it is built, and links that also lead there.

README is its first page, and CONTRIBUTING, the notebook and the reference are pages too. The pages of docs/ are written
for GitHub: a link to another file of the repository, such as a recipe, leads to a page that shows this file.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "docs/quickstart.ipynb": "notebook.md"}
"""Files of the repository whose page has another name."""
REPOSITORY = {page: file for file, page in ELSEWHERE.items()}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)[^)#\s]+")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
API = {
    "python": "rlhf.Trainer rlhf.sweep rlhf.trainable rlhf.Callback rlhf.controller.run.Run"
    " rlhf.controller.provided_callbacks rlhf.runs.summary",
    "types": "rlhf.types",
    "protocols": "rlhf.protocols",
    "algorithms": "rlhf.trainer.losses rlhf.trainer.credit.estimators rlhf.trainer.batching.batch"
    " rlhf.trainer.credit.kl",
    "environments": "rlhf.env.client.pool rlhf.env.client.remote rlhf.env.adapters.as_gymnasium"
    " rlhf.env.adapters.blocking rlhf.sandbox.pool rlhf.sandbox.program",
    "errors": "rlhf.errors",
}
"""What a program of one's own imports, by page of the reference."""


class Examples(Extension, Preprocessor):
    """Shows the examples of docstrings, which begin with `>>>`, as code."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(self, "examples", 100)

    def run(self, lines: list[str]) -> list[str]:
        parts = groupby(lines, key=lambda line: line.startswith((">>> ", "... ")))
        return [line for code, part in parts for line in (["```pycon", *part, "```"] if code else part)]


def on_config(config: MkDocsConfig) -> None:
    config.markdown_extensions.append(Examples())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    made = {"index.md": (ROOT / "README.md").read_text(), "contributing.md": (ROOT / "CONTRIBUTING.md").read_text()}
    made["notebook.md"] = notebook(json.loads((ROOT / "docs/quickstart.ipynb").read_text())["cells"])
    made |= {file.src_uri: file.content_string for file in files.documentation_pages()}
    shown = {file for page, text in made.items() for file in linked(page, text) if page_of(file).startswith("files/")}
    made |= {page_of(file): source(file) for file in shown if (ROOT / file).is_file()}
    made["reference/options.md"] = options(ours("rlhf", "options"))
    made["reference/commands.md"] = ours("typer", "rlhf.apps.cli.main", "utils", "docs", "--name", "rlhf")
    for page, names in API.items():
        made[f"reference/{page}.md"] = f"# {page.capitalize()}\n" + "".join(f"\n::: {name}\n" for name in names.split())
    for page, text in made.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between files of the repository to their pages."""

    def led(link: re.Match[str]) -> str:
        return posixpath.relpath(
            page_of(target(page.file.src_uri, link[0])), posixpath.dirname(page.file.src_uri) or "."
        )

    parts = FENCED.split(markdown)
    if not page.file.src_uri.startswith(("reference/", "files/", "notebook")):
        parts[::2] = [LINK.sub(led, as_markdown_package_reads(part)) for part in parts[::2]]
    return "".join(parts)


def as_markdown_package_reads(prose: str) -> str:
    """What GitHub reads in another way than Python's `markdown`: blocks in a list, and pipes in the code of a table."""
    deeper = re.sub(r"^ {2,3}(?=\S)", "    ", prose, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), deeper)


def linked(page: str, text: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    return (target(page, link[0]) for prose in FENCED.split(text)[::2] for link in LINK.finditer(prose))


def target(page: str, link: str) -> str:
    """The path in the repository that a relative link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(REPOSITORY.get(page, f"docs/{page}")), link))


def page_of(file: str) -> str:
    """The page, or the picture, of the site that shows a file of the repository."""
    inside = file.removeprefix("docs/")
    return ELSEWHERE.get(file) or (inside if inside != file else f"files/{file}.md")


def source(file: str) -> str:
    """The page of a file of the repository."""
    return f"# {file}\n\n{fenced((ROOT / file).read_text(), Path(file).suffix.lstrip('.'))}\n"


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def notebook(cells: list[dict]) -> str:
    """The page of a notebook: its text, its code, and what the code printed."""
    page = []
    for cell in cells:
        text = "".join(cell["source"])
        page.append(text if cell["cell_type"] == "markdown" else fenced(text, "python"))
        page += [fenced("".join(output["text"]), "text") for output in cell.get("outputs", ())]
    return "\n\n".join(page) + "\n"


def ours(*module: str) -> str:
    """What a module prints in the environment of the library."""
    command = (ROOT / ".venv/bin/python", "-m", *module)
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def options(lines: str) -> str:
    """The page of every key of a recipe, from what `rlhf options` prints."""
    page = (
        "# Options of a recipe\n\n`rlhf options` prints the same: every key, its type, its default and its meaning.\n"
    )
    keys = sorted((line.split("\t") for line in lines.splitlines()), key=lambda key: "." in key[0])
    for part, within in groupby(keys, key=lambda key: key[0].split(".")[0] if "." in key[0] else "The whole run"):
        page += f"\n## {part}\n"
        for key, kind, default, meaning in within:
            page += f"\n#### `{key}` {{#{key}}}\n\n`{kind}`, default `{default}`\n\n{meaning}\n"
    return page
