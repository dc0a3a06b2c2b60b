"""`python -m tests.docs.notebook FILE [KEY=VALUE …]` runs the notebook of the quickstart, and writes it with what its
cells print to FILE. Settings replace those of the cell with the tag `parameters`, as papermill does."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output["text"])


async def run_in_a_loop(notebook: dict[str, Any], settings: list[str]) -> None:
    """Run every code cell in one namespace, in a running event loop, as Jupyter does."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        with redirect_stdout(StringIO()) as out:
            exec("".join(cell["source"]), names)
        if settings and "parameters" in cell["metadata"].get("tags", ()):
            names["settings"] = settings
        stream = {"output_type": "stream", "name": "stdout", "text": out.getvalue().splitlines(keepends=True)}
        cell |= {"execution_count": number, "outputs": [stream] if stream["text"] else []}


if __name__ == "__main__":
    notebook = json.loads(NOTEBOOK.read_text())
    asyncio.run(run_in_a_loop(notebook, sys.argv[2:]))
    Path(sys.argv[1]).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
