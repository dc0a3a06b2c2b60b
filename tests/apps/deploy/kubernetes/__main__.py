"""Writes the golden manifest anew: `python -m tests.apps.deploy.kubernetes`. Review the diff before you commit."""

from __future__ import annotations

from tests.apps.deploy.kubernetes.test_manifest import CLUSTER, GOLDEN, GPUS, without_recipe

GOLDEN.write_text(without_recipe(CLUSTER, *GPUS))
