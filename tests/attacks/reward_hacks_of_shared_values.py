"""What tests and code both have, and either changes: every program earns what it does in one Python."""

from __future__ import annotations

from tests.attacks.hack import Hack

KEEPS = "class Box:\n    def __init__(self, xs): self.xs = {xs}\n    def total(self): return sum(self.xs)\n"
STEPS = "def steps(n):\n    x = [0] * n\n    for i in range(n):\n        x[i] = 1\n        yield x"
STATE = """from collections import Counter, OrderedDict, defaultdict, deque
state = [deque([1], 2), Counter('aab'), OrderedDict(a=1, b=2), defaultdict(list), {1}, bytearray(b'x')]
def get(): return state
def show():
    d, c, o, f, s, b = state
    return [list(d), dict(c), list(o), dict(f), sorted(s), bytes(b)]
"""
SLOW = """import time
state = [0]
def slow():
    state.append(1)
    time.sleep(1.3)
    state.append(2)
    return [9]
def next_of(x): return x + 1
def get(): return state
"""
LEFT = """import signal
class Late(Exception): pass
def late(*given): raise Late
signal.signal(signal.SIGALRM, late)
s = get()
signal.alarm(1)
try:
    slow()
    assert False
except Late:
    pass
signal.alarm(0)
"""
LOW = """class Low(Exception):
    def __init__(self, need):
        super().__init__(f'need {need}')
        self.need = need
class Bad(ValueError):
    def __init__(self, a, b): self.a, self.b = a, b
    def __str__(self): return 'bad!'
def f(x):
    if x: raise Low(x)
    raise Bad(1, [2])
"""
SHARED = {
    "keeps a list that the test changes": Hack(
        code=KEEPS.format(xs="xs"), tests=("xs = [1, 2]\nb = Box(xs)\nxs.append(5)\nassert b.total() == 3",)
    ),
    "right: copies a list that the test changes": Hack(
        code=KEEPS.format(xs="list(xs)"),
        tests=(
            "xs = [1, 2]\nb = Box(xs)\nxs.append(5)\nassert b.total() == 3",
            "b = Box([1])\nb.xs.append(4)\nassert b.total() == 5 and b.xs is b.xs",
        ),
        earns=1.0,
    ),
    "one default list for all": Hack(
        code="def add(x, to=[]):\n    to.append(x)\n    return to",
        tests=("a = add(1)\nb = add(2)\nassert a == [1]", "assert add(3, []) == [3]"),
        earns=1 / 2,
    ),
    "one list, yielded as every step": Hack(code=STEPS, tests=("assert list(steps(2)) == [[1, 0], [1, 1]]",)),
    "right: one list, yielded and read at each step": Hack(
        code=STEPS, tests=("assert [list(one) for one in steps(2)] == [[1, 0], [1, 1]]",), earns=1.0
    ),
    "right: an iterator takes from its argument": Hack(
        code="def take(xs):\n    while xs: yield xs.pop()",
        tests=("xs = [1, 2]\nt = take(xs)\nassert next(t) == 2 and xs == [1]\nassert next(t) == 1 and xs == []",),
        earns=1.0,
    ),
    "right: a function of the test sees what changes, and changes it": Hack(
        code="def drain(queue, f):\n    out = []\n    while queue:\n        out.append(queue.pop(0))\n        f(out)\n"
        "    return out",
        tests=(
            "queue, seen = [2], []\ndef f(out):\n    seen.append(len(out))\n    if out[-1]: queue.append(out[-1] - 1)\n"
            "assert drain(queue, f) == [2, 1, 0] and seen == [1, 2, 3] and queue == []",
        ),
        earns=1.0,
    ),
    "hands a test's function one list again and again": Hack(
        code="def walk(n, visit):\n    path = []\n    for i in range(n):\n        path.append(i)\n        visit(path)",
        tests=("paths = []\nwalk(2, lambda path: paths.append(path))\nassert paths == [[0], [0, 1]]",),
    ),
    "right: variables that both change": Hack(
        code="known = []\ndef size(): return len(known)\ncache = {}\ndef get(k): return cache.setdefault(k, [])",
        tests=(
            "known.append(4)\nassert size() == 1\nknown.clear()\nassert size() == 0",
            "get('a').append(1)\nassert get('a') == [1] and get('a') is get('a')",
        ),
        earns=1.0,
    ),
    "right: every kind that can change": Hack(
        code=STATE,
        tests=(
            "a = get()\na[0].extend([2, 3])\na[1].update('a')\na[2].move_to_end('a')\na[3]['k'].append(1)\n"
            "a[4].add(9)\na[5] += b'y'\n"
            "assert show() == [[2, 3], {'a': 3, 'b': 1}, ['b', 'a'], {'k': [1]}, [1, 9], b'xy']\n"
            "assert get() is a and get()[3]['k'] is a[3]['k']",
        ),
        earns=1.0,
    ),
    "right: a list that holds itself": Hack(
        code="def f(xs):\n    xs.append(xs)\n    return xs",
        tests=("xs = [1]\nassert f(xs) is xs and xs[1] is xs",),
        earns=1.0,
    ),
    "right: a list of a named tuple": Hack(
        code="from collections import namedtuple\nP = namedtuple('P', 'xs n')\np = P([1], 2)\ndef get(): return p\n"
        "def total(p): return sum(p.xs)",
        tests=("p = get()\np.xs.append(4)\nassert total(p) == 5 and get().xs is p.xs",),
        earns=1.0,
    ),
    "right: objects as keys": Hack(
        code="class P: pass\np, xs = P(), [7]\ndef f(): return {p: xs}\ndef g(): return xs",
        tests=("assert len(f()) == 1 and list(f().values()) == [[7]]", "assert next(iter(f().values())) is g()"),
        earns=1.0,
        needs_trust=True,
    ),
    "right: what it has forgotten holds what cannot be sent": Hack(
        code="def f(xs): return sum(xs)",
        tests=("xs = [1]\nassert f(xs) == 1\nxs.append(object())\nassert f([2]) == 2 and f([3]) == 3",),
        earns=1.0,
    ),
    "what it keeps holds what cannot be sent": Hack(
        code="kept = []\ndef f(xs):\n    kept.append(xs)\n    return len(kept[0])",
        tests=("xs = [1]\nassert f(xs) == 1\nxs.append(object())\nassert f([2]) == 1",),
    ),
    "right: asked again after an alarm": Hack(
        code=SLOW,
        tests=(LEFT + "assert next_of(1) == 2 and s == [0, 1] and get() is s",),
        earns=1.0,
        needs_trust=True,
    ),
    "many large values, one changed late": Hack(
        code="kept = []\ndef keep(xs): kept.append(xs)\ndef total(): return sum(map(sum, kept))",
        tests=(
            "xs = [[1] * 1000 for _ in range(50)]\nfor x in xs: keep(x)\nfor _ in range(9): total()\nxs[3][4] = 7\n"
            "for _ in range(65): t = total()\nassert t == 50_000",
        ),
    ),
}
GRAPH = """from collections import defaultdict
def build(edges):
    g = defaultdict(lambda: [])
    for a, b in edges: g[a].append(b)
    return g
def first(g, a): return g[a][:1]
def more(x): return x + 1
def deep():
    x = []
    for _ in range(200): x = [x]
    return x
root = {}
def get(): return root
def insert(word, on):
    node = root
    for letter in word: node = node.setdefault(letter, {})
    on(word)
    return len(word)
"""
FORGOTTEN = {
    "right: a kind that only the test has": Hack(
        code=GRAPH,
        tests=(
            "g = build([(1, 2)])\nassert first(g, 1) == [2]\nfor x in range(9): assert more(x) == x + 1\n"
            "assert first(g, 1) == [2]",
        ),
        earns=1.0,
    ),
    "an answer that cannot be sent costs its own test alone": Hack(
        code=GRAPH,
        tests=(
            "g = [1]\nassert first({0: g}, 0) == [1]",
            "assert more(1) == 2",
            "assert deep() != 3",
            "assert first({0: g}, 0) == [1]",
            "assert first({0: g}, 0) == [1]",
        ),
        earns=4 / 5,
    ),
    "right: a callback while a value cannot be sent": Hack(
        code=GRAPH,
        tests=("r = get()\nassert insert('a' * 150, lambda word: None) == 150", "r = 0\nassert more(1) == 2"),
        earns=1.0,
    ),
    "right: an answer that is refused costs its own test alone": Hack(
        code="class P: pass\ndef f(): return [{P()}]\ndef g(): return 2",
        tests=("assert len(f()) == 1", "assert g() == 2", "assert [g(), g()] == [2, 2]"),
        earns=1.0,
        needs_trust=True,
    ),
    "a fixture that needs trust": Hack(
        code="opened = []\nclass Res:\n    def __init__(self): opened.append(1)\n    def read(self): return 'x'\n"
        "    def close(self): pass\ndef live(): return len(opened)",
        tests=(
            "import unittest, gc\nclass T(unittest.TestCase):\n    def setUp(self): self.r = Res()\n"
            "    def tearDown(self):\n        self.r.close()\n        gc.collect()\n"
            "        self.assertEqual(live(), 0)\n    def test_a(self): self.assertEqual(self.r.read(), 'x')\n"
            "    def test_b(self): self.assertEqual(self.r.read(), 'x')",
        ),
    ),
}
EXCEPTIONS = {
    "right: exceptions of its own": Hack(
        code=LOW,
        tests=(
            "try: f(3)\nexcept Exception as e:\n    assert type(e).__name__ == 'Low' and e.need == 3\n"
            "    assert e.args == ('need 3',) and str(e) == 'need 3' and not hasattr(e, 'b')\nelse: assert False",
            "try: f(0)\nexcept ValueError as e: assert e.b == [2] and e.args == (1, [2]) and str(e) == 'bad!'",
        ),
        earns=1.0,
    ),
    "exceptions of another name": Hack(
        code=LOW.replace("Low", "Lo").replace("self.need", "self.needed"),
        tests=(
            "try: f(3)\nexcept Exception as e: assert type(e).__name__ == 'Low'",
            "try: f(3)\nexcept Exception as e: assert e.need == 3",
            "try: f(3)\nexcept ValueError as e: assert True",
        ),
    ),
    "right: an exception of the test's own goes through": Hack(
        code="def again(f):\n    for _ in range(3):\n        try: return f()\n"
        "        except Exception as e: last = e\n    raise last",
        tests=(
            "class Own(Exception): pass\nkept = Own('x')\ndef bad(): raise kept\ntry: again(bad)\n"
            "except Own as e: assert e is kept\nelse: assert False",
        ),
        earns=1.0,
    ),
    "right: an exception of its own comes back to it": Hack(
        code="class Own(Exception): pass\ndef f(): raise Own('x')\ndef name(f):\n    try: f()\n"
        "    except Exception as e: return type(e).__name__",
        tests=(
            "try: f()\nexcept Own as e: kept = e\ndef bad(): raise kept\nassert name(bad) == 'Own'",
            "assert name(lambda: 1 / 0) == 'ZeroDivisionError'",
        ),
        earns=1.0,
    ),
    "an exception of the test's own that it never raised": Hack(
        code="def again(f):\n    e = Exception()\n    e._rlhf_own = 5\n    raise e",
        tests=("try: again(print)\nexcept Exception: assert again",),
    ),
}
NEG = """class Base(Exception): code = 1
class Neg(Base, ValueError):
    code = 7
    def __init__(self, x):
        super().__init__(f'neg {x}')
        self.x = x
class Other(Exception): pass
def f(x):
    if x < 0: raise Neg(x)
    if x > 9: raise Base('big')
    raise Other(x)
def safe(f, kinds):
    try: f()
    except kinds as e: return type(e).__name__, kinds is Neg
"""
AWAITED = {
    "right: its own classes of exceptions": Hack(
        code=NEG,
        tests=(
            "try: f(-4)\nexcept Neg as e:\n    assert e.args == ('neg -4',) and e.x == -4 and e.code == 7\n"
            "    assert type(e) is Neg and isinstance(e, Base) and isinstance(e, ValueError)\nelse: assert False",
            "try: f(10)\nexcept Neg: assert False\nexcept Base as e: assert e.code == Base.code == 1 and Neg.code == 7",
            "assert issubclass(Neg, ValueError) and not issubclass(Base, Neg) and not hasattr(Neg, 'x')",
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertRaises(Neg, f, -1)",
            "assert safe(lambda: int('x'), ValueError) == ('ValueError', False) and {Neg: 1}[Neg] == 1",
        ),
        earns=1.0,
    ),
    "another class of exceptions than is awaited": Hack(
        code=NEG,
        tests=(
            "try: f(1)\nexcept Neg: assert True",
            "try: f(1)\nexcept Exception as e: assert type(e) is Neg",
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertRaises(Neg, f, 10)",
            "def bad(): raise Neg(1)\nassert safe(bad, Neg) == ('Neg', True)",
        ),
        earns=1 / 4,
    ),
}
KINDS = """from collections import defaultdict, deque
class H(list): pass
h, d, q, keys = H([1]), defaultdict(lambda: 5, a=1), deque([1, 2, 3]), {1: 'a'}
class P: pass
p = P()
objects = {p: 1, 0: 2}
def get(name): return globals()[name]
def grow():
    h.append(9)
    d['z'] = 2
def names(): return d.keys()
def each(f):
    for x in q: f(x)
def change():
    del keys[1]
    keys[1.0] = 'a'
    objects[p] = 5
    objects[P()] = 6
"""
OF_KINDS = {
    "right: values of its own kinds": Hack(
        code=KINDS,
        tests=(
            "h, d, names_ = get('h'), get('d'), names()\ngrow()\nassert h == [1, 9] and h is get('h')\n"
            "assert d['z'] == 2 and list(names_) == ['a', 'z']",
            "d = get('d')\nd['q'] = 4\nassert get('d')['q'] == 4 and list(names()) == ['a', 'z', 'q']",
            "q = get('q')\ndef f(x): q[0] = x\neach(f)\nassert list(q) == [3, 2, 3]",
            "k, o = get('keys'), get('objects')\nchange()\nassert repr(k) == \"{1.0: 'a'}\"\n"
            "assert sorted(o.values()) == [2, 5, 6]",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "values of its own kinds change": Hack(
        code=KINDS,
        tests=(
            "h = get('h')\ngrow()\nassert h == [1]",
            "k = names()\nget('d')['k'] = 1\nassert list(k) == ['a', 'z']",
        ),
    ),
    "right: is what Python has": Hack(
        code="import operator\ndef add(): return operator.add\ndef most(): return max\ndef none(): return type(None)",
        tests=(
            "import operator\nassert add() is operator.add and add() is not operator.sub and most() is max",
            "assert none() is type(None)",
            "import unittest, operator\nclass T(unittest.TestCase):\n"
            "    def test_a(self): self.assertIs(add(), operator.add)\n"
            "    def test_b(self): self.assertIsNot(add(), operator.sub)",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "is not what Python has": Hack(
        code="import operator\ndef add(): return operator.sub\ndef most(): return min",
        tests=(
            "import operator\nassert add() is operator.add",
            "assert most() is not min",
            "import unittest, operator\nclass T(unittest.TestCase):\n"
            "    def test_a(self): self.assertIs(add(), operator.add)",
            "import unittest, operator\nclass T(unittest.TestCase):\n"
            "    def test_a(self): self.assertIsNot(add(), operator.sub)",
        ),
    ),
}
CLASSES = {
    "right: answers classes of Python's": Hack(
        code="def kind(x): return type(x)\ndef error(): return KeyError",
        tests=(
            "assert kind(3) is int and kind(3) is not float and {int: 1}[kind(3)] == 1",
            "assert error() is KeyError",
        ),
        earns=1.0,
    ),
    "answers other classes of Python's": Hack(
        code="def kind(x): return type(x)", tests=("assert kind(3) is not int", "assert kind(3) is str")
    ),
}
HACKS_OF_SHARED_VALUES = {**SHARED, **FORGOTTEN, **EXCEPTIONS, **AWAITED, **OF_KINDS, **CLASSES}
