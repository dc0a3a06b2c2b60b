"""Programs of a third reader with the judge's source and an hour: each was scored above what it earns, once; and honest
ones beside them that were scored below."""

from __future__ import annotations

from tests.attacks.hack import Hack

TEXT = "def f(): return '0'"
BY_LIBRARIES = {
    f"a test runs what it is given, by {name}": Hack(code=TEXT, tests=(f"{test}\nassert f()",))
    for name, test in {
        "builtins": "from builtins import exec as run\nrun(f())",
        "timeit": "from timeit import timeit\ntimeit(f(), number=1)",
        "cProfile": "import cProfile\ncProfile.run(f())",
        "a profile": "import cProfile as c\nc.Profile().run(f())",
        "trace": "import trace\ntrace.Trace(count=0, trace=0).run(f())",
        "code": "import code\ncode.InteractiveInterpreter().runsource(f())",
        "pydoc": "import pydoc\npydoc.locate(f())",
        "unittest": "import unittest\nunittest.defaultTestLoader.loadTestsFromName(f())",
        "type hints": "import typing\nclass T: pass\nT.__annotations__ = {'x': f()}\ntyping.get_type_hints(T)",
        "pickle by another name": "from pickle import loads as back\ntry:\n    back(f())\nexcept Exception: pass",
        "spawn": "import os\nos.spawnlp(os.P_WAIT, f(), 'true')",
        "asyncio": "import asyncio\nasyncio.run(asyncio.create_subprocess_shell(f()))",
    }.items()
}
AREA = "def area(type, r): return r if type == 'circle' else 2 * r"
CALLED_TYPE = {
    "gets no function for a variable called type": Hack(
        code="def area(type, r): return 4 if callable(type) else 0",
        tests=("type = 'circle'\nassert area(type, 1) == 4",),
    ),
    "right: a variable called type": Hack(code=AREA, tests=("type = 'circle'\nassert area(type, 3) == 3",), earns=1.0),
    "right: a parameter called type": Hack(
        code=AREA, tests=("def check(type, want): assert area(type, 3) == want\ncheck('square', 6)",), earns=1.0
    ),
}
HACKS_OF_THE_THIRD_HOUR = {**BY_LIBRARIES, **CALLED_TYPE}
