"""Carry over what a TRL program defines beside its settings, its data sets, and its reward functions with what they
use, as the source of a module. The program is parsed and not executed."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any

from rlhf.apps.translation.reading import Meaning, called_name
from rlhf.config import flatten
from rlhf.reward.config import combination

ANSWERS = ("answer", "solution", "ground_truth", "target", "label")
"""Columns of the reference answer, which reward functions name as parameters or keys, the likeliest first."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def carried_over(text: str, module: str, settings: Mapping[str, Any]) -> tuple[list[Meaning], str]:
    """Return what the arguments of a program's `GRPOTrainer` mean, and the source of the `module` that they name. What
    only a run would define is left out."""
    before, arguments = next(_trainers(ast.parse(text).body, []), ([], {}))
    kept, made, meanings = dict[int, str](), list[str](), list[Meaning]()

    def keep(statements: Sequence[ast.stmt]) -> None:
        kept.update((one.lineno, _source(text, one)) for one in statements)

    scorers = [_scorer(one, before, module) for one in _listed(arguments.get("reward_funcs"), before)]
    known = [one for one in scorers if one is not None]
    for _, statements, source in known if len(known) == len(scorers) else ():
        keep(statements)
        made += [source] if source else []
    if known and len(known) == len(scorers):
        meanings.append(_reward([scorer for scorer, _, _ in known], settings.get("reward_weights")))
    nodes = [node for _, statements, _ in known for one in statements for node in ast.walk(one)]
    columns = {
        one.arg if isinstance(one, ast.arg) else getattr(one, "value", None)
        for one in nodes
        if isinstance(one, ast.arg | ast.Constant)
    }
    answer = next((one for one in ANSWERS if one in columns), None)
    for argument, key in (("train_dataset", "train"), ("eval_dataset", "eval")):
        node = arguments.get(argument)
        if node is None or ast.unparse(node) == "None":
            continue
        if plain := _hub_set(_value(node, before)):
            values = {f"data.{key}.{name}": value for name, value in plain.items()}
            meanings.append(Meaning(names=(argument,), values=values | {f"data.{key}.answer_column": answer}))
        elif (needed := _needed([node], before)) is not None:
            outside: list[ast.stmt] = [one for one in needed if isinstance(one, DEFINITIONS)]
            outside += _needed(outside, before) or []
            keep(outside)
            given = {"rows": ast.unparse(node), "column": settings.get("dataset_prompt_column", "prompt")}
            given["statements"] = [indent(ast.unparse(one), "    ") for one in needed if one not in outside]
            made.append(tasks_source(f"{key}_tasks", answer, **given))
            meanings.append(Meaning(names=(argument,), values={f"data.{key}.tasks": f"{module}:{key}_tasks"}))
    imports = ["from rlhf.types import Message, Task"] if any("Task(" in one for one in made) else []
    written = [kept[line] for line in sorted(kept)]
    imports += [one for one in written if one.startswith(("import ", "from "))]
    return meanings, "\n".join(imports) + "".join(f"\n\n{one}\n" for one in [*written, *made] if one not in imports)


def tasks_source(name: str, answer: str | None, *, statements: Sequence[str], rows: str, column: str) -> str:
    """Return the source of a function that makes tasks of the rows that `statements` define."""
    read = "None" if answer is None else f"str(row[{answer!r}])"
    return "\n".join([
        f"def {name}():",
        '    """The rows of the data set, as tasks."""',
        *statements,
        f"    for place, row in enumerate({rows}):",
        f"        prompt = row[{column!r}]",
        '        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt',
        '        messages = tuple(Message(role=one["role"], content=one["content"]) for one in said)',
        f"        yield Task(id=str(place), messages=messages, answer={read}, row=row)",
    ])  # fmt: skip


def _trainers(body: Sequence[ast.stmt], outer: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], dict[str, ast.expr]]]:
    """Find the constructions of `GRPOTrainer`: the statements before one, also outside its function, and its
    arguments."""
    for place, one in enumerate(body):
        if isinstance(one, ast.FunctionDef | ast.If | ast.With | ast.Try):
            others = [other for other in body if not isinstance(other, ast.If)]
            around = others if isinstance(one, ast.FunctionDef) else body[:place]
            yield from _trainers(one.body, [*outer, *around])
            continue
        for call in ast.walk(one):
            if isinstance(call, ast.Call) and called_name(call) == "GRPOTrainer":
                yield [*outer, *body[:place]], {word.arg: word.value for word in call.keywords if word.arg}


def _scorer(
    node: ast.expr, before: Sequence[ast.stmt], module: str
) -> tuple[dict[str, Any], Sequence[ast.stmt], str] | None:
    """Return the scorer of one reward, the statements that it needs, and the source of one that has no name."""
    name = ast.unparse(node)
    if isinstance(node, ast.Constant):
        return {"kind": "model", "model": node.value}, (), ""
    if (needed := _needed([node], before)) is None:
        return None
    imported = [one for one in needed if isinstance(one, ast.ImportFrom) and name in _names(one)[0] and not one.level]
    if imported:
        original = next(one.name for one in imported[0].names if name in (one.asname, one.name))
        return {"kind": "function", "function": f"{imported[0].module}:{original}"}, (), ""
    if isinstance(node, ast.Name):
        return {"kind": "function", "function": f"{module}:{name}"}, needed, ""
    made = f"reward_{node.lineno}_{node.col_offset}"
    return {"kind": "function", "function": f"{module}:{made}"}, needed, f"{made} = {name}"


def _reward(scorers: Sequence[Mapping[str, Any]], weights: Any) -> Meaning:
    """Return one scorer, or the parts of several, with their weights; those that only a run would tell are left out."""
    names: tuple[str, ...] = ("reward_funcs", "reward_weights")
    if not isinstance(weights, list) or len(weights) != len(scorers):
        names, weights = ("reward_funcs",), [1.0] * len(scorers)
    parts = combination([{**one, "weight": weight} for one, weight in zip(scorers, weights, strict=True)])
    scorer = scorers[0] if weights == [1.0] else parts
    values = {f"reward.{key}": value for key, value in flatten(scorer)}
    return Meaning(names=names, values=values)


def _listed(node: ast.expr | None, before: Sequence[ast.stmt]) -> Sequence[ast.expr]:
    value = node and _value(node, before)
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [node] if node else []


def _value(node: ast.expr, before: Sequence[ast.stmt]) -> ast.expr:
    """Return the expression that a name stands for, where one statement alone gives its value."""
    if not isinstance(node, ast.Name):
        return node
    given = [one for one in before if node.id in _names(one)[0]]
    only = given[0] if len(given) == 1 else None
    return (
        _value(only.value, before) if isinstance(only, ast.Assign) and isinstance(only.targets[0], ast.Name) else node
    )


def _hub_set(node: ast.expr) -> dict[str, Any]:
    """Return path, name and split of a plain `load_dataset(…)`; empty for any other expression."""
    split: dict[str, Any] = {}
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        split, node = {"split": node.slice.value}, node.value
    if not isinstance(node, ast.Call) or called_name(node) != "load_dataset":
        return {}
    words = dict(zip(("path", "name"), node.args, strict=False)) | {one.arg or "**": one.value for one in node.keywords}
    values = {key: one.value for key, one in words.items() if isinstance(one, ast.Constant)} | split
    if "data_files" in values:
        values["path"] = values.pop("data_files")
    plain = all(isinstance(one, ast.Constant) for one in words.values())
    return values if plain and values.keys() <= {"path", "name", "split"} else {}


def _needed(nodes: Sequence[ast.AST], before: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """Return the statements that define what the nodes use, in order; None if only a run would define it."""
    wanted, found = {name for node in nodes for name in _names(node)[1]}, list[ast.stmt]()
    while len(more := [one for one in before if _names(one)[0] & wanted]) > len(found):
        found = more
        wanted.update(*(_names(one)[1] for one in found))
    defined = {*dir(builtins), "__name__", "__file__"}.union(*(_names(one)[0] for one in found))
    return found if wanted <= defined else None


def _names(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a statement defines or changes, and those that it uses."""
    tables = [symtable.symtable(ast.unparse(node), "program", "exec")]
    for table in tables:
        tables.extend(table.get_children())
    changed = {one.get_name() for one in tables[0].get_symbols() if one.is_assigned() or one.is_imported()}
    every = [(one, table is tables[0]) for table in tables for one in table.get_symbols() if one.is_referenced()]
    used = {one.get_name() for one, outermost in every if outermost or one.is_global()}
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            changed.add(name)
    return changed, used


def _source(text: str, statement: ast.stmt) -> str:
    """Return a statement as it is written, with decorators and comments; one of a function at the outermost level."""
    if statement.col_offset:
        return ast.unparse(statement)
    first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])
    return "\n".join(text.splitlines()[first - 1 : statement.end_lineno])
