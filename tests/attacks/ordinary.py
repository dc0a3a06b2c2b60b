"""Ordinary code and ordinary tests of it: what most rows of a data set are like."""

from __future__ import annotations

CODE = '''
import functools, itertools, re
from collections import Counter, defaultdict

def flat(xs):
    """The items of nested lists, one by one."""
    for x in xs:
        if isinstance(x, list):
            yield from flat(x)
        else:
            yield x

def numbered():
    sent = 0
    try:
        while True:
            try:
                got = yield sent
                sent = sent + 1 if got is None else got
            except ValueError:
                sent = -3
    finally:
        ENDED.append(sent)

ENDED = []

def ended():
    return ENDED

def grouped(xs, key):
    groups = defaultdict(list)
    for x in xs:
        groups[key(x)].append(x)
    return groups

def most_common(words, n=1):
    if n < 1:
        raise ValueError(f"n is {n}, and is to be at least 1")
    counted = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in counted[:n]]

def merged(first, second):
    result, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            result.append(first[i])
            i += 1
        else:
            result.append(second[j])
            j += 1
    return result + first[i:] + second[j:]

def without(xs, *values):
    xs[:] = [x for x in xs if x not in values]
    return xs

def retried(times, errors=(ValueError,)):
    def decorate(function):
        @functools.wraps(function)
        def call(*given, **named):
            for left in range(times - 1, -1, -1):
                try:
                    return function(*given, **named)
                except errors:
                    if left == 0:
                        raise
        return call
    return decorate

def spiral(grid):
    found = []
    grid = [list(row) for row in grid]
    while grid:
        found += grid.pop(0)
        grid = [list(row) for row in zip(*grid)][::-1]
    return found

class Empty(Exception):
    def __init__(self, name, size=0):
        super().__init__(f"{name} is empty")
        self.size = size

class Stack:
    made = 0

    def __init__(self, *values, limit=None):
        Stack.made += 1
        self._values, self.limit = list(values), limit

    @classmethod
    def of(cls, values):
        return cls(*values)

    @property
    def top(self):
        if not self._values:
            raise Empty("stack", len(self._values))
        return self._values[-1]

    def push(self, value):
        if self.limit is not None and len(self._values) >= self.limit:
            raise OverflowError("full")
        self._values.append(value)
        return self

    def pop(self):
        value = self.top
        del self._values[-1]
        return value

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return iter(self._values[::-1])

    def __contains__(self, value):
        return value in self._values

    def __getitem__(self, place):
        return self._values[place]

@functools.lru_cache(maxsize=None)
def paths(rows, columns):
    if rows == 1 or columns == 1:
        return 1
    return paths(rows - 1, columns) + paths(rows, columns - 1)

def parsed(text):
    match = re.fullmatch(r"(\\\\w+)=(-?\\\\d+)", text)
    return None if match is None else (match.group(1), int(match.group(2)))

def windows(xs, size):
    return [tuple(xs[at:at + size]) for at in range(len(xs) - size + 1)]

def totals(xs):
    return list(itertools.accumulate(xs))
'''.replace("\\\\", "\\")
TESTS = (
    "assert list(flat([1, [2, [3, []]], 4])) == [1, 2, 3, 4]",
    "import itertools\nassert list(itertools.islice(flat([[1, 2], 3]), 2)) == [1, 2]",
    "first, *others = flat([1, [2, 3]])\nassert first == 1 and others == [2, 3]",
    "assert sum(flat([1, [2]])) == 3 and max(flat([5, [7]])) == 7 and sorted(flat([3, [2]])) == [2, 3]",
    "assert ''.join(flat(['a', ['b']])) == 'ab' and next(flat([]), None) is None",
    "n = numbered()\nassert next(n) == 0 and next(n) == 1 and n.send(7) == 7 and n.throw(ValueError) == -3",
    "n = numbered()\nnext(n)\nn.close()\nassert ended() == [0] and list(n) == []",
    "n = numbered()\nassert [x for x, _ in zip(n, 'abc')] == [0, 1, 2]\ndel n\nassert len(ended()) == 1",
    "assert grouped(range(5), lambda x: x % 2) == {0: [0, 2, 4], 1: [1, 3]}",
    "groups = grouped(['a', 'bb', 'c'], len)\nassert list(groups) == [1, 2] and groups[1] == ['a', 'c']",
    "seen = []\ngrouped('ab', lambda x: seen.append(x))\nassert seen == ['a', 'b']",
    "assert most_common(['b', 'a', 'b']) == ['b'] and most_common(['b', 'a'], n=2) == ['a', 'b']",
    "try:\n    most_common([], 0)\nexcept ValueError as error:\n"
    "    assert str(error) == 'n is 0, and is to be at least 1'\nelse:\n    assert False, 'no error'",
    "import unittest\nclass TestMostCommon(unittest.TestCase):\n    def test_it_refuses(self):\n"
    "        with self.assertRaisesRegex(ValueError, 'n is -1'):\n            most_common('ab', -1)\n"
    "    def test_ties(self):\n        self.assertEqual(most_common('aabbc', 2), ['a', 'b'])",
    "a, b = [1, 4], [2, 3, 9]\nassert merged(a, b) == [1, 2, 3, 4, 9] and a == [1, 4] and b == [2, 3, 9]",
    "a = []\nassert merged(a, [1]) == [1] and merged(a, a) == [] and merged(a, a) is not a",
    "xs = [1, 2, 1, 3]\nassert without(xs, 1) is xs and xs == [2, 3] and without(xs) == [2, 3]",
    "def test_it_retries():\n    calls = []\n    @retried(3)\n    def fails():\n        calls.append(1)\n"
    "        if len(calls) < 3:\n            raise ValueError('x')\n        return 'done'\n"
    "    assert fails() == 'done' and len(calls) == 3 and fails.__name__ == 'fails'",
    "@retried(2, errors=(KeyError, OSError))\ndef fails(n, by=1):\n    calls.append(n + by)\n    raise KeyError(n)\n"
    "calls = []\ntry:\n    fails(1, by=4)\nexcept KeyError as error:\n    assert error.args == (1,)\n"
    "assert calls == [5, 5]",
    "@retried(5)\ndef fails():\n    calls.append(1)\n    raise TypeError\ncalls, raised = [], False\n"
    "try:\n    fails()\nexcept TypeError:\n    raised = True\nassert raised and len(calls) == 1",
    "grid = [[1, 2, 3], [4, 5, 6]]\nassert spiral(grid) == [1, 2, 3, 6, 5, 4] and grid == [[1, 2, 3], [4, 5, 6]]",
    "assert spiral([]) == [] and spiral([(1,), (2,)]) == [1, 2]",
    "s = Stack(1, 2)\nassert len(s) == 2 and list(s) == [2, 1] and 2 in s and 5 not in s and s[0] == 1 and s.top == 2",
    "s = Stack.of([1])\nassert s.push(2).push(3) is s and s.pop() == 3 and s.pop() == 2 and len(s) == 1",
    "try:\n    Stack().pop()\nexcept Empty as error:\n    assert str(error) == 'stack is empty' and error.size == 0\n"
    "else:\n    assert False",
    "import unittest\nclass TestStack(unittest.TestCase):\n    def setUp(self): self.stack = Stack(limit=1)\n"
    "    def test_full(self):\n        self.stack.push(1)\n"
    "        self.assertRaises(OverflowError, self.stack.push, 2)\n    def test_empty(self):\n"
    "        with self.assertRaises(Empty) as caught: self.stack.top\n"
    "        self.assertEqual(caught.exception.size, 0)\n        self.assertIsNone(Stack().limit)",
    "value = [1]\ns = Stack(value)\nvalue.append(2)\nassert s.top == [1, 2] and s.pop() is value",
    "before = Stack.made\nStack(), Stack()\nassert Stack.made - before == 2",
    "assert paths(3, 3) == 6 and paths(1, 9) == 1 and paths.cache_info().currsize > 0",
    "assert parsed('a=-3') == ('a', -3) and parsed('a=') is None and parsed(' a=1') is None",
    "assert windows('abcd', 2) == [('a', 'b'), ('b', 'c'), ('c', 'd')] and windows([1], 2) == []",
    "xs = [1, 2, 3]\nassert totals(xs) == [1, 3, 6] and totals([]) == [] and totals([0.5, 0.25]) == [0.5, 0.75]",
)
