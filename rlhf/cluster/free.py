"""Free resources of a node while a plan is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf.cluster.resources import ROUNDING, Resources, Role


@dataclass(slots=True)
class Free:
    """Free cores, and the free share of each GPU. A worker takes whole GPUs, or a share of a single one."""

    cpus: float
    gpus: list[float]

    def room(self, role: Role) -> int:
        """Number of workers of a role that fit."""
        by_cores = math.floor((self.cpus + ROUNDING) / role.cpus) if role.cpus else role.count
        return min(by_cores, self._room_on_gpus(role.gpus) if role.gpus else role.count, role.count)

    def take(self, role: Role, count: int) -> None:
        """Assign resources to `count` workers; the caller has checked that they fit."""
        self.cpus -= count * role.cpus
        if role.gpus >= 1:
            whole = [at for at, share in enumerate(self.gpus) if share > 1 - ROUNDING]
            for at in whole[: count * math.ceil(role.gpus)]:
                self.gpus[at] = 0.0
        elif role.gpus:
            self._take_parts(role.gpus, count)

    def _room_on_gpus(self, asked: float) -> int:
        if asked >= 1:
            return sum(share > 1 - ROUNDING for share in self.gpus) // math.ceil(asked)
        return sum(_parts(share, asked) for share in self.gpus)

    def _take_parts(self, asked: float, count: int) -> None:
        """Takes shares from GPUs that are already in use first, so that whole GPUs stay free."""
        for at in sorted(range(len(self.gpus)), key=lambda at: self.gpus[at]):
            here = min(count, _parts(self.gpus[at], asked))
            self.gpus[at] -= here * asked
            count -= here


def free_of(node: Resources) -> Free:
    """The resources of a node of which nothing is taken yet."""
    return Free(node.cpus, [1.0] * math.floor(node.gpus + ROUNDING))


def _parts(share: float, asked: float) -> int:
    return math.floor((share + ROUNDING) / asked)
