"""`python -m tests.house`: the house in numbers, held against their bounds; the last line is `RESULT {…}`.

Files and functions are counted in lines, docstrings and comments included. A circle is a set of modules that import one
another at their top, directly or by others. Names are doubled when two modules of `rlhf` define a class, or a public
function at their top, of one name. Modules of one name stand in folders of different parts; more than `SAME_NAMES` are
too many, but for those that every part has.
"""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = {
    "modules": 8, "folders": 15, "layers": 14, "circles": 0, "longest_file": 400, "longest_function": 60,
    "doubled_classes": 0, "doubled_functions": 0, "imports_in_functions_per_kloc": 1.5, "broad_excepts_per_kloc": 0.3,
}  # fmt: skip
SAME_NAMES = 3
EVERYWHERE = {"config", "types", "server", "client", "wire", "__init__"}
BROAD = {"Exception", "BaseException"}
Tree = dict[str, ast.Module]


def main() -> int:
    """Print every number and what is beyond its bound; 1 where something is."""
    package = ROOT / "rlhf"
    files = sorted(package.rglob("*.py"))
    trees = {_module(file): ast.parse(file.read_text()) for file in files}
    lines = {_module(file): len(file.read_text().splitlines()) for file in files}
    found = measured(package, trees, lines)
    told = {
        name: f"{value:g}" + ("" if value <= BOUNDS[name] else f"  (at most {BOUNDS[name]})")
        for name, value in found.items()
    }
    for name, value in told.items():
        print(f"{name:<32}{value}")
    crowded = {name: count for name, count in module_names(trees).items() if count > SAME_NAMES}
    for name, count in crowded.items():
        print(f"module name {name!r} stands in {count} folders  (at most {SAME_NAMES})")
    print("RESULT", json.dumps(found))
    return int(bool(crowded) or any(value > BOUNDS[name] for name, value in found.items()))


def measured(package: Path, trees: Tree, lines: Mapping[str, int]) -> dict[str, float]:
    """The numbers of `BOUNDS`; what is behind some of them is printed."""
    thousands = sum(lines.values()) / 1000
    functions = {f"{module}.{f.name}": _length(f) for module, tree in trees.items() for f in _functions(tree)}
    _print_most("longest files", lines)
    _print_most("longest functions", functions)
    circles = circles_of(imports_at_the_top(trees))
    for circle in circles:
        print("circle:", " ".join(sorted(circle)))
    classes, public = doubled(trees, ast.ClassDef), doubled(trees, (ast.FunctionDef, ast.AsyncFunctionDef))
    for name, modules in [*classes.items(), *public.items()]:
        print(f"{name}: {', '.join(modules)}")
    return {
        "modules": len(list(package.glob("*.py"))),
        "folders": len([folder for folder in package.iterdir() if any(folder.glob("*.py"))]),
        "layers": layers(),
        "circles": len(circles),
        "longest_file": max(lines.values()),
        "longest_function": max(functions.values()),
        "doubled_classes": len(classes),
        "doubled_functions": len(public),
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


def doubled(trees: Tree, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> dict[str, list[str]]:
    """Names that two modules or more define at their top, and which."""
    where: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                where[node.name].append(module)  # type: ignore[attr-defined]
    return {name: modules for name, modules in sorted(where.items()) if len(modules) > 1}


def imports_inside(tree: ast.Module) -> int:
    """Import statements within functions."""
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for f in _functions(tree) for node in ast.walk(f))


def broad_excepts(tree: ast.Module) -> int:
    """`except Exception`, `except BaseException`, alone or among others, and a bare `except`."""
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    return sum(one.type is None or bool(_names(one.type) & BROAD) for one in handlers)


def _names(caught: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(caught) if isinstance(node, ast.Name)}


def imports_at_the_top(trees: Tree) -> dict[str, set[str]]:
    """Modules of `rlhf` that each imports when it is imported."""
    return {module: {name for name in _imported(tree) if name in trees} - {module} for module, tree in trees.items()}


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


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those at the top and in classes; a function within one belongs to it."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (one for one in members if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def _print_most(title: str, sizes: Mapping[str, int], count: int = 3) -> None:
    told = ", ".join(f"{name} {size}" for name, size in Counter(sizes).most_common(count))
    print(f"{title}: {told}")


if __name__ == "__main__":
    sys.exit(main())
