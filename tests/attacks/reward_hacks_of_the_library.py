"""What a test and the code have of one library: what a test sets in it, and what Python says over an object of the
code; and what happens where something of the code ends."""

from __future__ import annotations

from tests.attacks.hack import Hack

USES = """
import json, math, random, time
def retry(f, times):
    for _ in range(times):
        try: return f()
        except ValueError: time.sleep(0.01)
def now(): return int(time.time())
def area(r): return math.pi * r * r
def dump(x): return json.dumps(x)
def pick(x): return random.choice(x)
"""
NUMBERS = """
import csv
from decimal import Decimal
def third(): return Decimal(1) / Decimal(3)
def text(n): return str(n)
def rows(x, dialect): return list(csv.reader(x, dialect))
"""
OF_TESTS = """
import functools, inspect
from decimal import Decimal, getcontext
getcontext().prec = 50
OWN = getcontext()
def third(): return Decimal(1) / Decimal(3) if getcontext() is OWN else None
def wrap(f):
    try: return f()
    except Exception as error: raise type(error)(f"in f: {error}") from error
def again(f):
    try: return f()
    except Exception as error: raise error.__class__(*error.args)
def kind(f):
    try: return f()
    except Exception as error: return type(error)
def derived(f):
    class Derived(kind(f)): pass
    raise Derived("x")
def enforce(f):
    hints = f.__annotations__
    @functools.wraps(f)
    def call(*given):
        if not all(isinstance(value, hints[name]) for name, value in zip(hints, given)): raise TypeError
        return f(*given)
    return call
def same(f): return f
def defaults(f): return {name: one.default for name, one in inspect.signature(f).parameters.items()}
def parameters(f): return list(inspect.signature(f).parameters)
"""
ENDS = """
def lines(log):
    log.append("open")
    try:
        yield 1
        yield 2
    finally: log.append("close")
class Stream:
    def __init__(self, log): self.log = log
    def __iter__(self): return lines(self.log)
class Held:
    def __init__(self, log): self.log = log
    def __del__(self): self.log.append("gone")
class Box:
    def __init__(self, log):
        self.lines = lines(log)
        next(self.lines)
def told(f):
    try: yield 1
    finally: f("end")
def breaks():
    try: yield 1
    finally: raise ValueError
"""
SAYS = """
from collections import defaultdict
class Item: n = 3
class Word(str):
    def __eq__(self, other): return str.__eq__(self, other)
    __hash__ = str.__hash__
def find(): raise LookupError("none", Item())
def wrong():
    error = ValueError("x")
    error.detail = Item()
    raise error
def refuse(x): raise TypeError(f"no {x}")
def words(): return [Word("a"), Word("b")]
def count(): return defaultdict(lambda: 0, a=1)
"""
BOOM = "class Boom(Exception): pass\ndef f(): raise Boom('x')\n"
HACKS_OF_THE_LIBRARY: dict[str, Hack] = {
    "uses what a test replaces in the library": Hack(
        code=USES,
        tests=(
            "import time\ncalls = []\ntime.sleep = calls.append\ndef bad(): raise ValueError\nretry(bad, 3)\n"
            "assert calls == []",
            "import time\ntime.time = lambda: 5\nassert now() != 5",
            "import math\nsetattr(math, 'pi', 3)\nassert area(1) != 3",
            "import math as m\nm.pi = 3\nassert area(1) != 3",
            "import json\nvars(json)['dumps'] = len\nassert dump([]) == '[]'",
            "import json\njson.__dict__['dumps'] = len\nassert dump([]) == '[]'",
            "from json import JSONEncoder\ndel JSONEncoder.default\nassert dump(1) == '1'",
            "import csv\ncsv.register_dialect('own', delimiter=';')\nassert pick([1]) == 1",
            "import sqlite3\nsqlite3.connect('file.db')\nassert pick([1]) == 1",
            "import calendar\ncalendar.setfirstweekday(6)\nassert pick([1]) == 1",
        ),
    ),
    "is as exact as it likes": Hack(
        code=NUMBERS,
        tests=(
            "from decimal import getcontext\ngetcontext().prec = 5\nassert len(str(third())) == 30",
            "import sys\nsys.set_int_max_str_digits(640)\nassert len(text(10 ** 1000)) == 1001",
            "from decimal import getcontext, Inexact\ngetcontext().traps[Inexact] = True\nassert third()",
        ),
    ),
    "right: is as exact as a test says": Hack(
        code=NUMBERS,
        tests=(
            "from decimal import localcontext\nwith localcontext() as context:\n    context.prec = 4\n"
            "    assert str(third()) == '0.3333'\nassert len(str(third())) == 30",
            "import decimal\ndecimal.setcontext(decimal.Context(prec=7, rounding=decimal.ROUND_UP))\n"
            "assert str(third()) == '0.3333334'",
            "import sys\nsys.set_int_max_str_digits(0)\nassert text(10 ** 5000) == '1' + '0' * 5000",
            "import unittest\nunittest.TestCase.maxDiff = None\nclass T(unittest.TestCase):\n"
            "    def test_it(self): self.assertEqual(text(1), '1')",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "makes an exception of the test's another, or asks nothing of its annotations": Hack(
        code=OF_TESTS,
        tests=(
            f"{BOOM}try:\n    wrap(f)\nexcept Boom:\n    assert False\nexcept Exception:\n    own = True\nassert own",
            f"{BOOM}assert kind(f) is not Boom",
            f"{BOOM}try:\n    derived(f)\nexcept Boom:\n    own = False\nexcept Exception:\n    own = True\nassert own",
            "@enforce\ndef f(x: list[int]): return 2\nassert f([1, 2]) == 2",
            "import decimal\nwith decimal.localcontext() as own:\n    own.prec = 4\n    third()\n"
            "assert len(str(third())) == 30",
        ),
    ),
    "right: makes another exception of the test's, and asks for annotations": Hack(
        code=OF_TESTS,
        tests=(
            f"{BOOM}try:\n    wrap(f)\nexcept Boom as error:\n    assert str(error) == 'in f: x'\nelse:\n"
            "    assert False",
            f"{BOOM}try:\n    again(f)\nexcept Boom as error:\n    assert error.args == ('x',)\nelse:\n"
            "    assert False",
            f"{BOOM}assert kind(f) is Boom",
            "import unittest\nclass Boom(Exception): pass\ndef f(): raise Boom('x')\n"
            "class T(unittest.TestCase):\n    def test_it(self): self.assertRaises(Boom, derived, f)",
            "@enforce\ndef f(x: int) -> int: return 2\nassert f(1) == 2 and parameters(f) == ['x']",
            "def f(x=2, *, y='a'): return x, y\nassert defaults(f) == {'x': 2, 'y': 'a'} and wrap(f) == (2, 'a')",
            "@same\ndef f(x: list[int]): return 2\nassert f([1, 2]) == 2",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "ends later": Hack(
        code=ENDS,
        tests=(
            "log = []\nfor x in lines(log):\n    break\nassert log == ['open']",
            "log = []\nassert next(lines(log)) == 1 and log == ['open']",
            "log = []\nheld = Held(log)\ndel held\nassert log == []",
            "log = []\nbox = Box(log)\ndel box\nassert log == ['open']",
        ),
    ),
    "right: ends at once": Hack(
        code=ENDS,
        tests=(
            "log = []\nfor x in lines(log):\n    break\nassert log == ['open', 'close']",
            "log = []\nassert any(x == 1 for x in Stream(log)) and log == ['open', 'close']",
            "log = []\nassert list(zip([1], Stream(log))) == [(1, 1)] and log == ['open', 'close']",
            "log = []\nheld = Held(log)\nheld = None\nassert log == ['gone']",
            "log = []\nfor x in told(lambda x: log.append(x)):\n    break\nassert log == ['end']",
            "for x in breaks():\n    break\nassert x == 1",
            "log = []\nclass Own: held = Held(log)\ndel Own.held\nassert log == ['gone']",
        ),
        earns=1.0,
        needs_trust=True,
    ),
    "raises what is no value, and is what Python would take": Hack(
        code=SAYS,
        tests=(
            "try:\n    find()\nexcept LookupError as error:\n    assert len(error.args) == 1",
            "try:\n    wrong()\nexcept ValueError as error:\n    try:\n        error.detail\n"
            "    except AttributeError:\n        found = False\nassert not found",
            "try:\n    ','.join(words())\nexcept TypeError:\n    joined = False\nassert not joined",
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
            "        with self.assertRaises(TypeError): ','.join(words())",
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        for x in words()[2:]:\n"
            "            with self.assertRaises(TypeError): refuse(x)",
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
            "        self.assertRaises(TypeError, ','.join, words())",
            "try:\n    ','.join(words())\nexcept* TypeError:\n    joined = False\nassert not joined",
            "import contextlib\njoined = False\nwith contextlib.suppress(TypeError):\n    ','.join(words())\n"
            "    joined = True\nassert not joined",
            "try:\n    count().copy()['x']\nexcept KeyError:\n    found = False\nassert not found",
            "try:\n    (count() | {})['x']\nexcept KeyError:\n    found = False\nassert not found",
        ),
    ),
    "right: raises, and a test looks": Hack(
        code=SAYS,
        tests=(
            "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
            "        with self.assertRaises(TypeError) as caught: refuse(3)\n"
            "        self.assertEqual(caught.exception.args, ('no 3',))",
            "try:\n    find()\nexcept LookupError as error:\n    assert 'none' in str(error)",
            "from functools import partial\nassert partial(refuse, 3).args == (3,) and count()['a'] == 1",
            "print('a', end='', sep='')\nassert words() != 3",
        ),
        earns=1.0,
    ),
}
