"""`python -m tests.house`: the house in numbers, held against their bounds; the last line is `RESULT {…}`.

Files and functions are counted in lines, docstrings and comments included. A circle is a set of modules that import one
another, directly or through others; imports inside functions count. A name clashes when two modules of `rlhf` define a
class, a type alias or a public function of that name. A small single-use file has fewer than 40 lines and one importer.
A token passes through the classes of `CONTAINERS` from vLLM's output to the loss; the list is checked against the code.
At most `SAME_NAMES` folders may have a module of the same name, except for the names that every part has.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = {
    "lines": 62_000, "test_lines": 62_000, "reward_code_lines": 1_045, "sandbox_lines": 1_920, "http_lines": 1_085,
    "env_lines": 4_640, "cluster_lines": 3_000, "gpu_checks_lines": 950, "planning_lines": 2_020, "containers": 11,
    "circles": 0, "clashes": 0, "small_single_use_files": 20, "modules": 8, "folders": 17, "layers": 14,
    "longest_file": 600, "longest_function": 60, "imports_in_functions_per_kloc": 1.7, "broad_excepts_per_kloc": 0.3,
}  # fmt: skip
FOLDERS = {
    "reward_code_lines": "reward/code", "sandbox_lines": "sandbox", "http_lines": "http", "env_lines": "env",
    "cluster_lines": "cluster", "gpu_checks_lines": "commands/gpu_checks", "planning_lines": "recipe/planning",
}  # fmt: skip
SMALL = 40
SAME_NAMES = 3
EVERYWHERE = {"config", "types", "server", "client", "wire", "__init__"}
CAMEL_CASE = re.compile(r"[A-Z]\w*[a-z]\w*")
BROAD = {"Exception", "BaseException"}
CONTAINERS = (
    "types.Completion", "rollout.context.Context", "types.Segment", "types.Trajectory", "types.Sample", "types.Group",
    "trainer.batching.batch.Batch", "trainer.batching.batch.PerToken", "trainer.batching.batch.MicroBatch",
    "trainer.batching.batch.Minibatch", "trainer.losses.actions.Actions",
)  # fmt: skip
"""The classes that hold a token, in order, from vLLM's output to the loss."""
BESIDE_THE_WAY = {
    "types.Prompt": "a request", "rollout.vllm.settings.GenerateRequest": "a request",
    "rollout.engine._Pending": "a request", "types.Failed": "not trained", "types.Filtered": "not trained",
    "types.SampledTokens": "of replies that are not complete",
    "rollout.vllm.sampled.SampledReply": "of replies that are not complete",
    "types.TokenLogprobs": "the canary's answer", "rollout.evaluation.SetResult": "of an evaluation",
    "types.TrainedSample": "the way back to the records",
    "trainer.rank_answers.RankAnswer": "the way back to the records",
    "trainer.batching.pairs.PairOfSegments": "of preference pairs", "trainer.offline.Recording": "of recorded episodes",
}  # fmt: skip
"""Other classes with per-token arrays, and what these are."""
TOKEN_MODULES = ("types.", "rollout.", "trainer.")
ENDPOINT = "rollout.endpoint."
"""An agent's conversations, from which it makes segments."""
TOKEN_FIELDS = {"token_ids", "input_ids", "logprobs", "behaviour_logprobs", "versions"}
Tree = dict[str, ast.Module]


def main() -> int:
    """Print every number and whether it exceeds its bound. Return 1 if one does."""
    package = ROOT / "rlhf"
    files = sorted(package.rglob("*.py"))
    trees = {_module(file): ast.parse(file.read_text()) for file in files}
    lines = {_module(file): len(file.read_text().splitlines()) for file in files}
    found = measured(package, trees, lines)
    for name, value in found.items():
        print(f"{name:<32}{value:g}" + ("" if value <= BOUNDS[name] else f"  (at most {BOUNDS[name]})"))
    crowded = {name: count for name, count in module_names(trees).items() if count > SAME_NAMES}
    for name, count in crowded.items():
        print(f"module name {name!r} stands in {count} folders  (at most {SAME_NAMES})")
    print("RESULT", json.dumps(found))
    return int(bool(crowded) or any(value > BOUNDS[name] for name, value in found.items()))


def measured(package: Path, trees: Tree, lines: Mapping[str, int]) -> dict[str, float]:
    """Return the numbers of `BOUNDS`, and print what is behind some of them."""
    thousands = sum(lines.values()) / 1000
    functions = {f"{module}.{f.name}": _length(f) for module, tree in trees.items() for f in _functions(tree)}
    _print_most("longest files", lines)
    _print_most("longest functions", functions)
    circles = circles_of(import_graph(trees))
    for circle in circles:
        print("circle:", " ".join(sorted(circle)))
    clashing = clashes(trees)
    for name, modules in clashing.items():
        print(f"{name} is defined in {', '.join(modules)}")
    unlisted = unlisted_containers(trees)
    for name in unlisted:
        print("container of tokens that tests/house.py does not list:", name)
    small = small_single_use_files(trees, lines)
    print("small files with one importer:", ", ".join(small))
    return {
        "lines": sum(lines.values()),
        "test_lines": _lines_below(ROOT / "tests"),
        **{name: _lines_below(package / folder) for name, folder in FOLDERS.items()},
        "containers": len(CONTAINERS) + len(unlisted),
        "circles": len(circles),
        "clashes": len(clashing),
        "small_single_use_files": len(small),
        "modules": len(list(package.glob("*.py"))),
        "folders": len([folder for folder in package.iterdir() if any(folder.glob("*.py"))]),
        "layers": layers(),
        "longest_file": max(lines.values()),
        "longest_function": max(functions.values()),
        "imports_in_functions_per_kloc": round(sum(map(imports_inside, trees.values())) / thousands, 2),
        "broad_excepts_per_kloc": round(sum(map(broad_excepts, trees.values())) / thousands, 2),
    }


def layers() -> int:
    """Of the import contract that holds the parts apart."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return max(len(one.get("layers", ())) for one in contracts)


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


def small_single_use_files(trees: Tree, lines: Mapping[str, int]) -> list[str]:
    """Modules of fewer than `SMALL` lines that exactly one other module imports."""
    importers = Counter(name for names in import_graph(trees).values() for name in names)
    return sorted(
        module for module, length in lines.items()
        if length < SMALL and importers[module] == 1 and not module.endswith("__init__")
    )  # fmt: skip


def unlisted_containers(trees: Tree) -> list[str]:
    """Classes outside the two lists that hold tokens, and listed classes that do not exist.

    A class holds tokens if it has a field of `TOKEN_FIELDS` or a field whose type is one of `CONTAINERS`.
    """
    classes = {
        f"{module.removeprefix('rlhf.')}.{node.name}": node
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    listed = {*CONTAINERS, *BESIDE_THE_WAY}
    types = {name.rpartition(".")[2] for name in CONTAINERS}
    holders = {
        name
        for name, node in classes.items()
        if name.startswith(TOKEN_MODULES) and not name.startswith(ENDPOINT) and _holds_tokens(node, types)
    }
    return sorted((holders - listed) | (listed - classes.keys()))


def _holds_tokens(node: ast.ClassDef, types: Container[str]) -> bool:
    fields = [(field.target, field.annotation) for field in node.body if isinstance(field, ast.AnnAssign)]
    return any(
        (isinstance(target, ast.Name) and target.id in TOKEN_FIELDS)
        or any(isinstance(part, ast.Name) and part.id in types for part in ast.walk(annotation))
        for target, annotation in fields
    )


def imports_inside(tree: ast.Module) -> int:
    """Import statements within functions."""
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for f in _functions(tree) for node in ast.walk(f))


def broad_excepts(tree: ast.Module) -> int:
    """`except Exception`, `except BaseException`, alone or among others, and a bare `except`."""
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    return sum(one.type is None or bool(_names(one.type) & BROAD) for one in handlers)


def _names(caught: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(caught) if isinstance(node, ast.Name)}


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


def _lines_below(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))


def _print_most(title: str, sizes: Mapping[str, int], count: int = 3) -> None:
    told = ", ".join(f"{name} {size}" for name, size in Counter(sizes).most_common(count))
    print(f"{title}: {told}")


if __name__ == "__main__":
    sys.exit(main())
