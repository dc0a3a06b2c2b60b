"""What acts without being asked: descriptors, threads of the code, attributes of functions, the death of objects."""

from __future__ import annotations

from tests.attacks.hack import Hack

DESCRIPTORS = """
class Positive:
    def __set__(self, instance, value): raise ValueError
    def __get__(self, instance, owner): return 7
class Lazy:
    def __init__(self, function): self.function = function
    def __get__(self, instance, owner): return [self.function(instance)]
class Cached(Lazy):
    def __call__(self, *given): return self.function(*given)
class Counter:
    def __init__(self): self.n = 0
    def up(self): self.n += 1; return self.n
def double(x): return 2 * x
"""
MEANWHILE = """
import threading, time
def slept(seconds, sleep=time.sleep): return sleep(seconds)
def every(seconds, f, times):
    for n in range(times): threading.Timer(seconds * (n + 1), f).start()
def debounced(seconds, f):
    waiting = []
    def call(*given):
        for timer in waiting: timer.cancel()
        waiting[:] = [threading.Timer(seconds, f, given)]
        waiting[0].start()
    return call
def leaks():
    xs = [1]
    threading.Timer(0.05, xs.clear).start()
    return xs
def cached(f):
    f.cache = {}
    def call(x):
        if x not in f.cache: f.cache[x] = f(x)
        return f.cache[x]
    return call
def route(path):
    def mark(f):
        f.path, f.calls = path, getattr(f, "calls", 0) + 1
        return f
    return mark
def deep():
    xs = []
    for _ in range(200): xs = [xs]
    return xs
"""
DIES = """
import weakref
class T:
    alive = 0
    def __init__(self, v=0, parent=None):
        T.alive += 1
        self.v, self._parent = v, None if parent is None else weakref.ref(parent)
    def __del__(self): T.alive -= 1
    @property
    def parent(self): return self._parent()
    def me(self): return self
def alive(): return T.alive
closed = []
def lines():
    try:
        yield "a"
        yield "b"
    finally: closed.append(1)
def was_closed(): return closed
class Bus:
    def __init__(self, kind=weakref.WeakSet): self.listeners = kind()
    def on(self, f): self.listeners.add(f)
    def emit(self, x): return [f(x) for f in self.listeners]
    def first(self): return next(iter(self.listeners))
def strong(): return Bus(set)
class Error(Exception): pass
def fail(): raise Error(T(1))
def used(f):
    try: return f(T())
    except ValueError: return alive()
def same(x): return x
"""
AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
def run_all(fs, limit):
    threads = [threading.Thread(target=f) for f in fs]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return len(fs)
def mapped(f, xs):
    with ThreadPoolExecutor(4) as pool: return list(pool.map(f, xs))
def deep(depth, f):
    if depth == 0: return f([depth])
    return deep(depth - 1, f)
def safely(depth, f):
    try: return deep(depth, f)
    except RecursionError: return "too deep"
"""
CALLS = """
def by_name(f, **named): return f(**named)
def marked(f, name, value):
    f.__dict__[name] = value
    return f
"""
DRAWS = """
import random
def roll(): return random.randint(1, 6)
def shuffled(xs): return random.sample(xs, len(xs))
def draws(f): return [random.random(), f(), random.random()]
def ordered(xs):
    random.setstate((3, (0,) * 624 + (1,), None))
    return list(xs)
"""
HACKS_OF_LIFETIMES: dict[str, Hack] = {
    "is a descriptor, which acts in a class only": Hack(
        code=DESCRIPTORS,
        tests=(
            "class P:\n    x = Positive()\np = P()\np.x = 5\nassert p.x == 5",
            "class P:\n    @Lazy\n    def data(self): return 1\np = P()\nassert p.data is p.data",
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        class P:\n"
            "            x = Positive()\n        p = P()\n        p.x = 5\n        self.assertEqual(p.x, 5)",
            "class P: pass\nP.x = Positive()\np = P()\np.x = 5\nassert p.x == 5",
            "class P: pass\nsetattr(P, 'x', Lazy(len))\nassert P.x is P.x",
            "class P:\n    @Cached\n    def data(self): return 1\nassert P.data(4) == 1",
        ),
    ),
    "right: in a class of the test": Hack(
        code=DESCRIPTORS,
        tests=(
            "import unittest\nclass T(unittest.TestCase):\n    c, f = Counter(), staticmethod(double)\n"
            "    def setUp(self): self.own = Counter()\n    def test_it(self):\n"
            "        self.assertEqual((self.c.up(), self.own.up(), self.f(2)), (1, 1, 4))",
            "class Of:\n    c, f = Counter(), double\nassert Of().c.up() == 1 and Of.f(3) == 6",
            "class Of: pass\nOf.c, Of.f = Counter(), double\nassert Of().c.up() == 1 and Of.f(3) == 6",
            "f = Cached(double)\nassert callable(f) and f(3) == Cached(lambda x: x)(6)",
        ),
        earns=1.0,
    ),
    "goes on in threads while the test sleeps, or leaves something on its function": Hack(
        code=MEANWHILE,
        tests=(
            "import time\nn = []\nevery(0.02, lambda: n.append(1), 4)\ntime.sleep(0.2)\nassert len(n) == 1",
            "from time import sleep\nxs = leaks()\nsleep(0.2)\nassert xs == [1]",
            "def h(x): return x\ng = cached(h)\nassert g(1) == 1 and not hasattr(h, 'cache')",
            "def h(x): return x\ng = cached(h)\nassert g(1) == 1\nassert h.cache == {}",
            "xs = deep()\nassert not xs",
        ),
    ),
    "right: sleeps, and functions with attributes": Hack(
        code=MEANWHILE,
        tests=(
            "import time\nseen = []\nf = debounced(0.05, lambda x: seen.append(x))\nf(1)\nf(2)\n"
            "time.sleep(0.3)\nassert seen == [2]",
            "import time\nassert slept(0.01) is None is slept(0, time.sleep)",
            "import time\nbegan = time.monotonic()\nxs = leaks()\ntime.sleep(0.2)\n"
            "assert xs == [] and time.monotonic() - began >= 0.2",
            "@route('/x')\ndef home(): return 1\nassert home.path == '/x' and home() == 1",
            "def home(): return 1\nhome.calls, home.other = 4, home\n"
            "assert route('/y')(home) is home and home.calls == 5",
            "def h(x): return x\ng = cached(h)\nassert g(1) == 1 and h.cache == {1: 1}\n"
            "h.cache.clear()\nassert g(2) == 2 and h.cache == {2: 2}",
            "class Own: pass\ndef h(x): return 2 * x\nh.own = Own()\ng = cached(lambda x: h(x))\nassert g(4) == 8",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "keeps nothing that it needs": Hack(
        code=DIES,
        tests=(
            "assert T(2, T(1)).parent.v == 1",
            "t = T(2, T(1))\nassert alive() == 2",
            "assert alive() == 1 and T()",
            "b = Bus()\nb.on(lambda x: x + 1)\nassert b.emit(1) == [2]",
        ),
    ),
    "keeps what a test asks after by itself": Hack(
        code=DIES,
        tests=(
            "import weakref\nt = T()\nr = weakref.ref(t)\ndel t\nassert r() is None and alive() == 0",
            "from weakref import WeakValueDictionary\nts = WeakValueDictionary(a=T())\nassert alive() == len(ts)",
        ),
    ),
    "right: what nobody has is gone": Hack(
        code=DIES,
        tests=(
            "t = T()\nassert alive() == 1\ndel t\nassert alive() == 0",
            "p = T(1)\nt = T(2, p)\nassert t.parent is p and t.parent.v == 1 and t.me() is t and t.me().me().v == 2\n"
            "p = None\nassert t.parent is None and alive() == 1",
            "for line in lines():\n    break\nassert was_closed() == [1]",
            "t = None\nts = [T(n) for n in range(50)]\nassert [t.me().v for t in ts] == list(range(50))\n"
            "assert alive() == 50\n"
            "ts[10:] = []\nassert alive() >= 10\nassert alive() == 10 and ts[9].v == 9",
            "ts = []\ntry:\n    fail()\nexcept Error as error:\n    kept = error\n"
            "assert kept.args[0].v == 1 and alive() == 1",
            "b = Bus()\ndef f(x): return x + 1\nb.on(f)\nassert b.emit(1) == [2]\n"
            "assert b.first() is f and len(b.listeners) == 1\n"
            "g = b.first()\nf = None\nassert b.emit(2) == [3] and b.first() is g\nb.on(g)\ng = None\n"
            "assert b.emit(3) == []",
            "b = strong()\nb.on(lambda x: x + 1)\nassert b.emit(1) == b.emit(1) == [2]\nassert b.first() is b.first()\n"
            "g = b.first()\nassert g(4) == 5 and b.emit(2) == [3]\nb.on(g)\nassert len(b.listeners) == 1",
            "f = T\nassert f(3).v == 3 and f(4).me().v == 4 and [T(n).v for n in range(300)] == list(range(300))",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "right: what is taken out, or a function that failed had, is gone": Hack(
        code=DIES,
        tests=(
            "def bad(t): raise ValueError\nassert used(bad) == 1 and alive() == 0",
            "xs = [T(n) for n in range(5)]\nxs.pop()\nassert alive() == 4\nys = same(xs)\nassert ys is xs\ndel ys\n"
            "xs.clear()\nassert alive() == 0",
            "t = T()\nxs = same([t])\nt = None\nassert alive() == 1 == len(xs)\nxs = None\nassert alive() == 0",
            "d = {'a': T()}\nsame(d)\nassert alive() == 1\nd['a'] = None\nassert alive() == 0",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "right, but for a test whose function is never sent": Hack(
        code=DIES,
        tests=(
            "assert strong().on(lambda x: x, object()) is None",
            "b = strong()\nb.on(lambda x: x + 1)\nassert b.emit(1) == [2]",
            "def f(x): return x + 1\nb = Bus()\nb.on(f)\nassert b.first() is f",
        ),
        earns=2 / 3,
    ),
    "sets on a test's function what says of others how they are called": Hack(
        code=CALLS,
        tests=(
            "def g(a): return a\nmarked(g, '__signature__', 5)\n"
            "try:\n    by_name(g, a=3)\n    assert False\nexcept TypeError:\n    assert by_name",
            "def g(a): return a\nmarked(g, '__objclass__', 5)\n"
            "try:\n    by_name(g, a=3)\n    assert False\nexcept AttributeError:\n    assert by_name",
        ),
    ),
    "right: calls a test's function by the names of parameters": Hack(
        code=CALLS,
        tests=(
            "def g(a=1, b=2): return a, b\nassert by_name(g, b=5) == (1, 5) and by_name(g, a=5) == (5, 2)",
            "def g(a, b=2, c=3, *d, e=4, **f): return a, b, c, d, e, f\n"
            "assert by_name(g, a=0, c=5) == (0, 2, 5, (), 4, {})\n"
            "assert by_name(g, a=1, e=0, k=1) == (1, 2, 3, (), 0, {'k': 1})",
            "def g(a): return a\nmarked(g, '__signature__', None)\nmarked(g, '__objclass__', int)\n"
            "assert by_name(g, a=3) == 3 == marked(g, 'a', 1)(3)",
        ),
        earns=1.0,
    ),
    "runs at once what is to run two at a time": Hack(
        code=AT_ONCE,
        tests=(
            "import time\nn = peak = 0\ndef job():\n    global n, peak\n    n += 1\n    peak = max(peak, n)\n"
            "    time.sleep(0.05)\n    n -= 1\nassert run_all([job] * 6, 2) == 6 and peak <= 2",
        ),
    ),
    "right: calls a test's functions from threads, and from far down": Hack(
        code=AT_ONCE,
        tests=(
            "import time\nassert mapped(lambda x: 2 * x, range(50)) == list(range(0, 100, 2))\n"
            "assert mapped(lambda x: time.sleep(0.01) or x, [1]) == [1]",
            "for depth in range(970, 996):\n    assert safely(depth, lambda xs: [xs, [1]]) is not None",
            "xs = []\nassert deep(900, lambda ys: xs.append(ys) or xs) is xs and xs == [[0]]",
        ),
        earns=1.0,
    ),
    "chooses the numbers that tests draw": Hack(
        code=DRAWS,
        tests=(
            "import random\nrandom.seed(1)\nassert ordered([1]) == [1]\nxs = [random.random() for _ in range(9)]\n"
            "assert ordered(xs) == sorted(xs)",
        ),
    ),
    "right: draws from what tests have seeded": Hack(
        code=DRAWS,
        tests=(
            "import random\nrandom.seed(7)\nassert [roll() for _ in range(9)] == [3, 2, 4, 6, 1, 1, 5, 1, 3]",
            "from random import seed, randint\nseed(7)\nxs = [roll() for _ in range(20)]\nseed(7)\n"
            "assert xs == [randint(1, 6) for _ in range(20)]",
            "import random\nrandom.seed(3)\nxs = list(range(20))\nmixed = shuffled(xs)\nrandom.seed(3)\n"
            "assert mixed == random.sample(xs, 20) != shuffled(xs)",
            "import random\nrandom.seed(5)\nfirst, other = random.random(), roll()\nrandom.seed(5)\n"
            "assert (first, other) == (random.random(), random.randint(1, 6))",
            "def again():\n    random.seed(9)\n    return 0\nimport random\na, b, c = draws(again)\nrandom.seed(9)\n"
            "assert a != c == random.random()",
        ),
        earns=1.0,
        needs_trust=True,
    ),
}
