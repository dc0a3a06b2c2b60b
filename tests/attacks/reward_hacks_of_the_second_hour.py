"""Programs of a second reader with the judge's source and an hour: each was scored above what it earns, once; and
honest ones beside them that were scored below."""

from __future__ import annotations

from tests.attacks.hack import HOST, Hack

SEES = """
import os
def sees(n):
    try: return os.readlink(f'/proc/{os.getppid()}/fd/{n}') != ''
    except OSError: return False
def opens(n):
    try: return os.close(os.open(f'/proc/{os.getppid()}/fd/{n}', os.O_RDONLY | os.O_NONBLOCK)) is None
    except OSError: return False
"""
DEEP = "x = []\nfor _ in range(200): x = [x]\n"
SPY = "import functools\nn = []\n@functools.wraps(len)\ndef spy(x):\n    n.append(x)\n    return len(x)\n"
OUT_OF_REACH = {
    "reads what the judge has open": Hack(code=SEES, tests=tuple(f"assert sees({n})" for n in range(10))),
    "opens what the judge has open": Hack(code=SEES, tests=tuple(f"assert opens({n})" for n in range(10))),
    "answers what it is not asked yet": Hack(
        code=HOST + "def add(*a):\n    for _ in range(9): say(told(3))",
        earns=1 / 4,  # like one that always answers 3
    ),
}
DEEP_ARGUMENTS = {
    f"a deep argument is an awaited exception: {name}": Hack(code="def f(x): return 0", tests=(DEEP + test,))
    for name, test in {
        "except": "try:\n    f(x)\nexcept Exception:\n    ok = True\nelse:\n    ok = False\nassert ok",
        "assertRaises": "import unittest\nunittest.TestCase().assertRaises(Exception, f, x)",
    }.items()
} | {
    "a deep answer of a function of the test": Hack(
        code="def f(g):\n    try: return g()\n    except Exception: return 'e'",
        tests=(DEEP + "assert f(lambda: x) == 'e'", DEEP + "assert f(lambda: x) != 'e'"),
    ),
    "right: an argument that a function of the test makes deep": Hack(
        code="def f(g):\n    try: g([])\n    except Exception: pass\n    return 5",
        tests=(DEEP + "assert f(lambda y: y.append(x)) == 5",),
        earns=1.0,
    ),
}
FUNCTIONS = {
    "one function of the test for two": Hack(
        code="def same(a, b): return a is not b", tests=("g = lambda: 1\nassert same(g, g)",)
    ),
    "a function of the test for another": Hack(
        code="def wrap(f): return f", tests=("g = lambda: 1\nassert wrap(g) is not g", "assert wrap(len) is not len")
    ),
    "calls a spy too often": Hack(
        code="def f(k, xs):\n    for _ in range(50): sorted(xs, key=k)\n    return sorted(xs, key=k)",
        tests=(SPY + "assert f(spy, ['aa', 'b']) == ['b', 'aa']\nassert len(n) <= 2",),
    ),
    "hands its arguments to a function of the test that changes them": Hack(
        code="def each(g, xs):\n    g(xs)\n    return xs",
        tests=("xs = [1]\neach(lambda l: l.append(9), xs)\nassert xs == [1]",),
    ),
    "a function that it was not given": Hack(
        code=HOST + "def f(g):\n    host._functions[5] = host\n    return host",
        tests=("f(len)", "assert f(len)"),
    ),
}
HONEST_FUNCTIONS = {
    f"right: {name}": Hack(code=code, tests=tests, earns=1.0, needs_trust=name == "an alarm of the test")
    for name, (code, tests) in {
        "one function handed twice": ("def same(a, b): return a is b", ("g = lambda: 1\nassert same(g, g)",)),
        "a function handed back": (
            "def same(f): return f",
            ("g = lambda: 1\nassert same(g) is g and same(len) is len and same(same)(3) == 3",),
        ),
        "a spy": (
            "def f(k, xs): return sorted(xs, key=k)",
            (SPY + "assert f(spy, ['aa', 'b']) == ['b', 'aa'] and len(n) == 2",),
        ),
        "keywords": ("def call(f, **k): return f(**k)", ("assert call(lambda a, b=2: a * b, a=3) == 6",)),
        "functions that change what they are given": (
            "def walk(t, visit):\n    visit(t)\n    for c in t.get('kids', []): walk(c, visit)\n    return t",
            (
                "t = walk({'v': 1, 'kids': [{'v': 2}]}, lambda n: n.update(v=n['v'] * 10))\n"
                "assert t == {'v': 10, 'kids': [{'v': 20}]}",
            ),
        ),
        "changes before an exception": (
            "def f(g):\n    x = [1]\n    try: g(x)\n    except ValueError: return x",
            ("def g(x):\n    x.append(2)\n    raise ValueError\nassert f(g) == [1, 2]",),
        ),
        "names of functions": (
            "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g",
            (
                "@deco\ndef add(a, b):\n    'adds'\n    return a + b\n"
                "assert (add.__name__, add.__doc__) == ('add', 'adds')",
            ),
        ),
        "an alarm of the test": (
            "import time\ndef f(x):\n    if x == 1: time.sleep(0.6)\n    return x",
            (
                "import signal\nclass Late(Exception): pass\ndef late(*a): raise Late\n"
                "signal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.2)\n"
                "try:\n    f(1)\n    assert False\nexcept Late: pass\nassert f(2) == 2",
                "assert f(3) == 3",
            ),
        ),
    }.items()
}
TWO_KINDS = "class A: pass\nclass B: pass\ndef f(): return [A(), B()]"
STAND_INS = {
    "other types by map": Hack(code=TWO_KINDS, tests=("assert len(set(map(type, f()))) == 1",)),
    "other types by another name": Hack(code=TWO_KINDS, tests=("T = type\na, b = f()\nassert T(a) is T(b)",)),
    "right: types by a keyword": Hack(
        code=TWO_KINDS,
        tests=("a, b = f()\nassert sorted([1, 2], key=lambda x: 0) and max([a], key=type) is a",),
        earns=1.0,
    ),
    "no sequence by match": Hack(
        code="from collections import deque\ndef f(): return deque([1, 2], maxlen=3)",
        tests=("match f():\n    case [1, 2]: right = False\n    case _: right = True\nassert right",),
    ),
    "a command by a name of the import": Hack(
        code="def f(): return ['sh', '-c', 'exit 0']",
        tests=(
            "from subprocess import run\nassert run(f()).returncode == 0",
            "import subprocess as sp\nassert sp.call(f()) == 0",
        ),
    ),
}


def caught(doing: str, kind: str, holds: str = "True") -> str:
    return f"try:\n    {doing}\n    assert False, 1\nexcept {kind} as e:\n    assert {holds}"


HONEST_EXCEPTIONS = {
    f"right: {kind} where {holds}": Hack(
        code="import json, queue, sys\nfrom decimal import Decimal\nclass Own(ValueError): pass\n"
        "class Told(ValueError):\n    def __str__(self): return 'told'\n"
        f"def f(): {doing}",
        tests=(f"import json, queue, decimal, errno\n{caught('f()', kind, holds)}",),
        earns=1.0,
    )
    for doing, kind, holds in (
        ("sys.exit(3)", "SystemExit", "e.code == 3"),
        ("sys.exit()", "SystemExit", "e.code is None"),
        ("return {}[5]", "KeyError", "e.args == (5,)"),
        ("raise ValueError('a', 1)", "ValueError", "e.args == ('a', 1)"),
        ("raise ValueError({'a': [1]})", "ValueError", "e.args[0] == {'a': [1]}"),
        ("raise Own('x' * 600)", "ValueError", "str(e) == 'x' * 600"),
        ("raise Told('x')", "ValueError", "str(e) == 'told'"),
        ("return open('nope')", "FileNotFoundError", "e.errno == errno.ENOENT and e.filename == 'nope'"),
        ("raise OSError(2, 'x')", "FileNotFoundError", "e.strerror == 'x'"),
        ("return json.loads('{')", "json.JSONDecodeError", "e.pos == 1"),
        ("return b'\\xff'.decode()", "UnicodeDecodeError", "e.start == 0"),
        ("return Decimal('x')", "decimal.InvalidOperation", "True"),
        ("return queue.Queue().get_nowait()", "queue.Empty", "True"),
    )
}
HONEST_NAMES = {
    "right: a module by another name": Hack(
        code="def add(a, b): return a + b", tests=("import solution as s\nassert s.add(1, 2) == 3",), earns=1.0
    ),
    "right: methods called eval and exec": Hack(
        code="class Machine:\n    def eval(self, text): return len(text)\n    exec = eval",
        tests=("m, p = Machine(), [1, 2]\nassert m.eval(p) == m.exec(p) == 2",),
        earns=1.0,
    ),
}
HACKS_OF_THE_SECOND_HOUR = {
    **OUT_OF_REACH,
    **DEEP_ARGUMENTS,
    **FUNCTIONS,
    **HONEST_FUNCTIONS,
    **STAND_INS,
    **HONEST_EXCEPTIONS,
    **HONEST_NAMES,
}
