"""What is still free on a node while a plan is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf.cluster.resources import ROUNDING, Resources, Role


@dataclass(slots=True)
class Free:
    """Cores, and the share of each GPU: a worker takes whole GPUs, or a share of a single one."""

    cpus: float
    gpus: list[float]

    def room(self, role: Role) -> int:
        """How many workers of a role fit."""
        by_cores = math.floor((self.cpus + ROUNDING) / role.cpus) if role.cpus else role.count
        return min(by_cores, self._room_on_gpus(role.gpus) if role.gpus else role.count, role.count)

    def take(self, role: Role, count: int) -> None:
        """Give so many workers their places; there is room for them."""
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
        """GPUs that are in use already come first, so that whole ones stay whole."""
        for at in sorted(range(len(self.gpus)), key=lambda at: self.gpus[at]):
            here = min(count, _parts(self.gpus[at], asked))
            self.gpus[at] -= here * asked
            count -= here


def free_of(node: Resources) -> Free:
    return Free(node.cpus, [1.0] * math.floor(node.gpus + ROUNDING))


def _parts(share: float, asked: float) -> int:
    return math.floor((share + ROUNDING) / asked)
