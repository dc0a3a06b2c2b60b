"""No pickle of another process or file is opened by this project: every source is read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rlhf

ROOT = Path(rlhf.__file__).parent
UNPICKLERS = frozenset(
    ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "pandas", "multiprocessing")
)
"""Modules that open pickles or code objects, or send pickles to other processes."""
OWN_CHILDREN = {("rlhf/commands/gpu_checks/communication.py", "multiprocessing")}
"""A pool of processes that it starts itself, with arguments and results of its own."""
LOADERS = frozenset(("load", "loads", "Unpickler", "read_pickle"))
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
    assert found == OWN_CHILDREN


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
