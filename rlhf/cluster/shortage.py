"""Explains in one line why workers do not fit on nodes, and which settings to lower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlhf.cluster.resources import ROUNDING, Resources, Role, worker_name
from rlhf.errors import PlacementError


def check_totals(roles: Sequence[Role], nodes: Sequence[Resources]) -> None:
    """Check that all workers together do not ask for more than all nodes have. Raises `PlacementError`."""
    for unit, asked, there in (
        ("core", sum(role.count * role.cpus for role in roles), sum(node.cpus for node in nodes)),
        ("GPU", sum(role.count * role.gpus for role in roles), sum(node.gpus for node in nodes)),
    ):
        if asked > there + ROUNDING:
            asking = [role for role in roles if (role.cpus if unit == "core" else role.gpus) > 0]
            shortage = f"{_count(asked, unit)} asked, {_where(nodes)} {there:g}"
            raise PlacementError(f"{_shares(asking, unit)}: {shortage}{_lower(role.hint for role in asking)}")


def check_gpu_shares(roles: Sequence[Role]) -> None:
    """Check that a worker asks for whole GPUs, or for a share of a single one. Raises `PlacementError`."""
    for role in roles:
        if role.gpus > 1 and role.gpus % 1:
            raise PlacementError(
                f"{role.name} asks for {_count(role.gpus, 'GPU')}, and a worker has whole ones or a share of one; "
                f"change {role.size_hint or role.hint}"
            )


def check_workers_fit(roles: Sequence[Role], nodes: Sequence[Resources]) -> None:
    """Check that no worker is larger than the largest node. Raises `PlacementError`."""
    for role in roles:
        for unit, asked, largest in (
            ("GPU", role.gpus, max((node.gpus for node in nodes), default=0.0)),
            ("core", role.cpus, max((node.cpus for node in nodes), default=0.0)),
        ):
            if role.count and asked > largest + ROUNDING:
                missing, hint = f"more than {largest:g}", role.size_hint or role.hint
                raise _unplaced(role, 0, _count(asked, unit), nodes, missing, hint)


def no_node(role: Role, index: int, nodes: Sequence[Resources]) -> PlacementError:
    """The error for a worker that does not fit beside the other workers."""
    asked = _count(role.cpus, "core") + (f" and {_count(role.gpus, 'GPU')}" if role.gpus else "")
    return _unplaced(role, index, asked, nodes, "so much left", role.hint)


def _unplaced(
    role: Role, index: int, asked: str, nodes: Sequence[Resources], missing: str, hint: str
) -> PlacementError:
    needs = f"{worker_name(role.name, index)} needs {asked} on one node"
    return PlacementError(f"{needs}, and {_where(nodes)} no node with {missing}{_lower([hint])}")


def _shares(roles: Sequence[Role], unit: str) -> str:
    amounts = [(role, role.cpus if unit == "core" else role.gpus) for role in roles]
    return " and ".join(f"{role.count} {role.name} x {_count(amount, unit)}" for role, amount in amounts)


def _where(nodes: Sequence[Resources]) -> str:
    return "this machine has" if len(nodes) == 1 else f"the {len(nodes)} nodes have"


def _lower(hints: Iterable[str]) -> str:
    named = list(dict.fromkeys(hint for hint in hints if hint))
    return f"; lower {' or '.join(named)}" if named else ""


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}{'' if amount == 1 else 's'}"
