"""`python -m tests.goldens.gpu [--write]`: the configurations of all cases as JSON; `--write` makes them golden.

To be run when vLLM or DeepSpeed is changed, or a setting on GPUs on purpose; the difference is for a person to read.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.goldens.gpu.faked_cuda import be_in_a_ray_actor, see_gpus

NODE = 8


def main() -> None:
    """See the GPUs of one node, and ask for every case."""
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    see_gpus(NODE)
    be_in_a_ray_actor()
    from tests.goldens.gpu.cases import CASES, GOLDEN, engine_config, learner_config, model_folder, recipe_of

    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(Path(folder))
        recipes = {name: recipe_of(case) for name, case in CASES.items()}
        found = {
            name: {"engine": engine_config(recipe, model), "learner": learner_config(recipe, model)}
            for name, recipe in recipes.items()
        }
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if "--write" in sys.argv[1:]:
        GOLDEN.write_text(text)
    print(text, end="")


main()
