"""No program earns more from the code reward than its values are right, on any level, as any user."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rlhf.apps.checks.hostile_programs import hostile_programs
from rlhf.reward.code.config import CodeRewardConfig
from rlhf.reward.code.read_tests import PythonTests, read_tests
from rlhf.reward.code.scoring import CodeScorer
from rlhf.types import Scored
from tests.attacks.sandboxes import SandboxOf
from tests.sandbox.conftest import USERS, readable_python

TESTS = (
    "assert add(1, 2) == 3",
    "assert add(-1, 8) == 7",
    "assert add(2, 2) in [4]",
    "assert abs(add(3, 3) - 6) < 1e-9",
)
PAIRS = {"inputs": ["1 2\n", "-1 8\n", "2 2\n", "3 3\n"], "outputs": ["3\n", "7\n", "4\n", "6\n"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A program, its tests and the most that it may earn."""

    code: str
    tests: object = TESTS
    earns: float = 0.0


def attacks_on(*codes: str, tests: object = TESTS, earns: float = 0.0) -> list[Attack]:
    return [Attack(code=code, tests=tests, earns=earns) for code in codes]


def answering(*expressions: str, tests: object = TESTS, earns: float = 0.0) -> list[Attack]:
    return attacks_on(*(f"def add(*a, **k): return {one}" for one in expressions), tests=tests, earns=earns)


HAS_CHANNEL = """
import gc, json, os, sys
server = next(one for one in gc.get_objects() if type(one).__name__ == 'CodeServer')
program = sys.modules['__main__']
def say(line): os.write(server._pipe._writes.fileno(), line.encode() + b'\\n')
def add(a, b): return 0
"""
"""For programs that speak on the channel themselves."""


def saying(*answers: str, tests: object = TESTS, earns: float = 0.0) -> list[Attack]:
    """Programs that answer every call with a line of their own."""
    serve = "\nanswers = {!r}\nserver._pipe.send = lambda message: say(answers if type(message) is list else '\"\"')"
    return attacks_on(*(HAS_CHANNEL + serve.format(answer) for answer in answers), tests=tests, earns=earns)


EQUAL = """class Yes({}):
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __bool__ = lambda *a: True
    __sub__ = __rsub__ = __add__ = __abs__ = __getitem__ = __call__ = __float__ = lambda s, *a: s
    __hash__ = lambda s: 0
    __class__ = property(lambda s: int)
def add(*a): return Yes()"""
PARENT = "import ctypes, os, resource, signal, threading, time\nparent = f'/proc/{os.getppid()}'\n"
WEAK = ("try:\n    add(-1, None)\n    assert False\nexcept ValueError:\n    pass",)
LIST = ("xs = [3, 1]\nadd(xs, 0)\nassert xs == [1, 3]",)
ATTACKS: dict[str, list[Attack]] = {
    "end before the verdict": attacks_on(
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os\ndef add(*a): os._exit(0)",
        "def add(*a): raise SystemExit(0)",
        "def add(*a): raise KeyboardInterrupt",
        "import os\ndef add(*a): os.execv('/bin/true', ['true'])",
        "import os, atexit\natexit.register(lambda: os._exit(0))\nraise SystemExit",
        "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), os._exit(0))).start()\n"
        "def add(*a): time.sleep(1)",
        "import os, sys\nsys.excepthook = sys.unraisablehook = lambda *a: os._exit(0)\ndef add(*a): raise ValueError",
        "import os, sys\nsys.addaudithook(lambda e, a: os._exit(0) if 'exec' in e else None)",
        "import faulthandler\ndef add(*a): faulthandler._sigsegv()",
    ),
    "print a verdict": attacks_on(
        "for i in range(9): print('k' * 32, f'[{i}, \"\"]'); print(f'[{i}, \"\"]')",
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'[0, \"\"]\\n' * 9)\n    except OSError: pass",
        "import os\nfor pid in (os.getppid(), 1):\n    for fd in range(9):\n"
        "        try: open(f'/proc/{pid}/fd/{fd}', 'w').write('[0, \"\"]')\n        except OSError: pass",
        "print('x' * 5_000_000)\ndef add(*a): print('x' * 5_000_000)",
    ),
    "read the tests": attacks_on(
        "import gc\nfound = [o for o in gc.get_objects() if type(o) is dict and 'steps' in o]\n"
        "def add(*a): return found[0]['steps']",
        "import sys\nframe, seen = sys._getframe(), []\nwhile frame:\n    seen.append(dict(frame.f_locals))\n"
        "    frame = frame.f_back\ndef add(*a): return next(s['request'] for s in seen if 'request' in s)['steps']",
        f"{PARENT}def add(*a): return open(parent + '/mem', 'rb').read(1)",
        f"{PARENT}def add(*a): return open(parent + '/mem', 'r+b').write(b'x')",
        f"{PARENT}def add(*a): return open(parent + '/fd/0').read()",
        f"{PARENT}def add(*a): return ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 and 3",
        f"{PARENT}libc = ctypes.CDLL(None)\nvector = (ctypes.c_size_t * 2)(id(libc), 8)\n"
        "def add(*a): return 3 if libc.process_vm_readv(os.getppid(), vector, 1, vector, 1, 0) > 0 else 0",
        f"{PARENT}def add(*a): return ctypes.CDLL(None).syscall(438, os.pidfd_open(os.getppid()), 0, 0) >= 0 and 3",
        "import sys, os\ndef add(*a): return sys.stdin.read() or os.read(0, 9999)",
        "import os, glob\ndef add(*a): return [open(f).read() for f in glob.glob('/tmp/*') + os.listdir('.')]",
        "import solution\ndef add(*a): return solution.__dict__.get('expected')",
    ),
    "act on the process of the tests": attacks_on(
        f"{PARENT}def add(*a): os.kill(os.getppid(), signal.SIGKILL)",
        f"{PARENT}os.kill(os.getppid(), signal.SIGINT)",
        f"{PARENT}os.kill(0, signal.SIGKILL)",
        f"{PARENT}os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(0.2)\nos.kill(os.getppid(), signal.SIGCONT)",
        f"{PARENT}for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE):\n"
        "    try: resource.prlimit(os.getppid(), kind, (0, 0))\n    except OSError: pass",
        f"{PARENT}os.setpgid(0, 0)\ndef run():\n    while True: os.kill(os.getppid(), signal.SIGURG)\n"
        "threading.Thread(target=run, daemon=True).start()",
    ),
    "change Python for the tests": [
        *attacks_on(
            "import builtins\nfor name in ('abs', 'len', 'range', 'all', 'isinstance'):\n"
            "    setattr(builtins, name, lambda *a, **k: True)\ndef add(*a): return 0",
            "abs = len = sum = isinstance = lambda *a, **k: 0\nall = any = lambda *a: True\ndef add(*a): return 0",
            "__builtins__['AssertionError'] = type('A', (Exception,), {})\ndef add(*a): raise AssertionError",
            "import operator, math\noperator.eq = math.isclose = lambda *a, **k: True\ndef add(*a): return 0",
            "import json\njson.loads = json.load = lambda *a, **k: ['', 3, []]",
            "import json\njson.dumps = lambda *a, **k: '[\"\", 3, []]'\ndef add(*a): return 0",
            "import sys\nfor name in ('math', 'json', 'solution', 'builtins'): sys.modules[name] = object()",
            "import sys\nclass Hook:\n    def find_spec(s, *a): raise SystemExit\nsys.meta_path.insert(0, Hook())",
            "import sys\nrun = sys.modules['__main__']\nrun.failure = lambda *a: ''\ndef add(*a): return 0",
            "__name__ = 'tests'\n__spec__ = __loader__ = __builtins__ = {}\ndef add(*a): return 0",
        ),
        *attacks_on(  # 4 is right once
            "import ctypes\nctypes.c_int.from_address(id(3) + 24).value = 4\ndef add(*a): return 4", earns=0.25
        ),
    ],
    "leave files for the tests or later runs": attacks_on(
        "for name in ('math', 'json', 'typing', 'solution', 'unittest', 'pytest', 're'):\n"
        "    open(name + '.py', 'w').write('import os; os._exit(0)')\ndef add(*a): return 0",
        "import os\nos.makedirs('.local/lib/python3/site-packages', exist_ok=True)\n"
        "for name in ('sitecustomize.py', 'usercustomize.py', 'evil.pth', 'conftest.py', 'pytest.ini'):\n"
        "    open(name, 'w').write('import os; os._exit(0)')\ndef add(*a): return 0",
        "open('main.py', 'w').write('print(1)')\ndef add(*a): return 0",
        "import os\nos.environ.update(PYTHONPATH=os.getcwd(), LD_PRELOAD='./evil.so', PYTHONOPTIMIZE='2')\n"
        "def add(*a): return 0",
        "import os, shutil\nfor name in os.listdir('.'):\n    os.remove(name)\nos.symlink('/etc', 'main.py')",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\ndef add(*a): return 0",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: break\ndef add(*a): return 0",
    ),
    "answer what equals everything": [
        *attacks_on(*(EQUAL.format(base) for base in ("object", "int", "list"))),
        *attacks_on(f"{EQUAL.format('object')}\nyes = add\ndef add(*a): return [yes()] * 3"),
        *attacks_on(EQUAL.format("dict"), tests=("assert add(1, 2) == {'a': 1}", "assert not add(1, 2) != {}")),
        *attacks_on(
            EQUAL.format("object"), tests=("assert add(1, 2)", "assert 3 in add(1, 2)", "assert not add(1) < 0")
        ),
        *attacks_on(EQUAL.format("Exception") + "\nyes = Yes()\ndef add(*a): raise yes"),
        *attacks_on(
            "class Key(str):\n    __hash__ = lambda s: 0\n    __eq__ = lambda *a: True\n"
            "def add(*a): return {Key('x'): 1}",
            tests=("assert add(1, 2)['y'] == 1", "assert add(1, 2) == {'z': 1}"),
        ),
        *answering("NotImplemented", "add", "type"),
    ],
    "answer a number that is no number": [
        *answering(
            "float('nan')", "complex('nan')", "float('inf')", "1 << 4_000_000", "__import__('decimal').Decimal('NaN')"
        ),
        *answering("3.0 if a == (1, 2) else None", earns=0.25),  # 3.0 == 3, in Python too
        *answering("True", tests=([{"fn_name": "add", "input": [1, 0], "output": 1}])),
        *answering("1", "'True'", tests=([{"fn_name": "add", "input": [1, 0], "output": True}])),
        *answering("float('nan')", "'1.5'", "True", tests=([{"fn_name": "add", "input": [1, 0.5], "output": 1.5}])),
    ],
    "answer without end or bound": [
        *answering(
            "__import__('itertools').repeat(3)",
            "range(1 << 62)",
            "[0] * 5_000_000",
            "'x' * 5_000_000",
            "__import__('functools').reduce(lambda x, _: [x], range(5000), [])",
            "(lambda x: x.append(x) or x)([])",
            "{(): ()}[()]",
        ),
        *attacks_on("def add(*a):\n    while True: pass", tests=TESTS[:1]),
        *attacks_on("import sys\nsys.setrecursionlimit(10**9)\ndef add(*a): return add(*a)", tests=TESTS[:1]),
    ],
    "raise for the tests": [
        *attacks_on(
            "def add(*a): raise StopIteration",
            tests=("assert list(map(add, [1, 2], [3, 4])) == []", "assert all(add(n, n) for n in (1, 2))"),
        ),
        *attacks_on(
            "class ValueError(BaseException): pass\ndef add(*a): raise ValueError",
            "class Mine(TypeError):\n    __class__ = ValueError\ndef add(*a): raise Mine",
            f"{HAS_CHANNEL}def add(*a): raise program.Refused('x')",
            tests=WEAK,
        ),
        *attacks_on("def add(*a): raise AssertionError", "def add(*a): raise Exception('passed')", tests=WEAK),
    ],
    "speak on the channel": [
        *saying(
            '["", ["object", "x"], []]',
            '["", ["builtins.eval", "3"], []]',
            '["", ["int", "three"], []]',
            '["", {"value": 3}, []]',
            '["", ["set", [["list", []]]], []]',
            '["__import__", ["tuple", ["os"]], []]',
            '["object", 3, []]',
            '["", 3, [1, 2]]',
            "3",
            "[" * 100_000,
            '["", "\\ud800", []]',
            "9" * 5000,
        ),
        *saying('["", 3, []]', earns=0.25),  # it is right once
        *saying('["", null, [["dict", []]]]', tests=LIST),
        *attacks_on(f"{HAS_CHANNEL}say('[\"\", 3, []]')", f"{HAS_CHANNEL}say('[0, \"\"]')"),
        *attacks_on(f"{HAS_CHANNEL}def add(*a): say('[\"\", 3, []]' * 9); return 3", earns=0.25),
        *attacks_on(
            f"{HAS_CHANNEL}os.close(server._pipe._writes.fileno())",
            f"{HAS_CHANNEL}os.close(server._pipe._reads.fileno())",
        ),
    ],
}
STDIN_ATTACKS = attacks_on(
    "print(3)\nraise SystemExit(1)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    'import os\nfor fd in range(64):\n    try: os.write(fd, b\'["", "eJwz5gIAAEkAPg=="]\\n\' * 9)\n'
    "    except OSError: pass",
    "import os\nfor fd in range(9):\n"
    "    try: open(f'/proc/{os.getppid()}/fd/{fd}', 'w').write('[\"\", \"zz\"]\\n[\"\", 5]\\n[[[\\n')\n"
    "    except OSError: pass",
    "print('3\\n7\\n4\\n6')",
    "while True: print('3')",
    tests=PAIRS,
)
STDIN_ATTACKS += attacks_on(  # 3 is right once
    "import os\nif os.fork(): os._exit(0)\nos.setsid()\nprint(3)\nos._exit(1)", tests=PAIRS, earns=0.25
)
SCRIPT_ATTACKS = attacks_on(
    "import os; os._exit(0)",
    "import os\nclass Add:\n    def __init__(self, *a): os._exit(0)",
    "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit",
    "import os\nfor fd in range(1, 64):\n    try: os.write(fd, b'k' * 32 + b' [0, \"\"]\\n"
    "' + b'k' * 32 + b' [\"end\", \"\"]\\n')\n"
    "    except OSError: pass",
    'import sys\nsys.__stdout__.write(\'[0, ""]\\n["end", ""]\\n\')\nprint(\'["end", ""]\')',
    "import sys\nrun = sys.modules['__main__']\n"
    "for place in (0, 'end'): run.write_verdict(1, 'k' * 32, place)\nraise SystemExit",
    tests=("assert Add(1, 2) == Add(2, 1)",),
)


CONFIG = CodeRewardConfig(timeout_seconds=4.0, memory_mb=128)
RIGHT = attacks_on("def add(a, b): return a + b", earns=1.0)
HOSTILE = attacks_on(*(one.naming(["add"]) for one in hostile_programs().values()))


async def overpaid(level: str, user: str, attacks: Sequence[Attack]) -> list[str]:
    """The attacks that earn anything but what they may."""
    runner = SandboxOf(level, user, readable_python())
    scorer = CodeScorer(CONFIG, runner)
    await scorer.start()
    scores = await asyncio.gather(
        *(scorer.score(f"```python\n{one.code}\n```", {"tests": _row(one)}) for one in attacks)
    )
    await scorer.close()
    return [
        f"{one.code}\n{score}"
        for one, score in zip(attacks, scores, strict=True)
        if not isinstance(score, Scored) or score.value > one.earns or (one.earns == 1.0) > score.value
    ]


def _row(attack: Attack) -> object:
    return list(attack.tests) if isinstance(attack.tests, tuple) else attack.tests


@pytest.mark.engine
@pytest.mark.parametrize(
    ("level", "user"), [("bubblewrap", USERS[0]), pytest.param("landlock", USERS[-1], marks=pytest.mark.attack)]
)
async def test_no_program_earns_more_than_its_values(level: str, user: str) -> None:
    attacks = [one for group in ATTACKS.values() for one in group]
    forms = [read_tests({"tests": _row(one)}, CONFIG) for one in attacks]
    assert all(isinstance(tests, PythonTests) and tests.form == "values" for tests in forms)
    assert await overpaid(level, user, [*RIGHT, *attacks, *STDIN_ATTACKS, *HOSTILE]) == []


@pytest.mark.engine
async def test_beside_the_tests_an_exit_or_a_verdict_without_the_key_is_a_failure() -> None:
    right = attacks_on(
        "class Add:\n    def __init__(s, a, b): s.sum = a + b\n    def __eq__(s, o): return s.sum == o.sum",
        tests=SCRIPT_ATTACKS[0].tests,
        earns=1.0,
    )
    assert await overpaid("bubblewrap", USERS[0], [*right, *SCRIPT_ATTACKS]) == []
