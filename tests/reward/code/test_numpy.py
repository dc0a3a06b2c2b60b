"""Numbers and arrays of numpy cross by value, both ways, whether the tests import numpy or not."""

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

CODE = """
import numpy as np
def made(): return np.array([1, 2, 3])
def true(): return np.True_
def total(): return np.array([1, 2]).sum()
def twice(a): return a * 2
def same(*a): return a[0].copy(), *a
def sort(a): a.sort()
kept = np.zeros(2)
def keep(): return kept
def grow(a): a.resize(3, refcheck=False)
grid = np.arange(6.0).reshape(2, 3)
def row(i): return grid[i]
def rows(): return list(grid)
def total_of(a): return a.sum()
def turned(a): return a.T[::-1]
def big(xs): return np.array(xs, dtype=">i4")
def kind(a): return a.dtype.str
def wide(): return np.array(["a"], dtype="U10")
def logistic(x): return 1 / (1 + np.exp(-x))
def last_of_many(): return np.zeros(100_000)[-1:]
def frozen():
    a = np.zeros(3)
    a.setflags(write=False)
    return a
"""
HOLD = [
    "import numpy as np\nassert (twice(np.array([[1, 2]])) == np.array([[2, 4]])).all()",
    "import numpy as np\nassert twice(np.float32(2)) == 4 and twice([np.int64(2)]) == [2, 2]",
    "import numpy as np\nx = np.eye(2)\nassert np.allclose(twice(x), 2 * x)",
    "import numpy as np\nx = np.array([2, 1])\nsort(x)\nassert x.tolist() == [1, 2]",
    "import numpy as np\nx = keep()\nx[0] = 5\nassert keep().tolist() == [5, 0] and keep() is x",
    "import numpy as np\na = row(0)\na[1] = 9\nassert row(0)[1] == 9 and rows()[0][1] == 9 and total_of(a) == 11",
    "import numpy as np\na = rows()\na[1][:] = 0\nassert row(1).sum() == 0",
    "import numpy as np\nx = np.eye(3)\nt = turned(x)\nx[0, 0] = 7\nassert t.shape == (3, 3) and t[2, 0] == 7",
    "import numpy as np\nx = np.arange(4)\nv = x[1:3]\nsort(v[::-1])\nassert x.tolist() == [0, 2, 1, 3]",
    "assert last_of_many().tolist() == [0] and turned(row(0) + 1j).dtype.kind == 'c'",
    "try: frozen()[0] = 1\nexcept ValueError: assert frozen().tolist() == [0, 0, 0]\nelse: assert False",
    "import numpy as np\nx, y = np.eye(2), np.eye(3)\na, b, c = same(x, y)\nassert a is not x and b is x and c is y",
]
HOLD += [
    "import numpy as np\nx = np.array(['a', 'b'], dtype='U5')\nassert wide().dtype == 'U10' and kind(x)[1:] == 'U5'",
    "import numpy as np\nwith np.errstate(over='raise'):\n    try: logistic(np.array([-1000.0]))\n"
    "    except FloatingPointError: over = True\nassert over and logistic(np.array([-1000.0]))[0] == 0",
]
WITHOUT = [
    "assert total() == 3 and true() and made().tolist() == [1, 2, 3] and made().shape == (3,)",
    "assert (made() + made()).sum() == 12",
]
FAIL = [
    "import numpy as np\nassert big([1]).dtype == np.int32",
    "import numpy as np\nassert big([1]).tobytes() == b'\\1\\0\\0\\0'",
    "import numpy as np\ntry: twice(np.longdouble(1))\nexcept TypeError: taken = False\nassert not taken",
    "import numpy as np\nwith np.errstate(all='raise'):\n    assert logistic(np.array([-1000.0]))[0] == 0",
    "import numpy as np\nassert np.testing.assert_no_warnings(logistic, np.array([-1000.0]))[0] == 0",
    "assert made() == [1, 2, 3]",
    "assert made() + made() == [1, 2, 3, 1, 2, 3]",
    "assert true() is True",
    "assert made()",
    "a = row(0)\nb = a.copy()\na[1] += 1\nassert (row(0) == b).all()",
    "assert row(0) is row(1)",
    "import numpy as np\nx = np.array([2, 1])\nsort(x)\nassert x.tolist() == [2, 1]",
    "import numpy as np\nx = np.array([2, 1])\ngrow(x)\nassert x.tolist() == [2, 1]",
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


@pytest.mark.slow
async def test_arrays_are_arrays_on_both_sides_and_shared(python: str) -> None:
    scorer = make_code_scorer(CodeRewardConfig(timeout_seconds=20, python=python))
    await scorer.start()
    scores = [await scorer.score(CODE, {"tests": tests}) for tests in (HOLD, WITHOUT, FAIL)]
    await scorer.close()
    assert [score.value for score in scores if isinstance(score, Scored)] == [1.0, 1.0, 0.0], scores
