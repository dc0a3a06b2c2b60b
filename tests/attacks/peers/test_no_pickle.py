"""No pickle of another process or file is opened by this project: every source is read, and every import is made."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlhf

ROOT = Path(rlhf.__file__).parent
UNPICKLERS = frozenset(
    ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "pandas", "multiprocessing")
)
"""Modules that open pickles, or code objects, or speak to other processes by pickles."""
LOADERS = frozenset(("load", "loads", "Unpickler", "read_pickle"))
OBJECTS = frozenset(("recv_obj", "broadcast_obj", "broadcast_object_list", "all_gather_object", "gather_object"))
"""Collectives of torch and vLLM that send pickles."""
HEAVY = ("rlhf.rollout.vllm", "rlhf.weight_sync.receiver", "rlhf.weight_sync.nccl", "rlhf.weight_sync.reload",
         "rlhf.weight_sync.lora", "rlhf.weight_sync.rehearsal", "rlhf.weight_sync.vllm_worker", "rlhf.env.adapters",
         "rlhf.__main__", "rlhf.cluster.forking.ray_worker", "rlhf.reward.code.checking", "rlhf.sandbox")  # fmt: skip
"""What needs packages that a machine may not have, or is a program; their sources are read all the same."""

REBUILT = {("rlhf.weight_sync.cuda", "rebuild_cuda_tensor")}
"""Called with arguments whose classes are fixed there."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT.parent)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def torch_loads(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.jit.load", "torch.hub.load"):
            yield node


def test_nothing_that_opens_pickles_is_imported() -> None:
    found = {
        (file, name)
        for file, tree in sources()
        for name in imported(tree)
        if name.partition(".")[0] in UNPICKLERS or name in ("torch.multiprocessing", "numpy.load")
    }
    assert found == set()


def test_nothing_is_loaded_by_a_name_that_unpickles() -> None:
    owners = (*UNPICKLERS, "np", "numpy")
    found = set()
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner, name = ast.unparse(node.func.value), node.func.attr
                if name in OBJECTS or (name in LOADERS and owner.partition(".")[0] in owners):
                    found.add((file, owner, name))
    assert found == set()


def test_every_torch_load_reads_data_alone() -> None:
    loads = [(file, call) for file, tree in sources() for call in torch_loads(tree)]
    assert len(loads) >= 2
    for file, call in loads:
        assert ("weights_only", "True") in {(one.arg, ast.unparse(one.value)) for one in call.keywords}, file


def test_no_array_is_loaded_with_the_objects_in_it() -> None:
    assert not [
        file
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
    ]


def test_yaml_is_read_as_data() -> None:
    unsafe = {"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"}
    calls = [ast.unparse(node.func) for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not unsafe & set(calls)


@pytest.mark.engine
def test_no_module_has_a_name_that_unpickles() -> None:
    """As imported: whatever a name is called in the source, it is none of these functions."""
    import pickle

    import torch

    dangerous = {pickle.load, pickle.loads, pickle.Unpickler, torch.multiprocessing.reductions.rebuild_cuda_tensor}
    names = [found.name for found in pkgutil.walk_packages(rlhf.__path__, "rlhf.")]
    assert len(names) > 200
    for name in names:
        if not name.startswith(HEAVY):
            module = importlib.import_module(name)
            held = {key for key, value in vars(module).items() if callable(value) and _is_one_of(value, dangerous)}
            held -= {rebuilt for owner, rebuilt in REBUILT if owner == name}
            assert not held, f"{name} holds {held}"


def _is_one_of(value: object, dangerous: set[object]) -> bool:
    return any(value is one for one in dangerous)
