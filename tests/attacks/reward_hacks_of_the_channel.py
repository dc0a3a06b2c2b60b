"""Programs that speak on the channel between the code's process and that of the tests. Beside the tests they forge a
pass: how the run apart from the code takes what they say decides alone."""

from __future__ import annotations

from tests.attacks.hack import HOST, Hack

RIGHT = "def add(a, b): return a + b\n"
SURVIVES = "assert add(1, 2) == 3"
"""A right test after a forged one."""


def always(answer: str) -> Hack:
    """Answers every call with this."""
    return Hack(code=f"{HOST}\ndef add(*a): raise SystemExit\nwhenever(('call',), lambda right: {answer})")


def once(answer: str, test: str, *, code: str = "def f(*a): return 'forged'\n", alone: bool = False) -> Hack:
    """Answers each call of `f` with this, and others rightly: that costs its own test, if it is not `alone`."""
    code = f"{HOST}{RIGHT}class Low(ValueError): pass\n{code}"
    code += f"whenever(('call',), lambda right: {answer} if right.get('values') == 'forged' else right)"
    return Hack(code=code, tests=(test,) if alone else (test, SURVIVES), earns=0.0 if alone else 1 / 2)


def lying(operation: str, answer: str, *tests: str) -> Hack:
    """Answers each such operation with this."""
    code = f"{HOST}\nclass T:\n    x = 1\n    def __iter__(self): return iter([1, 2, 3])\ndef f(*a): return T()\n"
    return Hack(code=f"{code}whenever(('{operation}',), lambda right: {answer})", tests=tests)


VALUES = {
    "an object that is not there": "{'object': -5}",
    "an object by a huge number": "{'object': 10 ** 4000}",
    "an object by a truth": "{'object': True}",
    "an object by a fraction": "{'object': 0.5}",
    "an object by a text": "{'object': '0'}",
    "an object by a list": "{'object': [0]}",
    "a module": "{'module': 'rlhf.evil'}",
    "a named function": "{'named': ['os', '_exit']}",
    "a function of the test": "{'function': 0}",
    "two kinds at once": "{'int': '0x3', 'tuple': []}",
    "no kind": "{}",
    "an unknown kind": "{'__class__': 'int'}",
    "a raw list": "[3]",
    "a number as text": "{'int': 3}",
    "a number of 4,200 digits": "10 ** 4200",
    "an unhashable key": "paired([listed(), 1])",
    "keys that are equal": "paired([1, 3], [True, 3], [1.0, 3])",
    "a pair of three": "paired([1, 2, 3])",
    "pairs that are a dictionary": "{'dict': [next(odd), None, {'ab': 3}]}",
    "an unhashable member": "{'set': [next(odd), None, [paired()]]}",
    "a frozen set of what cannot be hashed": "{'frozenset': [listed()]}",
    "a frozen set of objects": "{'frozenset': [{'object': 1}]}",
    "a key of its own kind of text": "paired([{'kind': ['a', 0]}, 3], ['a', 3])",
    "no kind of bytes": "{'bytes': 5}",
    "bytes beyond latin": "{'bytes': chr(9999)}",
    "bytes that change, beyond latin": "{'bytearray': [next(odd), None, chr(9999)]}",
    "a fraction of nothing": "{'Fraction': ['0x1', '0x0']}",
    "a range without step": "{'range': ['0', '9', '0']}",
    "a complex of three": "{'complex': [1, 2, 3]}",
    "no decimal": "{'Decimal': 'x'}",
    "a decimal that signals": "{'Decimal': 'sNaN'}",
    "a list without a content": "{'list': [next(odd), None]}",
    "a list without a number": "{'list': [None, None, [3]]}",
    "a list by a number of the tests": "{'list': [1 << 20, None, [3]]}",
    "a list by a truth": "{'list': [True, None, [3]]}",
    "a list by a fraction": "{'list': [1.5, None, [3]]}",
    "a list by a number below all": "{'list': [-10 ** 4000 - 1, None, [3]]}",
    "two lists by one number": "{'tuple': [{'list': [7, None, [3]]}, {'list': [7, None, [4]]}]}",
    "one list by one number, again and again": "{'list': [7, None, [3]]}",
    "a list that is a text": "{'list': [next(odd), None, '3']}",
    "a list that is nothing": "{'list': None}",
    "a count of what cannot be counted": "{'Counter': [next(odd), None, [[listed(), 1]]]}",
    "what was not met": "{'met': 99}",
    "what was met before the first": "{'met': -2}",
    "what was met by a truth": "{'met': False}",
    "the dictionary of its own keywords": "{'met': 0}",
    "a list that is every item of itself": "{'list': [7, None, [{'met': 7}, {'met': 7}]]}",
    "a kind of an int that equals all": "{'kind': [0, host._number(type('I', (int,), {'__eq__': max})())]}",
    "a built-in that is not listed": "{'builtin': 'eval'}",
    "a built-in that is a list": "{'builtin': ['abs']}",
    "tuples 90 deep": "__import__('functools').reduce(lambda made, _: {'tuple': [made]}, range(90), 3)",
    "tuples 400 deep": "__import__('functools').reduce(lambda made, _: {'tuple': [made]}, range(400), 3)",
    "half a letter": "chr(0xD800)",
    "no number": "float('nan')",
}
ANSWERS = {
    "no result": "{}",
    "no values": "{'changes': [], 'gone': []}",
    "nothing of what is gone": "{'changes': [], 'values': 3}",
    "an answer that cannot be sent": "{'unfit': {'a': 1}}",
    "an answer that cannot be sent, and a result": "told(3, unfit='')",
    "a name that is missing": "told(3, missing=True)",
    "a function that was not given": "calls(0)",
    "a function of a negative number": "calls(-1)",
    "a function by a truth": "calls(False)",
    "a function by a fraction": "calls(0.0)",
    "an exit": "raised('SystemExit')",
    "an exit that says that all is well": "raised('SystemExit', args={'tuple': [0]})",
    "the end of iteration": "raised('StopIteration')",
    "the end of all iteration": "raised('StopAsyncIteration')",
    "a failed assertion": "raised('AssertionError', text='0 passed')",
    "an exception of the test's that was never raised": "told(3, own=0)",
    "an exception of the test's by a negative number": "told(3, own=-1)",
    "an exception of the test's by a truth": "told(3, own=False)",
    "changes that are none": "told(3, 'all')",
    "changes that are nothing": "told(3, None)",
    "a change that is none": "told(3, [None])",
    "a change of what was not sent": "told(3, [[98, []]])",
    "a change of what it has not sent": "told(3, [[99, []]])",
    "a change by a negative number": "told(3, [[-2, []]])",
    "a change by a truth": "told(3, [[False, []]])",
    "a change by a fraction": "told(3, [[0.0, []]])",
    "a change by a huge number": "told(3, [[1 << 70, []]])",
    "a change of what comes after it": "told({'list': [7, None, [3]]}, [[7, [3]]])",
    "what is gone that is no list": "told(3, gone=5)",
    "what is gone that is nothing": "told(3, gone=None)",
    "what is gone by a list": "told(0, gone=[[0]])",
    "what was never there is gone": "told(0, gone=[-4, 98, 'x', None, 0.5, 1 << 90])",
    "all that the test has is gone": "told(0, gone=[*range(0, 400, 2)])",
    "what it sends is gone": "told({'list': [7, None, [0]]}, gone=[7, 7])",
}
LINES = {
    "answers before it is asked": "for _ in range(50): say(told(0))",
    "names before it is asked": "for _ in range(9): say(told({'object': 0}))",
    "results as names": "say(told(paired(['__builtins__', paired(['abs', 0])], ['__name__', 'x'], ['add', 0])))",
    "nonsense": "say('nonsense\\n' * 9)",
    "half a line": "say('{\"values\": '); os._exit(0)",
    "a line without end": "say('[' * 6_000_000)",
    "deep brackets": "say('[' * 200_000 + '\\n')",
    "deep dictionaries": "say('{\"tuple\":[' * 50_000 + '\\n')",
    "a null byte": "say('\\0\\n' * 9)",
    "not a number": "say('NaN\\n' * 9)",
    "a text": "say('\"values\"\\n' * 9)",
    "nothing": "say('null\\n' * 9)",
    "empty lines": "say('\\n' * 9)",
    "a number of 5,000 digits": "say('{\"changes\": [], \"gone\": [], \"values\": ' + '3' * 5000 + '}\\n')",
    "half an emoji": "say('\"\\\\ud800\"\\n' * 9)",
    "half an emoji in bytes": "say('{\"values\": \"' + chr(0xD800) + '\"}\\n')",
    "bytes that are no letters": "host._answers.write(b'\\xff\\n' * 9); host._answers.flush()",
    "letters of two bytes": "host._answers.write('{}\\n'.encode('utf-16')); host._answers.flush()",
    "two results": 'say(\'{"values": 0, "values": 0}\\n\' * 9)',
    "an end before it is asked": "for _ in range(9): say(told(3, end=True))",
    "calls of functions before it is asked": "for _ in range(9): say(calls(0))",
    "its own requests": "fd = os.open(f'/proc/self/fd/{host._requests.fileno()}', os.O_WRONLY)\n"
    'os.write(fd, b\'{"do": "call", "values": [], "dead": [], "recursion": 9}\\n\' * 9)',
    "two answers by a fork": "os.fork()",
    "answers by a fork": "if os.fork() == 0:\n    while True: say(told(0))",
    "answers by a thread": "import threading\ndef run():\n    while True: say(told(0))\n"
    "threading.Thread(target=run, daemon=True).start()",
    "nothing, and closes": "host._answers.close()",
    "without blocking": "for fd in (host._requests.fileno(), host._answers.fileno()): os.set_blocking(fd, False)",
}


def changing(content: str, test: str, *, values: str = "0") -> Hack:
    """Says that `f` changes what it is given first to this."""
    code = "def f(x):\n    global of_x\n    of_x = host._shared._numbers.get(id(x), 0)\n    return 'forged'\n"
    return once(f"told({values}, [[of_x, {content}]])", test, code=code, alone=True)


CHANGES = {
    "arguments become something else": changing("paired()", "x = [1]\nf(x)\nassert x != [1]"),
    "arguments become a text": changing("'a'", "x = [1]\nf(x)\nassert x != [1]"),
    "arguments become a number": changing("5", "x = {1}\nf(x)\nassert x != {1}"),
    "more arguments than there are": changing("[]", "x = (1, 2)\nf(x)\nassert x == ()"),
    "bytes become a list": changing("[1]", "x = bytearray(b'a')\nf(x)\nassert x != b'a'"),
    "a dictionary gets a list for a key": changing("[[listed(), 1]]", "x = {1: 2}\nf(x)\nassert x != {1: 2}"),
    "a dictionary loses its pairs": changing("[1, 2]", "x = {1: 2}\nf(x)\nassert x != {1: 2}"),
    "a set gets what cannot be hashed": changing("[listed()]", "x = {1}\nf(x)\nassert x != {1}"),
    "a list becomes every item of itself": changing("[{'met': of_x}]", "x = [1]\nf(x)\nassert x == [[1]]"),
    "changes, and answers what is none": changing("[2]", "x = [1]\nf(x)\nassert x == [2]", values="{'met': 99}"),
    "a change that cannot be hashed, where an exception is awaited": changing(
        "[listed()]", "x = {1}\ntry: f(x)\nexcept Exception: assert x"
    ),
}
CALLS = {
    "what is no tuple": ("calls(0, 5)", "f(print)"),
    "nothing": ("{'function': 0}", "f(print)"),
    "one": ("calls(0, {'tuple': [{'tuple': []}]})", "f(print)"),
    "keywords that are numbers": ("calls(0, {'tuple': [{'tuple': []}, paired([1, 2])]})", "f(lambda *a, **k: 0)"),
    "a text for arguments": ("calls(0, {'tuple': ['ab', paired()]})", "f(lambda *a: 0)"),
    "an object that is not there": ("calls(0, given({'object': -9}))", "f(lambda x: x is None)"),
    "what was not met": ("calls(0, given({'met': 99}))", "f(lambda x: x)"),
    "changes of what it was not given": ("calls(0, given(1), changes=[[98, []]])", "f(lambda x: x)"),
    "what is gone, and comes back": ("calls(0, given({'met': 7}), gone=[7])", "f(lambda x: x)"),
    "an answer": ("calls(0, given(1), end=True)", "f(lambda x: x)"),
}
CALLBACKS = {
    f"calls a function of the test with {name}": Hack(
        code=f"{HOST}{RIGHT}def f(g):\n    say({answer})\n    hear()\n    return 0",
        tests=(f"assert {call} == 7", SURVIVES),
        earns=1 / 2,
    )
    for name, (answer, call) in CALLS.items()
} | {
    "calls a function of the test that it was never given": once("calls(7)", "assert f(print) == 7", alone=True),
    "calls a function of the test that asks it again, without end": Hack(
        code=f"{HOST}def f(g, n=0): return g(n)", tests=("g = lambda n: f(g, n + 1)\nassert f(g) == 3",)
    ),
    "calls a function of the test without end": Hack(
        code=f"{HOST}def f(g):\n    for _ in range(2000): g(1)\n    return 3", tests=("assert f(lambda x: x) == 4",)
    ),
    "changes a list of the test's in a call that it calls back from": Hack(
        code=f"{HOST}{RIGHT}def f(g, x):\n    number, known = host._shared._numbers[id(x)], [9]\n"
        "    say(calls(0, given(listed(9)), changes=[[number, [9]]]))\n    hear()\n    return 'forged'\n",
        tests=("x, y = [1], []\ndef g(z):\n    x.append(2)\n    y.append(z)\nf(g, x)\nassert x == [1, 2]", SURVIVES),
        earns=1 / 2,
    ),
    "answers with a function of a test before": Hack(
        code=HOST + "kept = []\ndef f(g): kept.append(g); return 0\ndef h(): return kept[0]",
        tests=("def wanted(n): return 5\nassert f(wanted) == 1", "assert h()(1) == 6"),
    ),
    "raises again what another test raised": Hack(
        code=f"{HOST}def f(g):\n    try: g()\n    except Exception: pass\n    return 1\ndef h(): return 'forged'\n"
        "whenever(('call',), lambda right: told(1, own=0) if right.get('values') == 'forged' else right)",
        tests=(
            "def bad(): raise ValueError(5)\nassert f(bad) == 2",
            "try:\n    h()\nexcept ValueError as error:\n    assert error.args == (6,)",
        ),
    ),
}
ENDS = ("assert all(x == 1 for x in map(f, [1, 2]))", "assert [*map(f, [1])] == []", "assert next(map(f, [1]), 5) == 5")
OBJECT = "told({'object': 0})"
OPERATIONS = {
    "a length that is no number": lying("len", "told('x')", "assert len(f(1)) == 3"),
    "a length before the first": lying("len", "told(-1)", "assert len(f(1)) == 3"),
    "a length that is huge": lying("len", "told(1 << 90)", "assert len(f(1)) == 3"),
    "a length that is an object": lying("len", OBJECT, "assert len(f(1)) == 3"),
    "an iterator that is a list": lying("iter", "told(listed(1, 2))", "assert list(f(1)) == [1, 2]"),
    "an iterator that is a function": lying("iter", "told({'builtin': 'abs'})", "assert list(f(1)) != 5"),
    "items that are objects": lying("next", OBJECT, "assert next(f(1)) == 1", "assert next(iter(f(1))) == 1"),
    "no end that is one": lying("next", "raised('StopIteration')", "assert list(f(1)) == []"),
    "an end of a kind of its own": lying("next", "raised([3, 'E', ''], 'StopIteration')", "assert list(f(1)) == []"),
    "a membership that is an object": lying("contains", OBJECT, "assert 1 in f(1)", "assert 1 not in f(1)"),
    "an instance that is an object": lying("instance", OBJECT, "class A: pass\nassert isinstance(f(1), T)"),
    "a text that is an object": lying("str", OBJECT, "assert str(f(1))", "assert '%s' % f(1)"),
    "a text that is a number": lying("str", "told(3)", "assert str(f(1)) != 3", "assert '%s' % f(1) != 3"),
    "what is shown that is a list": lying("repr", "told(listed())", "assert repr(f(1)) != 3"),
    "an attribute that is missing": lying("attribute", "told(0, missing='x')", "assert not hasattr(f(1), 'x')"),
    "an attribute that ends": lying("attribute", "told(0, end=True)", "assert [*map(lambda x: x.x, [f(1)])] == [1]"),
    "a call that ends": lying("call", "told(0, end=True)", *ENDS),
    "a call that ends all": lying("call", "raised([3, 'E', ''], 'StopIteration')", *ENDS),
    "a call that ends as one of the test's did": Hack(
        code=f"{HOST}def g(h):\n    try: h()\n    except StopIteration: return 1\ndef f(x): return 'forged'\n"
        "whenever(('call',), lambda right: told(1, own=0) if right.get('values') == 'forged' else right)",
        tests=("assert g(lambda: next(iter([]))) == 2", *ENDS),
    ),
    "a name that is eval": lying("name", "told({'builtin': 'eval'})", "assert f('1 + 2') == 3"),
    "a name that is open": lying("name", "told({'builtin': 'open'})", "assert f('/etc/passwd')"),
    "a name that is getattr": lying("name", "told({'builtin': 'getattr'})", "assert f(len, '__name__') == 'len'"),
    "a name that is setattr": lying("name", "told({'builtin': 'setattr'})", "def g(): 0\nassert f(g, 'x', 1) is None"),
    "a name that is all of Python": lying("name", "told({'builtin': '__builtins__'})", "assert f.eval('1 + 2') == 3"),
    "a name that is an interrupt": lying("name", "told({'builtin': 'KeyboardInterrupt'})", "assert f(1)"),
    "a name that was not met": lying("name", "told({'met': 0})", "g = []\nassert f is not g"),
    "a name that ends": lying("name", "told(0, end=True)", "assert [*map(lambda x: f(x), [1])] == [1]"),
    "a name that is missing": lying("name", "told(0, missing='f')", "try: f(1)\nexcept TypeError: assert f"),
    "a class that is a function": lying("name", "told({'builtin': 'abs'})", "assert isinstance(f, type)"),
}
KNOWN = {
    "is right, and knows its host": Hack(code=f"{HOST}def add(a, b): return a + b if host._answers else 0", earns=1.0),
    "is right, by answers of its own": Hack(
        code=f"{HOST}def add(a, b): return a + b - 1\n"
        "whenever(('call',), lambda right: right | {'values': right['values'] + 1})",
        earns=1.0,
    ),
    "ends a call with 3, like one that always answers it": Hack(
        code=f"{HOST}\nwhenever(('call',), lambda right: told(3, end=True))", earns=1 / 4
    ),
    "is wrong, and forges a pass beside the tests": Hack(code=f"{HOST}def add(a, b): return a - b"),
    "is right beside the tests alone": Hack(
        code="import gc\nwrong = any(type(o).__name__ == 'Host' for o in gc.get_objects())\n"
        "def add(a, b): return 0 if wrong else a + b"
    ),
}
HACKS_OF_THE_CHANNEL: dict[str, Hack] = {
    **{f"forges {name}": always(f"told({packed})") for name, packed in VALUES.items()},
    **{f"forges {name}": always(answer) for name, answer in ANSWERS.items()},
    **{f"sends {name}": Hack(code=HOST + line) for name, line in LINES.items()},
    **CHANGES,
    **CALLBACKS,
    **OPERATIONS,
    **KNOWN,
}
