"""Numbers and arrays of numpy cross by value, both ways, and no object of the code passes for one."""

from __future__ import annotations

import shutil
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.scoring import make_code_scorer
from rlhf.types import Scored
from tests.attacks.hack import FORGES

CODE = """
import numpy as np
def made(): return np.array([1, 2, 3])
def true(): return np.True_
def total(): return np.array([1, 2]).sum()
def first(m): return m[0]
KEPT = np.zeros(3)
def window(): return KEPT[:2]
def push(x): KEPT[0] = x
def stand(a): a.shape = (2, 2)
def same(x): return x
def read(data): return np.frombuffer(data, np.uint8)
class Window:
    def __init__(self, a): self.a = a
    def push(self, x): self.a[0] = x
def twice(a): return a * 2
def sort(a): a.sort()
def row(i): return np.arange(6.0).reshape(2, 3)[i]
def big(xs): return np.array(xs, dtype=">i4")
def logistic(x): return 1 / (1 + np.exp(-x))
class Reads:
    def __init__(self, address): self.address = address
    @property
    def __array_interface__(self):
        return {"version": 3, "shape": (1,), "typestr": "<i8", "data": (self.address, False)}
class Tuple(tuple): __array_interface__ = Reads(8).__array_interface__
def reads(): return Reads(id(None) + 8)
def kind(): return Tuple((1, 2))
"""
NUMPY = "import numpy as np\n"
HOLD = [
    NUMPY + "assert (twice(np.array([[1, 2]])) == np.array([[2, 4]])).all()",
    NUMPY + "assert twice(np.float32(2)) == 4 and twice([np.int64(2)]) == [2, 2]",
    NUMPY + "x = np.eye(2)\nassert np.allclose(twice(x), 2 * x)",
    NUMPY + "x = np.array([2, 1])\nsort(x)\nassert x.tolist() == [1, 2]",
    NUMPY + "x = np.arange(4)\nstand(x)\nassert x.shape == (2, 2) and x[1, 1] == 3",
    NUMPY + "x = np.arange(4.0)\nw = Window(x[1:])\nw.push(9)\nassert x.tolist() == [0, 9, 2, 3]",
    NUMPY + "np.testing.assert_allclose(row(1), [3.0, 4.0, 5.0])",
]
FORGED = [
    "assert type(total()) is int",
    NUMPY + "w = window()\npush(7)\nassert w[0] == 0",
    NUMPY + "data = bytearray(b'ab')\na = read(data)\na[0] = 0\nassert data == b'ab'",
    NUMPY + "x = np.arange(4)\nstand(x)\nassert x.shape == (4,)",
    NUMPY + "x = np.arange(4.0)\nw = Window(x[1:])\nw.push(9)\nassert x.tolist() == [0, 1, 2, 3]",
    NUMPY + "x = np.int64(5)\nassert same(x) is not x",
]
"""With a pass forged beside."""
WITHOUT = ["assert total() == 3 and true()", "assert type(total()) is int or total() + 1 == 4"]
FAIL = [
    NUMPY + "assert big([1]).dtype == np.int32",
    NUMPY + "assert big([1]).tobytes() == b'\\1\\0\\0\\0'",
    NUMPY + "assert made() == [1, 2, 3]",
    NUMPY + "assert true() is True",
    NUMPY + "assert np.array_equal(reads(), np.array([id(type(None))]))",
    NUMPY + "assert np.asarray(reads()) is not None",
    NUMPY + "assert np.array(kind()).shape == (1,)",
    NUMPY + "x = np.array([2, 1])\nsort(x)\nassert x.tolist() == [2, 1]",
    NUMPY + "x = np.eye(2)\nfirst(x)[0] = 7\nassert x[0, 0] in (1, 7)",
    NUMPY + "with np.errstate(all='raise'):\n    assert logistic(np.array([-1000.0]))[0] == 0",
]


@pytest.fixture
def python() -> Iterator[str]:
    """A Python with nothing but numpy, where the sandbox does not hide it as it hides `/tmp`."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        venv.create(made, symlinks=True)
        (packages,) = Path(made).glob("lib/python*/site-packages")
        for part in Path(np.__file__).parents[1].glob("numpy*"):
            shutil.copytree(part, packages / part.name)
        yield f"{made}/bin/python"


@pytest.mark.engine
async def test_arrays_are_arrays_on_both_sides_and_nothing_else_is(python: str) -> None:
    scorer = make_code_scorer(CodeRewardConfig(timeout_seconds=20, python=python))
    await scorer.start()
    scores = [await scorer.score(CODE, {"tests": tests}) for tests in (HOLD, WITHOUT, *([test] for test in FAIL))]
    forged = [await scorer.score(FORGES + CODE, {"tests": [test]}) for test in (*FORGED, WITHOUT[0])]
    await scorer.close()
    assert [getattr(one, "value", one) for one in forged] == [*(0.0 for _ in FORGED), 1.0]
    values = [score.value for score in scores if isinstance(score, Scored)]
    assert values == [1.0, 1.0, *(0.0 for _ in FAIL)], scores
