"""The text of a row's tests decides in which form they run."""

from __future__ import annotations

import pytest

from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, read_tests

VALUES = [
    "assert add(1, 2) == 3",
    "stack = Stack()\nstack.push(1)\nassert stack.pop() == 1",
    "assert f(1) is None and f(2) is True",
    "assert isinstance(add(1, 2), int)",
    "import math\nassert math.isclose(area(1), math.pi)",
    "import unittest\nclass Cases(unittest.TestCase):\n    def test_one(self): self.assertEqual(add(1, 2), 3)",
    "import unittest\nclass Cases(unittest.TestCase):\n    def setUp(self): self.stack = Stack()\n"
    "    def test_one(self): self.assertEqual(self.stack.pop(), None)",
    "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
    "import pytest\ndef test_it():\n    with pytest.raises(ValueError, match='x'): f(-1)",
    "from solution import f\nimport pytest\ndef test_it():\n    assert f(2) == pytest.approx(1.5)",
    "for given, wanted in [(1, 2), (3, 4)]:\n    assert f(given) == wanted",
    "xs = [3, 1]\norder(xs)\nassert xs == [1, 3]",
    "assert sorted(map(f, [1, 2])) == [2, 3]",
    "assert all(is_prime(n) for n in [2, 3]) and len(set(f(2))) == 2",
    "text = f(1)\nassert text.startswith('a') and text == 'ab'",
]
SCRIPT = [
    "import random\nrng = random.Random(42)\nassert f(rng.randint(1, 9)) > 0",
    "import solution\nassert solution.f(2) == 3 and solution.Solution().g([1]) == [1]",
    "root = insert(insert(None, 5), 3)\nassert root.left.val == 3 and root.right is None",
    "assert total(Node(1, Node(2))) == 3",
    "assert Stack([1]) == Stack([1])",
    "stack = Stack()\nassert stack != None",
    "assert bool(Point(1, 2))",
    "assert (Point(1, 2) + Point(1, 2)).x == 2",
    "class Two(Stack):\n    pass\nassert Two().pop() == 1",
    "with Lock() as lock:\n    assert lock.held() == 1",
    "assert count_lines(open('x')) == 1",
    "assert eval(expression()) == 5",
    "a = make()\nb = make()\nassert a is not b",
    "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    greet()\nassert out.getvalue()",
    "node = reverse(build([1, 2]))\nout = []\nwhile node:\n    out.append(node.val)\n    node = node.next\n"
    "assert out == [2]",
    "def items(node):\n    out = []\n    while node: out.append(node.val)\n    return out\n"
    "assert items(build([1])) == [1]",
    "import asyncio\nassert asyncio.run(f()) == 1",
    "assert apply(lambda x: x, [1]) == [1]",
    "assert apply(len, [1]) == [1]",
    "def double(x): return 2 * x\nassert apply(double, [1]) == [2]",
    "@retry(3)\ndef g(): return 1\nassert g() == 1",
    "from solution import f, BadInput\nimport pytest\ndef test_it():\n    with pytest.raises(BadInput): f(1)",
    "try:\n    f(1)\nexcept BadInput:\n    pass\nelse:\n    raise AssertionError",
    "from unittest.mock import patch\nfrom solution import f\nwith patch('solution.g'):\n    assert f(1) == 2",
    "import numpy as np\nassert (f(np.zeros(2)) == np.ones(2)).all()",
    "import random\nrandom.seed(1)\nassert draw() == 3",
    "assert isinstance(make(), Stack)",
    "from solution import f\ndef test_it(capsys):\n    f()\n    assert capsys.readouterr().out == 'x'",
    "import pytest\nfrom solution import f\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): assert f(n) == n",
    "items = [1]\nbag = Bag(items)\nitems.append(2)\nassert bag.get() == [1]",
    "assert len(Stack()) == 0 and 1 not in Stack()",
    "import solution as s\nassert s.Point(1) == s.Point(1)",
    "import solution\nnode = solution.build([1])\nwhile node: node = node.next\nassert node is None",
    "assert sum([1, 2]) == 4",
    "assert f.__name__ == 'f' and f(1) == 2",
    "point = Point(1)\npoint.x = 5\nassert point.x == 5",
]


@pytest.mark.parametrize(("form", "text"), [*(("values", text) for text in VALUES), *(("script", t) for t in SCRIPT)])
def test_tests_run_apart_from_the_code_where_values_are_enough(form: str, text: str) -> None:
    tests = read_tests({"tests": text}, CodeRewardConfig())
    assert isinstance(tests, PythonTests)
    assert tests.form == form, tests.why
    assert bool(tests.why) == (form == "script")
