"""`python -m tests.goldens.known_shapes --write`: what is kept of the well-known models, from their modules."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rlhf.recipe.model_configs import known_models
from tests.goldens.known_shapes.measured import measured

FILE = Path("rlhf/recipe/planning/known_shapes.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(measured(name, of)))}" for name, of in known_models().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
