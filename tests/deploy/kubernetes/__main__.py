"""Writes the golden manifests anew: `python -m tests.deploy.kubernetes`. Look at what changed before you commit it."""

from __future__ import annotations

from tests.deploy.kubernetes.test_manifest import CASES, GOLDENS, without_recipe

for name, (job, overrides) in CASES.items():
    (GOLDENS / f"{name}.yaml").write_text(without_recipe(job, *overrides))
