"""Writes the golden manifests anew: `python -m tests.apps.deploy.kubernetes`. Review the diff before you commit."""

from __future__ import annotations

from tests.apps.deploy.kubernetes.test_manifest import CASES, GOLDENS, without_recipe

for name, (job, overrides) in CASES.items():
    (GOLDENS / f"{name}.yaml").write_text(without_recipe(job, *overrides))
