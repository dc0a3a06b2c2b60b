"""`python -m tests.house`: what is wrong with the house at any size, and its sizes; the last line is `RESULT {…}`.

Wrong are: an import that goes upwards in the layers of pyproject.toml, a circle of modules that import one another
(imports inside functions count), an import of `apps` by the core, a class, type alias or public function that two
modules define, a module name in more than `SAME_NAMES` folders, a function of more than 60 lines, and a private name
that is used outside its module, or one of another library outside a module called `…_internals`. Sizes are printed with
their change since the last release note, without a bound.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASED = {"lines": 60_690, "test_lines": 61_180, "files": 524, "containers": 18, "other_holders": 15}
"""The sizes at the last release note."""
LONGEST_FUNCTION = 60
SAME_NAMES = 3
EVERYWHERE = {"config", "types", "server", "client", "wire", "__init__"}
NO_LIBRARY = {"_replace", "_asdict", "_fields", "_exit", "_current_frames", "_run_exitfuncs"}
"""Private names of Python's own."""
ENTRY_POINTS = {"rlhf", "rlhf.__main__"}
CAMEL_CASE = re.compile(r"[A-Z]\w*[a-z]\w*")
CONTAINERS = (
    "types.Prompt", "engines.vllm.settings.GenerateRequest", "engines.vllm.sampled.SampledReply", "types.Completion",
    "rollout.context.Context", "types.Segment", "types.Trajectory", "types.Sample", "types.Group",
    "trainer.batching.batch.Batch", "trainer.batching.batch.MicroBatch", "trainer.losses.actions.Actions",
)  # fmt: skip
"""The classes through which a token's columns pass, from the task to the loss, as read by hand."""
TOKEN_MODULES = ("types.", "engines.", "rollout.", "trainer.")
TOKEN_FIELDS = {"token_ids", "input_ids", "logprobs", "behaviour_logprobs", "proximal_logprobs", "versions"}
Tree = dict[str, ast.Module]


def main() -> int:
    """Print the sizes and what is wrong. Return 1 if anything is."""
    files = sorted((ROOT / "rlhf").rglob("*.py"))
    trees = {_module(file): ast.parse(file.read_text()) for file in files}
    graph = import_graph(trees)
    wrong = {
        "upward_arrows": list(upward_arrows(graph, layers())),
        "circles": [" ".join(sorted(circle)) for circle in circles_of(graph)],
        "core_to_apps": [f"{one} -> {other}" for one, other in arrows(graph) if in_apps(other) and not in_apps(one)],
        "clashes": [f"{name} in {', '.join(modules)}" for name, modules in clashes(trees).items()],
        "crowded_names": [name for name, count in module_names(trees).items() if count > SAME_NAMES],
        "long_functions": list(long_functions(trees)),
        "private_names": [*private_names(trees), *foreign_names(trees)],
        "no_containers": sorted(set(CONTAINERS) - set(class_names(trees))),
    }
    for name, cases in wrong.items():
        print(f"{name:<20}{len(cases)}", *cases, sep="\n  " if cases else "")
    sizes = {
        "lines": _lines(files), "test_lines": _lines((ROOT / "tests").rglob("*.py")), "files": len(files),
        "containers": len(CONTAINERS), "other_holders": len(other_holders(trees)),
    }  # fmt: skip
    print("other classes with tokens:", *other_holders(trees))
    for room in sorted({file.relative_to(ROOT / "rlhf").parts[0] for file in files}):
        place = ROOT / "rlhf" / room
        print(f"{room:<20}{_lines([place] if place.is_file() else place.rglob('*.py'))}")
    for name, size in sizes.items():
        print(f"{name:<20}{size}  ({size - RELEASED[name]:+})")
    print("RESULT", json.dumps({**{name: len(cases) for name, cases in wrong.items()}, **sizes}))
    return int(any(wrong.values()))


def layers() -> list[list[str]]:
    """Return the layers of the import contract, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [re.findall(r"[\w.]+", layer) for layer in next(one["layers"] for one in contracts if "layers" in one)]


def upward_arrows(graph: Mapping[str, set[str]], floors: list[list[str]]) -> Iterator[str]:
    """Yield the imports that go to a higher layer."""
    floor = {room: place for place, rooms in enumerate(floors) for room in rooms}

    def of(module: str) -> int | None:
        parts = module.split(".")
        return next((floor[room] for i in range(len(parts), 1, -1) if (room := ".".join(parts[:i])) in floor), None)

    for one, other in arrows(graph):
        below, above = of(one), of(other)
        if below is not None and above is not None and above < below:
            yield f"{one} -> {other}"


def arrows(graph: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield each module with each that it imports."""
    return ((one, other) for one, others in graph.items() for other in sorted(others))


def in_apps(module: str) -> bool:
    return module.startswith("rlhf.apps") or module.removesuffix(".__init__") in ENTRY_POINTS


def class_names(trees: Tree) -> Iterator[str]:
    """Yield the classes of all modules, as `CONTAINERS` names them."""
    for module, tree in trees.items():
        yield from (f"{module.removeprefix('rlhf.')}.{one.name}" for one in tree.body if isinstance(one, ast.ClassDef))


def other_holders(trees: Tree) -> list[str]:
    """Return the classes that `CONTAINERS` does not list and that have a field of tokens, or of a listed class."""
    listed = {name.rpartition(".")[2] for name in CONTAINERS}
    found = []
    for module, tree in trees.items():
        name = module.removeprefix("rlhf.")
        for node in tree.body if name.startswith(("types", *TOKEN_MODULES)) else ():
            if isinstance(node, ast.ClassDef) and f"{name}.{node.name}" not in CONTAINERS:
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                words = {part.id for one in fields for part in ast.walk(one.annotation) if isinstance(part, ast.Name)}
                targets = {one.target.id for one in fields if isinstance(one.target, ast.Name)}
                found += [f"{name}.{node.name}"] if targets & TOKEN_FIELDS or words & listed else []
    return found


def long_functions(trees: Tree) -> Iterator[str]:
    for module, tree in trees.items():
        yield from (f"{module}.{f.name}" for f in _functions(tree) if _length(f) > LONGEST_FUNCTION)


def private_names(trees: Tree) -> Iterator[str]:
    """Yield the private names that a module imports from another module of `rlhf`."""
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlhf"):
                yield from (f"{module}: {alias.name}" for alias in node.names if re.match(r"_[a-z]", alias.name))


def foreign_names(trees: Tree) -> Iterator[str]:
    """Yield the private names of other libraries, and DeepSpeed's `ds_…`, outside the one module for each library."""
    nodes = [(module, node) for module, tree in trees.items() for node in ast.walk(tree)]
    own = {node.name for _, node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)} | NO_LIBRARY
    own |= {node.attr for _, node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
    for module, node in nodes:
        match node:
            case ast.ImportFrom(module=str(package), names=names) if not package.startswith(("rlhf", "__")):
                found = [*package.split("."), *(alias.name for alias in names)]
            case ast.Attribute(attr=name):
                found = [name]
            case _:
                continue
        private = (name for name in found if re.match(r"_[a-zA-Z]|ds_", name) and name not in own)
        yield from () if module.endswith("_internals") else (f"{module}: {name}" for name in private)


def module_names(trees: Tree) -> Counter[str]:
    """How many modules there are of a name."""
    return Counter(name for name in (module.rpartition(".")[2] for module in trees) if name not in EVERYWHERE)


def clashes(trees: Tree) -> dict[str, list[str]]:
    """Names that two or more modules define at their top, with these modules."""
    where: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for name in filter(None, map(_public_name, tree.body)):
            where[name].append(module)
    return {name: modules for name, modules in sorted(where.items()) if len(modules) > 1}


def _public_name(statement: ast.stmt) -> str:
    """The class, function or type alias that a statement defines; "" if it defines no public one."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return "" if name.startswith("_") else name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if CAMEL_CASE.fullmatch(name):
            return "" if isinstance(value, ast.Call) else name  # a call makes a TypeVar
        case _:
            return ""


def import_graph(trees: Tree) -> dict[str, set[str]]:
    """The modules of `rlhf` that each module imports, at its top or inside a function."""
    modules = {name.removesuffix(".__init__"): name for name in trees}
    return {module: {modules[name] for name in _imported(tree, modules)} - {module} for module, tree in trees.items()}


def circles_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected sets of two modules and more (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            cut = stack.index(module)
            circle, stack[cut:] = set(stack[cut:]), []
            found.extend([circle] if len(circle) > 1 else [])

    for module in graph:
        if module not in index:
            visit(module)
    return found


def _imported(tree: ast.AST, modules: Container[str]) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                imported = [alias.name for alias in names]
            case ast.ImportFrom(module=str(package), names=names):
                members = [f"{package}.{alias.name}" for alias in names]
                imported = [member if member in modules else package for member in members]
            case _:
                imported = list(_imported(node, modules))
        yield from (name for name in imported if name in modules)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those at the top and in classes; a function within one belongs to it."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (one for one in members if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def _lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


if __name__ == "__main__":
    sys.exit(main())
