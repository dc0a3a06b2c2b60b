"""No pickle of another process or file is opened by this project: every source is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

import rlhf
from rlhf.config import PlainLoader

ROOT = Path(rlhf.__file__).parent
UNPICKLERS = frozenset(
    ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "pandas", "multiprocessing")
)
"""Modules that open pickles or code objects, or send pickles to other processes."""
OWN_CHILDREN = {("rlhf/apps/gpu_checks/communication.py", "multiprocessing")}
"""A pool of processes that it starts itself, with arguments and results of its own."""
OWN_FUNCTIONS = {("rlhf/recipe/from_python.py", name) for name in ("cloudpickle", "pickle")}
"""It writes functions of the user's program to the user's own cache folder, for the run's processes."""
LOADERS = frozenset(("load", "loads", "Unpickler", "read_pickle"))
TORCH_LOADS = ("torch.load", "torch.jit.load", "torch.hub.load")
UNSAFE_YAML = ("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load")
OBJECTS = frozenset(("recv_obj", "broadcast_obj", "broadcast_object_list", "all_gather_object", "gather_object"))
"""Collectives of torch and vLLM that send pickles."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT.parent)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_nothing_that_opens_pickles_is_imported() -> None:
    found = {
        (file, name)
        for file, tree in sources()
        for name in imported(tree)
        if name.partition(".")[0] in UNPICKLERS or name in ("torch.multiprocessing", "numpy.load")
    }
    assert found == OWN_CHILDREN | OWN_FUNCTIONS


def test_nothing_is_loaded_by_a_call_that_unpickles() -> None:
    owners, found, loads = (*UNPICKLERS, "np", "numpy"), set(), 0
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                found.add((file, "allow_pickle"))
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            owner, _, name = called.rpartition(".")
            if owner and (name in OBJECTS or (name in LOADERS and owner.partition(".")[0] in owners)):
                found.add((file, called))
            if called in TORCH_LOADS:
                loads += 1
                if ("weights_only", "True") not in {(one.arg, ast.unparse(one.value)) for one in node.keywords}:
                    found.add((file, called))
            if called in UNSAFE_YAML:
                found.add((file, called))
    assert found == {("rlhf/config.py", "yaml.load")}
    assert issubclass(PlainLoader, yaml.SafeLoader)
    assert loads >= 2
